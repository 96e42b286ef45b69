//! Sockets and pipes as the splitter's decisions use them.
//!
//! They are numbers. While the splitter runs, [`enter`] has the namespace for its thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use vsnoop_flow::testing::clock::MS;
use vsnoop_flow::testing::end::EndSettings;
use vsnoop_flow::testing::socket::Restored;
use vsnoop_flow::testing::tcp::{Tcp, TcpState};
use vsnoop_split::{Ahead, Connection, Error, Facing, Info, Queue, Settings, Side, State};

use super::namespace::{Faced, Namespace};

/// Timeouts in a row after which a socket gives up (tcp_retries2).
const RETRIES: u32 = 15;

thread_local! {
    static CURRENT: RefCell<Option<Namespace>> = const { RefCell::new(None) };
}

/// Runs `run` with this namespace.
pub fn enter<R>(namespace: &mut Namespace, run: impl FnOnce() -> R) -> R {
    let nowhere = Namespace::new(Vec::new(), 0);
    CURRENT.set(Some(std::mem::replace(namespace, nowhere)));
    let result = run();
    *namespace = CURRENT.take().expect("it was entered");
    result
}

/// A call of the splitter.
pub fn call<R>(run: impl FnOnce(&mut Namespace) -> io::Result<R>) -> io::Result<R> {
    CURRENT.with_borrow_mut(|current| {
        let namespace = current.as_mut().expect("the splitter runs");
        namespace.call()?;
        run(namespace)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipe(pub u32);

impl Socket {
    fn with<R>(self, run: impl FnOnce(&mut Faced) -> R) -> io::Result<R> {
        self.try_with(|faced, _, _| Ok(run(faced)))
    }

    /// `run` gets the socket, the time, and chance.
    fn try_with<R>(
        self,
        run: impl FnOnce(&mut Faced, u64, &mut fastrand::Rng) -> io::Result<R>,
    ) -> io::Result<R> {
        call(|namespace| {
            let Namespace { sockets, now, rng, .. } = namespace;
            run(sockets.get_mut(&self.0).expect("a socket"), *now, rng)
        })
    }
}

fn settings(mss: u16, super_packet: u16, window: u64, tsval: u32, now: u64) -> EndSettings {
    EndSettings {
        iss: 0,
        mss,
        units: (super_packet / mss).clamp(1, 16),
        bytes: 0,
        writes: 1,
        write_gap_ms: 0,
        rcvbuf: window,
        scale: None,
        timestamps: true,
        ts_offset: (tsval & !1).wrapping_sub((now / MS) as u32),
        sack: true,
        ecn: false,
        read: 0,
        read_gap_ms: 0,
        rto_ms: 200,
        retries: RETRIES,
        data_probes: false,
        trims: true,
        dsack: true,
        closes_last: false,
        delayed_ack: true,
        tiny: 0,
        urgent: 0,
    }
}

impl Facing for Socket {
    type Pipe = Pipe;

    fn restore(side: Side, connection: &Connection, how: &Settings) -> vsnoop_split::Result<Self> {
        let (remote, local) = match side {
            Side::Vm => (&connection.vm, &connection.peer),
            Side::Peer => (&connection.peer, &connection.vm),
        };
        let scale = if connection.scales { local.scale.min(14) } else { 0 };
        let ahead = Ahead::from_bytes(how.receive_bytes);
        let bytes = if side == Side::Vm { ahead.window } else { how.receive_bytes };
        let window = bytes.max(local.shown_bytes).min(0xffff << scale);
        let mss = remote.mss - if connection.timestamps { 12 } else { 0 };
        let restored = Restored {
            remote_ack: remote.ack,
            ack: local.ack,
            sent: local.in_flight.to_vec(),
            received: remote.in_flight.to_vec(),
            remote_window: remote.window_bytes.into(),
            window: local.shown_bytes.into(),
            timestamps: connection.timestamps,
            sack: connection.sack,
            remote_scale: connection.scales.then_some(remote.scale),
            scale,
            ts_recent: remote.tsval,
        };
        let made = call(|namespace| {
            let ports = (connection.peer.address.port(), connection.vm.address.port());
            let is_it =
                |(_, path): &&(usize, crate::wire::Path)| (path.sender.1, path.vm.1) == ports;
            let c = namespace.paths.iter().find(is_it).expect("a connection of this VM").0;
            if namespace.find(c, side).is_some() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            let now = namespace.now;
            let most = namespace.super_packet_bytes;
            let settings = settings(mss, most, window.into(), local.tsval, now);
            let tcp = Tcp::restored(settings, u64::from(side == Side::Peer), &restored, now);
            let number = namespace.number();
            let faced = Faced {
                c,
                side,
                tcp,
                unsent: ahead.queued.into(),
                queue: how.send_bytes.into(),
                error: None,
                pipe: None,
            };
            namespace.sockets.insert(number, faced);
            Ok(Self(number))
        });
        made.map_err(Error::Connect)
    }

    fn pipe() -> io::Result<Pipe> {
        call(|namespace| {
            let number = namespace.number();
            namespace.pipes.insert(number, VecDeque::new());
            Ok(Pipe(number))
        })
    }

    fn held(pipe: &Pipe) -> io::Result<usize> {
        call(|namespace| Ok(namespace.pipes[&pipe.0].len()))
    }

    fn fill(&self, pipe: &Pipe, bytes: usize) -> io::Result<usize> {
        call(|namespace| {
            let faced = namespace.sockets.get_mut(&self.0).expect("a socket");
            faced.pipe = Some(pipe.0);
            if faced.tcp.unread() > 0 {
                let read = faced.tcp.read(namespace.now, bytes);
                namespace.pipes.get_mut(&pipe.0).expect("a pipe").extend(&read);
                return Ok(read.len());
            }
            match faced.tcp.state {
                TcpState::Reset => Err(io::ErrorKind::ConnectionReset.into()),
                _ if faced.tcp.got_fin => Ok(0),
                _ => Err(io::ErrorKind::WouldBlock.into()),
            }
        })
    }

    fn drain(&self, pipe: &Pipe, bytes: usize) -> io::Result<usize> {
        call(|namespace| {
            let Namespace { sockets, pipes, now, rng, .. } = namespace;
            let faced = sockets.get_mut(&self.0).expect("a socket");
            if faced.tcp.state == TcpState::Reset || faced.tcp.is_finished() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let queued = faced.tcp.cfg.bytes + 1 - faced.tcp.una;
            let room = faced.unsent.saturating_sub(faced.tcp.unsent());
            let room = room.min(faced.queue.saturating_sub(queued)) as usize;
            let pipe = pipes.get_mut(&pipe.0).expect("a pipe");
            let count = bytes.min(pipe.len()).min(room);
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let taken: Vec<u8> = pipe.drain(..count).collect();
            faced.tcp.write(*now, &taken, rng);
            Ok(count)
        })
    }

    fn info(&self) -> io::Result<Info> {
        self.with(info)
    }

    fn unread(&self) -> io::Result<usize> {
        self.with(|faced| faced.tcp.unread() as usize)
    }

    fn unacknowledged(&self) -> io::Result<usize> {
        call(|namespace| {
            let faced = &namespace.sockets[&self.0];
            let queued = faced.tcp.cfg.bytes + 1 + u64::from(faced.tcp.is_finished());
            let is_counted = faced.is_live() && !namespace.lies;
            Ok(if is_counted { (queued - faced.tcp.una) as usize } else { 0 })
        })
    }

    fn received_memory(&self) -> io::Result<u32> {
        self.with(|faced| (faced.tcp.unread() + faced.tcp.out_of_order()) as u32)
    }

    fn reason_of_end(&self) -> io::Result<Option<io::Error>> {
        self.with(|faced| faced.error.take().map(io::Error::from))
    }

    fn clock(&self) -> io::Result<u32> {
        self.try_with(|faced, now, _| Ok(faced.tcp.ts_now(now) & !1))
    }

    /// The first read of what was in flight sends an ACK (accel/vsnoop-split/src/restore.rs).
    fn discard(&self, bytes: usize) -> io::Result<usize> {
        self.try_with(|faced, now, _| {
            if bytes == 0 {
                return Ok(0);
            }
            let read = faced.tcp.read(now, bytes).len();
            if read > 0 && faced.tcp.out.is_empty() {
                faced.tcp.acknowledge(now);
            }
            Ok(read)
        })
    }

    fn pass_urgent(&self, _sink: &Self) -> io::Result<bool> {
        Ok(false)
    }

    fn finish(&self) -> io::Result<()> {
        self.try_with(|faced, now, rng| {
            if faced.tcp.state == TcpState::Reset {
                return Err(io::ErrorKind::NotConnected.into());
            }
            faced.tcp.close(now, rng);
            Ok(())
        })
    }

    fn queue_seq(&self, queue: Queue) -> io::Result<u32> {
        self.with(|faced| match queue {
            Queue::Received => faced.tcp.received_seq(),
            Queue::Sent => faced.tcp.queued_seq(),
        })
    }

    /// tcp_send_window_probe(): a segment below the window.
    fn ask_for_window(&self) -> io::Result<()> {
        self.try_with(|faced, now, _| {
            faced.tcp.probe(now);
            Ok(())
        })
    }

    fn limit_received(&self, window: u32, memory: u32) -> io::Result<()> {
        self.with(|faced| faced.tcp.cfg.rcvbuf = window.min(memory).into())
    }

    fn limit_unsent(&self, bytes: u32) -> io::Result<()> {
        self.with(|faced| faced.unsent = bytes.into())
    }

    fn reset(&self) -> io::Result<()> {
        call(|namespace| {
            namespace.reset(self.0);
            Ok(())
        })
    }

    fn close_silently(&self) -> io::Result<()> {
        self.with(|faced| faced.tcp.state = TcpState::Reset)
    }
}

fn info(faced: &mut Faced) -> Info {
    let tcp = &faced.tcp;
    let is_acked = tcp.una == tcp.cfg.bytes + 2;
    let state = match (tcp.is_finished(), tcp.got_fin) {
        _ if tcp.state == TcpState::Reset || faced.has_ended() => State::Closed,
        (false, false) => State::Established,
        (false, true) => State::CloseWait,
        (true, false) if is_acked => State::FinWait2,
        (true, false) => State::FinWait1,
        (true, true) => State::LastAck,
    };
    let edge = u64::from(tcp.right_edge > tcp.shown_at()) * (tcp.right_edge - tcp.shown_at());
    Info {
        state,
        round_trip: Duration::ZERO,
        round_trip_deviation: Duration::ZERO,
        retransmission_timeout: Duration::ZERO,
        congestion_window: 10,
        mss: tcp.cfg.mss.into(),
        in_flight: 0,
        retransmissions: tcp.retransmissions as u32,
        timeouts: 0,
        probes: 0,
        bytes_sent: tcp.nxt - 1,
        bytes_retransmitted: 0,
        bytes_acknowledged: tcp.una.min(tcp.cfg.bytes + 1) - 1,
        bytes_received: tcp.rcv_nxt - 1 - u64::from(tcp.got_fin),
        bytes_not_sent: tcp.unsent() as u32,
        knows_path: false,
        delivery_rate: 0,
        since_last_ack: Duration::ZERO,
        send_window: tcp.snd_edge.saturating_sub(tcp.una) as u32,
        receive_window: edge as u32,
    }
}
