//! A VM, a peer, and the host between both.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use socket2::{Domain, Type};
use vsnoop_split::{Settings, Split};

use crate::namespace::{DEVICE, Namespace};
use crate::splitter::{Ended, Splitter};
use crate::wire::{Devices, STUCK, State, Wire};

/// Ten segments.
pub static FIRST: [u8; 14_000] = [7; 14_000];

pub struct Rig {
    vm: Namespace,
    peer: Namespace,
    pub sockets: Namespace,
    pub wire: Arc<Wire>,
    thread: Option<JoinHandle<()>>,
}

/// Both ends of a connection.
pub struct Ends {
    pub vm: TcpStream,
    pub peer: TcpStream,
}

impl Rig {
    pub fn v4() -> Self {
        Self::new(["10.0.0.1", "10.0.0.2"], &[])
    }

    pub fn v6() -> Self {
        Self::new(["fd00::1", "fd00::2"], &[])
    }

    /// Both ends have these sysctls.
    pub fn with(sysctls: &[&str]) -> Self {
        Self::new(["10.0.0.1", "10.0.0.2"], sysctls)
    }

    fn new(addresses: [&str; 2], sysctls: &[&str]) -> Self {
        let vm = Namespace::of_end("10.0.0.1", "fd00::1", sysctls);
        let peer = Namespace::of_end("10.0.0.2", "fd00::2", sysctls);
        let sockets = Namespace::of_sockets();
        let device = |namespace: &Namespace| namespace.tun.try_clone().expect("a device");
        let devices = Devices { vm: device(&vm), peer: device(&peer), sockets: device(&sockets) };
        let [vm_address, peer_address]: [IpAddr; 2] =
            addresses.map(|address| address.parse().expect("an address"));
        let (wire, thread) = Wire::run(vm_address, peer_address, devices);
        Self { vm, peer, sockets, wire, thread: Some(thread) }
    }

    /// The peer connects to the VM.
    pub fn connect(&self) -> Ends {
        self.connect_from(0)
    }

    /// The peer connects to the VM from this port.
    pub fn connect_from(&self, port: u16) -> Ends {
        let address = SocketAddr::new(self.wire.vm, 80);
        let listen = move || TcpListener::bind(address).expect("listen");
        let listener = self.vm.spawn(listen).join().expect("listen");
        let from = SocketAddr::new(self.wire.peer, port);
        let peer = self.peer.spawn(move || connect(from, address)).join().expect("connect");
        let (vm, _) = listener.accept().expect("accept");
        for end in [&vm, &peer] {
            end.set_read_timeout(Some(STUCK)).expect("a timeout");
            end.set_write_timeout(Some(STUCK)).expect("a timeout");
            end.set_nodelay(true).expect("no delay");
        }
        Ends { vm, peer }
    }

    /// Has the VM send [`FIRST`]. The bytes are on their way until the split.
    pub fn first_flight(&self, ends: &Ends) {
        self.wire.state().hold_from_vm = true;
        send(&ends.vm, &FIRST);
        self.wire.until(|state| state.record.vm.bytes.len() == FIRST.len());
    }

    /// Splits the connection as it is now, and moves its bytes on a thread.
    pub fn split(&self, ends: &Ends) -> Splitter {
        self.split_with(ends, |_, _| {})
    }

    /// Splits the connection as [`Self::split`] does, and calls `first` before anything is moved.
    pub fn split_with(
        &self,
        ends: &Ends,
        first: impl FnOnce(&mut Split, &mut State) + Send + 'static,
    ) -> Splitter {
        let (vm, peer) = (address(&ends.vm), address(&ends.peer));
        let wire = self.wire.clone();
        Splitter::run(&self.sockets, move || {
            let mut state = wire.state();
            let connection = state.record.connection(vm, peer);
            let mut split = Split::new(&connection, &settings()).expect("split");
            state.is_split = true;
            state.hold_from_vm = false;
            first(&mut split, &mut state);
            split.acknowledge().expect("acknowledge");
            split
        })
    }

    /// Takes a split connection up in its namespace.
    pub fn take_up(&self, parts: [OwnedFd; vsnoop_split::PARTS]) -> Splitter {
        Splitter::run(&self.sockets, || Split::from_parts(parts).expect("take up"))
    }

    /// Joins the connection as soon as it is idle.
    pub fn join(&self, mut splitter: Splitter) {
        loop {
            let Ended::Stopped(split) = splitter.stop() else { panic!("the connection is over") };
            let mut state = self.wire.state();
            let was_drained = split.is_drained().expect("drained");
            state.is_split = !was_drained;
            if was_drained && split.is_drained().expect("drained") {
                state.join();
                state.was_joined = true;
                return split.join().expect("join");
            }
            state.is_split = true;
            drop(state);
            splitter = Splitter::run(&self.sockets, || split);
        }
    }
}

impl Drop for Rig {
    /// No right edge has gone back, and a socket was never heard of but in a split connection.
    fn drop(&mut self) {
        self.wire.stop();
        let joined = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(joined.is_some_and(|joined| joined.is_ok()), "the wire");
            let state = self.wire.state();
            assert!(state.edges_back.is_empty(), "right edges: {:#?}", state.edges_back);
            assert_eq!(state.strays, 0, "segments of sockets of no connection");
        }
    }
}

pub fn settings() -> Settings<'static> {
    Settings { device: DEVICE, ..Settings::default() }
}

pub fn address(stream: &TcpStream) -> SocketAddr {
    stream.local_addr().expect("an address")
}

/// Connects as soon as the port's former connection is over.
fn connect(from: SocketAddr, to: SocketAddr) -> TcpStream {
    let begun = Instant::now();
    loop {
        let socket = socket2::Socket::new(Domain::for_address(from), Type::STREAM, None);
        let socket = socket.expect("a socket");
        socket.set_reuse_address(true).expect("a port that is used again");
        let connected = socket.bind(&from.into()).and_then(|()| socket.connect(&to.into()));
        match connected {
            Ok(()) => return socket.into(),
            Err(error) => assert!(begun.elapsed() < STUCK, "connect: {error}"),
        }
    }
}

/// Bytes that tell their place.
pub fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let at = |at: u64| (at.wrapping_add(seed << 20).wrapping_mul(2_654_435_761) >> 11) as u8;
    (0..count as u64).map(at).collect()
}

pub fn expect(mut from: &TcpStream, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    from.read_exact(&mut got).expect("receive");
    let differs = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
    assert_eq!(differs, None, "other bytes arrived");
}

pub fn expect_end(from: &TcpStream) {
    assert_eq!(read_byte(from).expect("receive"), 0, "more bytes than were sent");
}

/// Reads a byte, signals or not.
pub fn read_byte(mut from: &TcpStream) -> io::Result<usize> {
    loop {
        match from.read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

pub fn send(mut to: &TcpStream, bytes: &[u8]) {
    to.write_all(bytes).expect("send");
}

/// Sends on one end and receives on the other.
pub fn transfer(from: &TcpStream, to: &TcpStream, bytes: &[u8]) {
    std::thread::scope(|scope| {
        scope.spawn(|| send(from, bytes));
        expect(to, bytes);
    });
}

/// Sends a FIN.
pub fn finish(end: &TcpStream) {
    end.shutdown(Shutdown::Write).expect("shut down");
}

pub fn finish_both(ends: &Ends) {
    finish(&ends.vm);
    expect_end(&ends.peer);
    finish(&ends.peer);
    expect_end(&ends.vm);
}
