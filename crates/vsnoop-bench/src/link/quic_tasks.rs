//! QUIC datagrams as quinn gives them: its own sockets, tasks of tokio.
//!
//! Each end has a runtime of its own: one thread on the end's core, or as many threads as there are
//! cores, on any of them.

use std::future::poll_fn;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use quinn::{Connection, Endpoint, EndpointConfig, TokioRuntime};
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};
use vsnoop_lab::testbed::net::Tap;

use super::carrier::Carrier;
use super::frames::{Cutter, FRAME_BYTES, Joiner, give_frame, take_frame};
use super::load::{
    Arrivals, DRAIN, LOOK, Load, Meter, PAYLOAD_BYTES, PING_BYTES, Pace, STALL, UNIT_BYTES,
};
use super::quic::{Config, Congestion, SERVER_NAME};
use super::road::RECEIVER;

const HANDSHAKE: Duration = Duration::from_secs(3);

pub struct Tasks {
    config: Config,
    threads: Threads,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The one that runs the application.
    One,
    /// As many as there are cores.
    Many,
}

impl Tasks {
    pub fn new(congestion: Congestion, threads: Threads) -> Result<Self> {
        Ok(Self { config: Config::new(congestion)?, threads })
    }

    /// The endpoint has to live as long as the connection.
    async fn dial(&self, socket: UdpSocket) -> Result<(Endpoint, Connection)> {
        let runtime = Arc::new(TokioRuntime);
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, runtime)?;
        let connecting =
            endpoint.connect_with(self.config.client.clone(), RECEIVER, SERVER_NAME)?;
        let connection = timeout(HANDSHAKE, connecting).await.context("QUIC handshake")??;
        Ok((endpoint, connection))
    }

    async fn accept(&self, socket: UdpSocket) -> Result<(Endpoint, Connection)> {
        let server = Some(self.config.server.clone());
        let runtime = Arc::new(TokioRuntime);
        let endpoint = Endpoint::new(EndpointConfig::default(), server, socket, runtime)?;
        let incoming = timeout(HANDSHAKE, endpoint.accept()).await.context("QUIC handshake")?;
        let Some(incoming) = incoming else { bail!("the QUIC endpoint is closed") };
        let connection = incoming.await?;
        Ok((endpoint, connection))
    }

    fn runtime(&self) -> Result<Runtime> {
        let mut builder = match self.threads {
            Threads::One => Builder::new_current_thread(),
            Threads::Many => Builder::new_multi_thread(),
        };
        builder.enable_all().build().context("start a runtime")
    }

    /// Quinn's own tasks run beside the work, and end with it.
    fn block_on(&self, work: impl Future<Output = Result<()>>) -> Result<()> {
        let runtime = self.runtime()?;
        let result = runtime.block_on(work);
        runtime.shutdown_timeout(LOOK);
        result
    }
}

impl Carrier for Tasks {
    fn pinned(&self) -> bool {
        self.threads == Threads::One
    }

    fn send(&self, socket: UdpSocket, load: Load, meter: &Meter) -> Result<()> {
        self.block_on(async {
            let (_endpoint, connection) = self.dial(socket).await?;
            match load {
                Load::Bulk => send_bulk(&connection, meter).await?,
                Load::Pings { count, pause } => ping(&connection, meter, count, pause).await?,
            }
            sleep(DRAIN).await;
            Ok(())
        })
    }

    fn receive(&self, socket: UdpSocket, meter: &Meter) -> Result<()> {
        self.block_on(async {
            let (_endpoint, connection) = self.accept(socket).await?;
            while !meter.ended() {
                // One timer for many datagrams.
                let _ = timeout(LOOK, take(&connection, meter)).await;
            }
            Ok(())
        })
    }

    fn bridge(&self, socket: UdpSocket, tap: Tap, dials: bool, stop: &AtomicBool) -> Result<()> {
        self.block_on(async {
            let (_endpoint, connection) =
                if dials { self.dial(socket).await? } else { self.accept(socket).await? };
            // SAFETY: an OwnedFd is one descriptor, which stays open until it is dropped.
            let tap = unsafe { AsyncFd::register(OwnedFd::from(tap)) }?;
            let mut out = pin!(frames_out(&connection, &tap));
            let mut back = pin!(frames_in(&connection, &tap));
            let mut stopped = pin!(async {
                while !stop.load(SeqCst) {
                    sleep(LOOK).await;
                }
            });
            poll_fn(|context| {
                if stopped.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Ok(()));
                }
                match back.as_mut().poll(context) {
                    Poll::Ready(()) => Poll::Ready(Ok(())),
                    Poll::Pending => out.as_mut().poll(context),
                }
            })
            .await
        })
    }
}

async fn send_bulk(connection: &Connection, meter: &Meter) -> Result<()> {
    let mut unit = vec![0x55; UNIT_BYTES];
    let mut pace = Pace::new(meter);
    while !meter.stopped() {
        if !pace.may_send() {
            let _ = timeout(STALL, poll_fn(|context| meter.poll_room(context))).await;
            continue;
        }
        meter.fill(&mut unit);
        let unit = Bytes::copy_from_slice(&unit);
        for at in (0..UNIT_BYTES).step_by(PAYLOAD_BYTES) {
            connection.send_datagram_wait(unit.slice(at..at + PAYLOAD_BYTES)).await?;
            meter.add_sent(1);
        }
    }
    Ok(())
}

async fn ping(connection: &Connection, meter: &Meter, count: usize, pause: Duration) -> Result<()> {
    for _ in 0..count {
        let at = Instant::now();
        connection.send_datagram(Bytes::from_static(&[0; PING_BYTES]))?;
        if let Ok(answer) = timeout(LOOK, connection.read_datagram()).await {
            answer?;
            meter.round_trips.lock().expect("no holder panics").push(at.elapsed());
        }
        sleep(pause).await;
    }
    Ok(())
}

async fn frames_out(connection: &Connection, tap: &AsyncFd<OwnedFd>) -> Result<()> {
    let mut cutter = Cutter::default();
    let mut buffer = vec![0; FRAME_BYTES];
    let mut pieces = Vec::new();
    loop {
        let mut ready = tap.readable().await?;
        let Some(bytes) = take_frame(tap.get_ref(), &mut buffer)? else {
            ready.clear_ready();
            continue;
        };
        cutter.cut(&buffer[..bytes], |piece| {
            pieces.push(Bytes::copy_from_slice(piece));
            Ok(())
        })?;
        for piece in pieces.drain(..) {
            connection.send_datagram_wait(piece).await?;
        }
    }
}

/// Until the connection ends, as it does when the other end stops first.
async fn frames_in(connection: &Connection, tap: &AsyncFd<OwnedFd>) {
    let mut joiner = Joiner::default();
    while let Ok(piece) = connection.read_datagram().await {
        if let Some(frame) = joiner.join(&piece) {
            give_frame(tap.get_ref(), frame);
        }
    }
}

/// Receives until the connection ends.
async fn take(connection: &Connection, meter: &Meter) {
    while let Ok(datagram) = connection.read_datagram().await {
        match datagram.len() {
            PAYLOAD_BYTES => {
                let mut arrivals = Arrivals::default();
                arrivals.add(&datagram);
                meter.add_received(arrivals);
            }
            PING_BYTES => drop(connection.send_datagram(datagram)),
            _ => {}
        }
    }
}
