//! QUIC datagrams without tasks: quinn's state machine (quinn-proto) driven by one thread at each end,
//! with the system calls of the records: whole super-packets out and in.
//!
//! No other form of quinn has less around it; what it costs is what QUIC costs.

use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use bytes::{Bytes, BytesMut};
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, Event, Transmit,
};
use vsnoop_lab::testbed::net::Tap;

use super::carrier::Carrier;
use super::frames::{BURST, Cutter, FRAME_BYTES, Joiner, give_frame, take_frame};
use super::load::{
    Arrivals, DRAIN, LOOK, Load, Meter, PAYLOAD_BYTES, PING_BYTES, Pace, STALL, UNIT, UNIT_BYTES,
};
use super::quic::{Config, Congestion, SERVER_NAME};
use super::road::RECEIVER;
use super::udp;

const HANDSHAKE: Duration = Duration::from_secs(3);

pub struct Direct {
    config: Config,
}

impl Direct {
    pub fn new(congestion: Congestion) -> Result<Self> {
        Ok(Self { config: Config::new(congestion)? })
    }

    fn dial(&self, socket: UdpSocket) -> Result<End> {
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
        let client = self.config.client.clone();
        let connection = endpoint.connect(Instant::now(), client, RECEIVER, SERVER_NAME)?;
        let mut end = End::new(socket, endpoint, Some(connection))?;
        let until = Instant::now() + HANDSHAKE;
        while !end.connected {
            if Instant::now() > until {
                bail!("QUIC handshake: no answer");
            }
            end.turn(LOOK)?;
        }
        Ok(end)
    }

    fn listen(&self, socket: UdpSocket) -> Result<End> {
        let server = Some(Arc::new(self.config.server.clone()));
        let endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), server, true, None);
        End::new(socket, endpoint, None)
    }
}

impl Carrier for Direct {
    fn connected(&self) -> bool {
        true
    }

    fn send(&self, socket: UdpSocket, load: Load, meter: &Meter) -> Result<()> {
        let mut end = self.dial(socket)?;
        match load {
            Load::Bulk => send_bulk(&mut end, meter)?,
            Load::Pings { count, pause } => ping(&mut end, meter, count, pause)?,
        }
        end.idle(DRAIN)
    }

    fn receive(&self, socket: UdpSocket, meter: &Meter) -> Result<()> {
        let mut end = self.listen(socket)?;
        while !meter.ended() {
            end.turn(LOOK)?;
            let mut arrivals = Arrivals::default();
            while let Some(datagram) = end.take() {
                match datagram.len() {
                    PAYLOAD_BYTES => arrivals.add(&datagram),
                    PING_BYTES => end.put(datagram)?,
                    _ => {}
                }
            }
            meter.add_received(arrivals);
        }
        Ok(())
    }

    fn bridge(&self, socket: UdpSocket, tap: Tap, dials: bool, stop: &AtomicBool) -> Result<()> {
        let mut end = if dials { self.dial(socket)? } else { self.listen(socket)? };
        let (mut cutter, mut joiner) = (Cutter::default(), Joiner::default());
        let mut buffer = vec![0; FRAME_BYTES];
        while !stop.load(SeqCst) {
            end.wait(LOOK, Some(tap.as_fd()))?;
            for _ in 0..BURST {
                let Some(bytes) = take_frame(&tap, &mut buffer)? else { break };
                if !end.connected {
                    continue;
                }
                cutter.cut(&buffer[..bytes], |piece| end.put(Bytes::copy_from_slice(piece)))?;
                end.transmit()?;
            }
            for _ in 0..BURST {
                if !end.receive()? {
                    break;
                }
                while let Some(piece) = end.take() {
                    if let Some(frame) = joiner.join(&piece) {
                        give_frame(&tap, frame);
                    }
                }
            }
            end.run_timers()?;
            end.transmit()?;
        }
        Ok(())
    }
}

fn send_bulk(end: &mut End, meter: &Meter) -> Result<()> {
    let mut unit = vec![0x55; UNIT_BYTES];
    let mut pace = Pace::new(meter);
    while !meter.stopped() {
        if pace.may_send() {
            meter.fill(&mut unit);
            let unit = Bytes::copy_from_slice(&unit);
            for at in (0..UNIT_BYTES).step_by(PAYLOAD_BYTES) {
                end.put(unit.slice(at..at + PAYLOAD_BYTES))?;
            }
            meter.add_sent(UNIT);
            end.turn(Duration::ZERO)?;
        } else {
            // Room comes with what is received, and so do ACKs.
            end.turn(STALL)?;
        }
    }
    Ok(())
}

fn ping(end: &mut End, meter: &Meter, count: usize, pause: Duration) -> Result<()> {
    for _ in 0..count {
        let at = Instant::now();
        end.put(Bytes::from_static(&[0; PING_BYTES]))?;
        while at.elapsed() < LOOK {
            end.turn(LOOK)?;
            if end.take().is_some() {
                meter.round_trips.lock().expect("no holder panics").push(at.elapsed());
                break;
            }
        }
        end.idle(pause)?;
    }
    Ok(())
}

/// One end: socket, state machine, and at most one connection.
struct End {
    socket: UdpSocket,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    connected: bool,
    out: Vec<u8>,
    input: Vec<u8>,
}

impl End {
    fn new(
        socket: UdpSocket,
        endpoint: Endpoint,
        connection: Option<(ConnectionHandle, Connection)>,
    ) -> Result<Self> {
        udp::prepare(&socket, None)?;
        socket.set_nonblocking(true)?;
        let out = Vec::with_capacity(udp::BUFFER_BYTES);
        let input = vec![0; udp::BUFFER_BYTES];
        Ok(Self { socket, endpoint, connection, connected: false, out, input })
    }

    fn put(&mut self, datagram: Bytes) -> Result<()> {
        let Some((_, connection)) = &mut self.connection else { return Ok(()) };
        connection.datagrams().send(datagram, true).map_err(|error| anyhow!("QUIC: {error}"))
    }

    fn take(&mut self) -> Option<Bytes> {
        self.connection.as_mut()?.1.datagrams().recv()
    }

    /// Sends what there is, and then waits up to `patience` for the network or a timer.
    fn turn(&mut self, patience: Duration) -> Result<()> {
        self.transmit()?;
        if !self.receive()? && !patience.is_zero() {
            self.wait(patience, None)?;
            self.receive()?;
        }
        self.run_timers()?;
        self.transmit()
    }

    /// Turns for `time`.
    fn idle(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.turn(left)?;
        }
    }

    fn wait(&mut self, patience: Duration, other: Option<BorrowedFd<'_>>) -> Result<()> {
        let timer = self.connection.as_mut().and_then(|(_, connection)| connection.poll_timeout());
        let timer = timer.map_or(patience, |at| at.saturating_duration_since(Instant::now()));
        udp::wait(&self.socket, other, patience.min(timer))
    }

    /// Receives once: datagrams of one super-packet. Whether there were any.
    fn receive(&mut self) -> Result<bool> {
        let Some((bytes, segment_bytes)) = udp::receive(&self.socket, &mut self.input)? else {
            return Ok(false);
        };
        let now = Instant::now();
        let mut data = BytesMut::from(&self.input[..bytes]);
        let remote = match self.connection {
            Some((_, ref connection)) => connection.remote_address(),
            None => self.socket.peer_addr()?,
        };
        while !data.is_empty() {
            let datagram = data.split_to(segment_bytes.min(data.len()));
            self.out.clear();
            match self.endpoint.handle(now, remote, None, None, datagram, &mut self.out) {
                Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                    if let Some((own, connection)) = &mut self.connection
                        && *own == handle
                    {
                        connection.handle_event(event);
                    }
                }
                Some(DatagramEvent::NewConnection(incoming)) if self.connection.is_none() => {
                    let accepted = self.endpoint.accept(incoming, now, &mut self.out, None);
                    let accepted = accepted.map_err(|error| anyhow!("QUIC: {}", error.cause))?;
                    self.connection = Some(accepted);
                }
                Some(DatagramEvent::NewConnection(incoming)) => self.endpoint.ignore(incoming),
                Some(DatagramEvent::Response(transmit)) => {
                    send(&self.socket, &self.out, &transmit)?
                }
                None => {}
            }
        }
        self.settle()?;
        Ok(true)
    }

    fn run_timers(&mut self) -> Result<()> {
        let now = Instant::now();
        if let Some((_, connection)) = &mut self.connection
            && connection.poll_timeout().is_some_and(|at| at <= now)
        {
            connection.handle_timeout(now);
            self.settle()?;
        }
        Ok(())
    }

    /// What connection and endpoint have to tell each other, and us.
    fn settle(&mut self) -> Result<()> {
        let Some((handle, connection)) = &mut self.connection else { return Ok(()) };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll() {
            match event {
                Event::Connected => self.connected = true,
                Event::ConnectionLost { reason } => bail!("QUIC: {reason}"),
                _ => {}
            }
        }
        Ok(())
    }

    fn transmit(&mut self) -> Result<()> {
        let Some((_, connection)) = &mut self.connection else { return Ok(()) };
        let now = Instant::now();
        loop {
            self.out.clear();
            let Some(transmit) = connection.poll_transmit(now, UNIT, &mut self.out) else {
                return Ok(());
            };
            send(&self.socket, &self.out, &transmit)?;
        }
    }
}

fn send(socket: &UdpSocket, out: &[u8], transmit: &Transmit) -> Result<()> {
    let segment_bytes = transmit.segment_size.unwrap_or(transmit.size);
    udp::send(socket, &out[..transmit.size], segment_bytes)
}
