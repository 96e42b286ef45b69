//! Restored sockets against the kernel's own receiver, on the loopback device of a network
//! namespace of each test's own.
//!
//! A plain connection is begun, bytes of it are lost, and its sending socket vanishes without a
//! word. A [`Sender`] goes on with its numbers.

use std::io::{self, Read, Write};
use std::mem::size_of;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use vsnoop_sender::{Connection, Error, Scales, Sender, Timestamps};

/// Of linux/tcp.h.
const TCP_REPAIR: libc::c_int = 19;
const TCP_REPAIR_QUEUE: libc::c_int = 20;
const TCP_QUEUE_SEQ: libc::c_int = 21;
const TCP_TIMESTAMP: libc::c_int = 24;

/// Bits of tcpi_options.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WINDOW_SCALE: u8 = 4;

/// The loopback device's MTU is 65536.
const MSS: u16 = 1460;
const BUFFER_BYTES: u32 = 4 << 20;
/// A test that is stuck fails.
const STUCK: Duration = Duration::from_secs(60);

const IPV4: &str = "127.0.0.1:0";
const IPV6: &str = "[::1]:0";

fn main() {
    let arguments = Arguments::from_args();
    let tests: [(&str, fn()); 8] = [
        ("bytes_lost_in_flight_are_sent_again", || lost_in_flight(begin(IPV4))),
        ("ipv6_bytes_lost_in_flight_are_sent_again", || lost_in_flight(begin(IPV6))),
        ("without_timestamps_lost_bytes_are_sent_again", || {
            let begun = begin_without("net.ipv4.tcp_timestamps");
            assert_eq!(info(&begun.sender).tcpi_options & TIMESTAMPS, 0);
            lost_in_flight(begun);
        }),
        ("without_sack_lost_bytes_are_sent_again", || {
            let begun = begin_without("net.ipv4.tcp_sack");
            assert_eq!(info(&begun.sender).tcpi_options & SACK, 0);
            lost_in_flight(begun);
        }),
        ("without_window_scaling_lost_bytes_are_sent_again", || {
            let begun = begin_without("net.ipv4.tcp_window_scaling");
            assert_eq!(info(&begun.sender).tcpi_options & WINDOW_SCALE, 0);
            lost_in_flight(begun);
        }),
        ("a_dropped_sender_is_made_again", a_dropped_sender_is_made_again),
        ("a_sender_that_refused_an_ack_is_behind", a_sender_that_refused_an_ack_is_behind),
        ("an_unknown_congestion_control_is_named", an_unknown_congestion_control_is_named),
    ];
    // SAFETY: no arguments, no effect.
    let root = unsafe { libc::geteuid() } == 0;
    let trials = tests.into_iter().map(|(name, test)| {
        let trial = Trial::test(name, move || {
            // A thread of its own, to be put into a namespace of its own.
            std::thread::spawn(move || {
                // SAFETY: a plain system call.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "make a namespace");
                ip("link set lo up");
                test();
            })
            .join()
            .map_err(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
                Failed::from(text.unwrap_or_else(|| "panicked".into()))
            })
        });
        if root { trial } else { trial.with_kind("skipped: needs root").with_ignored_flag(true) }
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("run ip");
    assert!(status.success(), "ip {arguments}");
}

fn get(socket: &impl AsRawFd, option: libc::c_int) -> u32 {
    let mut value = 0u32;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "option {option}: {}", io::Error::last_os_error());
    value
}

fn set(socket: &impl AsRawFd, option: libc::c_int, value: libc::c_int) {
    // SAFETY: the descriptor is open; the value is live and an int.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "option {option}: {}", io::Error::last_os_error());
}

fn info(socket: &impl AsRawFd) -> libc::tcp_info {
    // SAFETY: all fields are plain integers, for which zero is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "TCP_INFO");
    info
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count as u64).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// A connection whose sender is about to vanish.
struct Begun {
    sender: TcpStream,
    receiver: TcpStream,
}

/// What is known of a connection whose sender has vanished.
struct Orphan {
    vm: SocketAddr,
    peer: SocketAddr,
    snd_una: u32,
    rcv_nxt: u32,
    scales: Option<Scales>,
    sack: bool,
    timestamps: Timestamps,
    receiver: TcpStream,
}

fn begin(address: &str) -> Begun {
    let listener = TcpListener::bind(address).expect("listen");
    let sender = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (receiver, _) = listener.accept().expect("accept");
    receiver.set_read_timeout(Some(STUCK)).expect("timeout");
    Begun { sender, receiver }
}

/// Begins a connection without what this sysctl allows.
fn begin_without(sysctl: &str) -> Begun {
    let status = Command::new("sysctl").args(["-qw", &format!("{sysctl}=0")]).status();
    assert!(status.expect("run sysctl").success(), "{sysctl}");
    begin(IPV4)
}

impl Begun {
    /// Delivers bytes, and closes the sender without a segment.
    fn deliver_and_vanish(mut self, delivered: &[u8]) -> Orphan {
        self.sender.write_all(delivered).expect("send");
        expect(&mut self.receiver, delivered);
        while info(&self.sender).tcpi_unacked > 0 {
            std::thread::yield_now();
        }
        let about = info(&self.sender);
        set(&self.sender, TCP_REPAIR, 1);
        let mut seq = [0; 2];
        for (queue, seq) in [1, 2].into_iter().zip(&mut seq) {
            set(&self.sender, TCP_REPAIR_QUEUE, queue);
            *seq = get(&self.sender, TCP_QUEUE_SEQ);
        }
        let has = |bit: u8| about.tcpi_options & bit != 0;
        Orphan {
            vm: self.sender.local_addr().expect("address"),
            peer: self.sender.peer_addr().expect("address"),
            snd_una: seq[1],
            rcv_nxt: seq[0],
            scales: has(WINDOW_SCALE).then(|| scales(&about)),
            sack: has(SACK),
            timestamps: if has(TIMESTAMPS) {
                Timestamps::From(get(&self.sender, TCP_TIMESTAMP).wrapping_add(2))
            } else {
                Timestamps::Off
            },
            receiver: self.receiver,
        }
    }
}

/// tcpi_snd_wscale and tcpi_rcv_wscale, of four bits each, are the byte behind tcpi_options.
fn scales(info: &libc::tcp_info) -> Scales {
    // SAFETY: a tcp_info is plain bytes, and longer than seven.
    let byte = unsafe { *(&raw const *info).cast::<u8>().add(6) };
    Scales { peer: byte & 15, vm: byte >> 4 }
}

impl Orphan {
    fn connection<'a>(&self, in_flight: &'a [u8]) -> Connection<'a> {
        Connection {
            vm: self.vm,
            peer: self.peer,
            snd_una: self.snd_una,
            in_flight,
            rcv_nxt: self.rcv_nxt,
            window_bytes: 30_000,
            mss: MSS,
            scales: self.scales,
            sack: self.sack,
            timestamps: self.timestamps,
            congestion_control: None,
            buffer_bytes: BUFFER_BYTES,
        }
    }
}

fn expect(receiver: &mut TcpStream, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    receiver.read_exact(&mut got).expect("receive");
    assert!(got == wanted, "other bytes arrived");
}

fn write_all(sender: &mut Sender, mut rest: &[u8]) {
    while !rest.is_empty() {
        match sender.write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("send: {error}"),
        }
    }
}

fn expect_end(receiver: &mut TcpStream) {
    assert_eq!(receiver.read(&mut [0]).expect("receive"), 0, "more bytes than were sent");
}

fn lost_in_flight(begun: Begun) {
    let all = bytes(2_000_000);
    let (delivered, rest) = all.split_at(10_000);
    let (lost, rest) = rest.split_at(20_000);
    let mut orphan = begun.deliver_and_vanish(delivered);
    let mut sender = Sender::restore(&orphan.connection(lost)).expect("restore");
    let reader = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            expect(&mut orphan.receiver, lost);
            expect(&mut orphan.receiver, rest);
            expect_end(&mut orphan.receiver);
        });
        write_all(&mut sender, rest);
        sender.finish().expect("finish");
        reader.join()
    });
    reader.expect("the bytes arrive");
}

fn a_dropped_sender_is_made_again() {
    let all = bytes(300_000);
    let (delivered, lost) = all.split_at(1000);
    let mut orphan = begin(IPV4).deliver_and_vanish(delivered);
    for _ in 0..3 {
        drop(Sender::restore(&orphan.connection(&lost[..20_000])).expect("restore"));
    }
    assert_eq!(orphan.receiver.set_nonblocking(true).ok(), Some(()));
    let nothing = orphan.receiver.read(&mut [0]).expect_err("neither bytes, FIN nor RST");
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    orphan.receiver.set_nonblocking(false).expect("blocking");
    let mut sender = Sender::restore(&orphan.connection(&lost[..20_000])).expect("restore");
    write_all(&mut sender, &lost[20_000..]);
    sender.finish().expect("finish");
    expect(&mut orphan.receiver, lost);
    expect_end(&mut orphan.receiver);
}

/// The peer has acknowledged more than the socket knows to be sent: a segment of an earlier socket
/// left later.
fn a_sender_that_refused_an_ack_is_behind() {
    let all = bytes(200_000);
    let (delivered, rest) = all.split_at(30_000);
    let mut orphan = begin(IPV4).deliver_and_vanish(delivered);
    let acknowledged = orphan.snd_una;
    orphan.snd_una = acknowledged.wrapping_sub(30_000);
    let sender = Sender::restore(&orphan.connection(&delivered[..10_000])).expect("restore");
    // It sends the first bytes again, and the peer answers with an ACK of all.
    while info(&sender.as_fd()).tcpi_total_retrans == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(sender.snd_una().expect("SND.UNA"), orphan.snd_una, "it has taken the ACK");
    assert!(sender.is_behind(acknowledged).expect("SND.UNA"));
    drop(sender);
    orphan.snd_una = acknowledged;
    let mut sender = Sender::restore(&orphan.connection(&[])).expect("restore");
    assert!(!sender.is_behind(acknowledged).expect("SND.UNA"));
    write_all(&mut sender, rest);
    sender.finish().expect("finish");
    expect(&mut orphan.receiver, rest);
    expect_end(&mut orphan.receiver);
}

fn an_unknown_congestion_control_is_named() {
    let orphan = begin(IPV4).deliver_and_vanish(b"a");
    let mut connection = orphan.connection(&[]);
    connection.congestion_control = Some("none_such");
    let error = Sender::restore(&connection).expect_err("no such congestion control");
    assert!(matches!(error, Error::CongestionControl { ref name, .. } if name == "none_such"));
}
