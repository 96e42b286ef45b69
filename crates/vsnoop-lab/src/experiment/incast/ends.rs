//! The two ends of a block's traffic, wherever they are: on threads of the lab, or in guests.

use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use vsnoop_guest::control::{Command, ROUNDS_PORT, Reply};
use vsnoop_guest::rounds::{Receiver, Senders, Stream};
use vsnoop_guest::tcp_counts::TcpCounts;
use vsnoop_testbed::fan_in::{FanIn, sender_address};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::vm::Vm;

use super::connections::{self, Opener, Wanted};
use super::guests::Guests;

/// Connections with both their ends; the receiver closes first.
pub struct Ends<'a> {
    pub receiver: Receiving<'a>,
    _senders: Sending<'a>,
}

pub enum Receiving<'a> {
    Here(Box<Receiver>),
    Guest(GuestEnd<'a>),
}

enum Sending<'a> {
    Here { _senders: Senders },
    Guests { _ends: Vec<GuestEnd<'a>> },
}

/// A guest with connections, until this is dropped.
pub struct GuestEnd<'a> {
    vm: &'a Vm,
    /// Bytes that did not arrive in the last round, by sender.
    missing: Vec<(usize, u64)>,
}

impl<'a> Ends<'a> {
    pub fn open(
        fan_in: &FanIn,
        guests: Option<&'a Guests>,
        wanted: &Wanted,
        stream: &Stream,
    ) -> Result<Self> {
        let Some(guests) = guests else {
            let (from, to) = connections::open(fan_in, wanted)?;
            let senders = Senders::start(0, from, stream.clone())?;
            let receiver = Receiver::new(to, stream.clone(), interrupt::check)?;
            return Ok(Self {
                receiver: Receiving::Here(Box::new(receiver)),
                _senders: Sending::Here { _senders: senders },
            });
        };
        ensure!(wanted.opener == Opener::Vm, "a guest opens its connections itself");
        ensure!(wanted.cap.is_none(), "no guest caps its windows");
        let (receiver, senders) = if guests.senders.is_empty() {
            to_a_guest(fan_in, guests, wanted, stream)?
        } else {
            among_guests(guests, wanted)?
        };
        Ok(Self { receiver: Receiving::Guest(receiver), _senders: senders })
    }
}

fn to_a_guest<'a>(
    fan_in: &FanIn,
    guests: &'a Guests,
    wanted: &Wanted,
    stream: &Stream,
) -> Result<(GuestEnd<'a>, Sending<'a>)> {
    let listeners = connections::listen_at_senders(fan_in, wanted)?;
    let to = listeners.iter().map(|(_, at)| match at {
        SocketAddr::V4(at) => Ok(*at),
        SocketAddr::V6(at) => bail!("a sender listens on {at}"),
    });
    let receiver = GuestEnd::receiver(&guests.receiver, to.collect::<Result<_>>()?, None)?;
    let senders = connections::accept_at_senders(&listeners, wanted)?;
    let senders = Senders::start(0, senders, stream.clone())?;
    Ok((receiver, Sending::Here { _senders: senders }))
}

/// Divides the connections among the sending guests; their numbers differ by at most one.
fn among_guests<'a>(guests: &'a Guests, wanted: &Wanted) -> Result<(GuestEnd<'a>, Sending<'a>)> {
    let congestion_control = wanted.congestion_control.name();
    let (mut ends, mut to) = (Vec::new(), Vec::new());
    let count = guests.senders.len();
    let begins: Vec<_> = (0..=count).map(|guest| wanted.count * guest / count).collect();
    for (guest, vm) in guests.senders.iter().enumerate() {
        let numbers = begins[guest] as u16..begins[guest + 1] as u16;
        let end = GuestEnd { vm, missing: Vec::new() };
        vm.command(&Command::ListenForRounds {
            first: numbers.start,
            count: numbers.len() as u16,
            congestion_control: congestion_control.into(),
        })?;
        to.extend(
            numbers.map(|number| SocketAddrV4::new(sender_address(guest), ROUNDS_PORT + number)),
        );
        ends.push(end);
    }
    // The receiver uses the senders' congestion control, which decides how CE marks are echoed.
    let receiver = GuestEnd::receiver(&guests.receiver, to, Some(congestion_control.into()))?;
    for end in &ends {
        end.vm.command(&Command::AcceptRounds)?;
    }
    Ok((receiver, Sending::Guests { _ends: ends }))
}

impl<'a> GuestEnd<'a> {
    fn receiver(
        vm: &'a Vm,
        to: Vec<SocketAddrV4>,
        congestion_control: Option<String>,
    ) -> Result<Self> {
        let end = Self { vm, missing: Vec::new() };
        vm.command(&Command::OpenRounds { to, congestion_control })?;
        Ok(end)
    }
}

impl Drop for GuestEnd<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.vm.command(&Command::CloseRounds) {
            tracing::warn!("connections stay open: {error:#}");
        }
    }
}

impl Receiving<'_> {
    /// See [`Receiver::round`].
    pub fn round(
        &mut self,
        senders: usize,
        bytes: u64,
        limit: Duration,
    ) -> Result<Option<Duration>> {
        match self {
            Self::Here(receiver) => receiver.round(senders, bytes, limit),
            Self::Guest(end) => {
                let limit_ms = limit.as_millis() as u64;
                match end.vm.command(&Command::Round { senders, bytes, limit_ms })? {
                    Reply::Round { took_ns, missing } => {
                        end.missing = missing;
                        Ok(took_ns.map(Duration::from_nanos))
                    }
                    other => bail!("{} answered a round with {other:?}", end.vm.name()),
                }
            }
        }
    }

    /// See [`Receiver::ask_endlessly`].
    pub fn ask_endlessly(&mut self, number: usize) -> Result<()> {
        match self {
            Self::Here(receiver) => receiver.ask_endlessly(number),
            Self::Guest(end) => end.vm.command(&Command::AskEndlessly { number }).map(drop),
        }
    }

    /// See [`Receiver::take_in_for`].
    pub fn take_in_for(&mut self, duration: Duration) -> Result<Vec<u64>> {
        match self {
            Self::Here(receiver) => receiver.take_in_for(duration),
            Self::Guest(end) => {
                let duration_ms = duration.as_millis() as u64;
                match end.vm.command(&Command::TakeIn { duration_ms })? {
                    Reply::TakenIn { bytes } => Ok(bytes),
                    other => bail!("{} took in {other:?}", end.vm.name()),
                }
            }
        }
    }

    /// Bytes that did not arrive in the last round, by sender.
    pub fn missing(&self) -> Vec<(usize, u64)> {
        match self {
            Self::Here(receiver) => receiver.missing(),
            Self::Guest(end) => end.missing.clone(),
        }
    }
}

/// The TCP counters of a guest's kernel.
pub fn tcp_counts(vm: &Vm) -> Result<TcpCounts> {
    match vm.command(&Command::TcpCounts)? {
        Reply::TcpCounts(counts) => Ok(counts),
        other => bail!("{} counts {other:?} of TCP", vm.name()),
    }
}
