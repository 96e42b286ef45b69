//! The guest's end of rounds, as the control channel asks for it: their receiver, or some of the
//! senders.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::Socket;
use vsnoop_guest::control::{ROUNDS_PORT, Reply};
use vsnoop_guest::rounds::{Receiver, Senders, Stream, socket};

#[derive(Default)]
pub struct Ends {
    receiver: Option<Receiver>,
    listening: Option<Listening>,
    senders: Option<Senders>,
    stream: Stream,
}

struct Listening {
    first: u16,
    congestion_control: String,
    listeners: Vec<Socket>,
}

impl Ends {
    pub fn open(&mut self, to: &[SocketAddrV4], congestion_control: Option<&str>) -> Result<()> {
        let connect = |to: &SocketAddrV4| {
            let socket =
                congestion_control.map_or_else(socket::tcp_socket, socket::tcp_socket_with);
            let socket = socket::connect(socket?, (*to).into())?;
            socket.set_tcp_nodelay(true).context("set TCP_NODELAY")?;
            Ok(socket)
        };
        let sockets = to.iter().map(connect).collect::<Result<_>>()?;
        // A guest gets no interrupts from a terminal: the host ends it.
        self.receiver = Some(Receiver::new(sockets, self.stream.clone(), || Ok(()))?);
        Ok(())
    }

    pub fn listen(&mut self, first: u16, count: u16, congestion_control: String) -> Result<()> {
        let listen = |number: u16| {
            let socket = socket::tcp_socket_with(&congestion_control)?;
            let (listener, _) =
                socket::listen(socket, Ipv4Addr::UNSPECIFIED, ROUNDS_PORT + number)?;
            Ok(listener)
        };
        let listeners = (first..first + count).map(listen).collect::<Result<_>>()?;
        self.listening = Some(Listening { first, congestion_control, listeners });
        Ok(())
    }

    pub fn accept(&mut self) -> Result<()> {
        let Listening { first, congestion_control, listeners } =
            self.listening.take().context("nothing listens for rounds")?;
        let accept = |listener: &Socket| {
            let socket = socket::accept(listener)?;
            socket::verify_congestion_control(&socket, &congestion_control)?;
            socket.set_tcp_nodelay(true).context("set TCP_NODELAY")?;
            Ok(socket)
        };
        let sockets = listeners.iter().map(accept).collect::<Result<_>>()?;
        self.senders = Some(Senders::start(first.into(), sockets, self.stream.clone())?);
        Ok(())
    }

    pub fn round(&mut self, senders: usize, bytes: u64, limit: Duration) -> Result<Reply> {
        let receiver = self.receiver()?;
        let took = receiver.round(senders, bytes, limit)?;
        let took_ns = took.map(|took| took.as_nanos() as u64);
        Ok(Reply::Round { took_ns, missing: receiver.missing() })
    }

    pub fn ask_endlessly(&mut self, number: usize) -> Result<()> {
        self.receiver()?.ask_endlessly(number)
    }

    pub fn take_in(&mut self, duration: Duration) -> Result<Reply> {
        Ok(Reply::TakenIn { bytes: self.receiver()?.take_in_for(duration)? })
    }

    pub fn close(&mut self) {
        self.receiver = None;
        self.listening = None;
        self.senders = None;
    }

    fn receiver(&mut self) -> Result<&mut Receiver> {
        self.receiver.as_mut().context("no connections for rounds are open")
    }
}
