//! What carries the frames of a link over UDP: QUIC datagrams, or records of our own.
//!
//! Super-packets of 64 KB, as a guest with offloads sends them, are cut into datagrams of 1400 bytes,
//! carried over a veth between two namespaces by a sender on one core and a receiver on the other,
//! and counted there. Carriers take turns in rounds; a figure is the median over the rounds:
//!
//! - `quinn`: QUIC datagrams by quinn, with several congestion controllers and runtimes ([`quic_tasks`]),
//!   and its state machine alone ([`quic_direct`]);
//! - `sealed`: records under AES-GCM or ChaCha20-Poly1305; `plain`: the same, not sealed ([`records`]).
//!
//! Of each: payload delivered, the share of datagrams lost, cores busy and CPU time for a datagram (of
//! the process, which is both ends; the rate suffers when others use the cores, the CPU time for a
//! datagram hardly), the round trip of a small datagram on the idle path, and how fast a TCP connection
//! is from a tap through the carrier to another tap ([`stream`]).

mod carrier;
mod frames;
mod load;
mod quic;
mod quic_direct;
mod quic_tasks;
mod records;
mod road;
mod round;
mod stream;
mod udp;

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305};
use vsnoop_lab::interrupt;
use vsnoop_lab::results::Figure;
use vsnoop_lab::testbed::bulk::pin;

use carrier::Carrier;
use load::{Load, Meter, PAYLOAD_BYTES};
use quic::Congestion;
use quic_direct::Direct;
use quic_tasks::{Tasks, Threads};
use records::Records;
use road::Road;
use round::{ROUND, START, WARM_UP, cpu_time, roam};
use stream::{Stream, stream};

use crate::figures::{figure, median, say};
use crate::stage::{SENDER_CORE, VM_CORE as RECEIVER_CORE};

const ROUNDS: usize = 5;
const PINGS: Load = Load::Pings { count: 200, pause: Duration::from_millis(2) };

/// What became of one round.
#[derive(Clone, Copy, Debug)]
struct Round {
    gbps: f64,
    lost_percent: f64,
    cores: f64,
    /// Of both ends, for a datagram delivered.
    cpu_ns: f64,
    round_trip_us: f64,
    stream: Stream,
}

pub fn measure() -> Result<Vec<Figure>> {
    let carriers: Vec<(&str, Box<dyn Carrier>)> = vec![
        ("quinn_cubic", Box::new(Tasks::new(Congestion::Cubic, Threads::One)?)),
        ("quinn_bbr", Box::new(Tasks::new(Congestion::Bbr, Threads::One)?)),
        ("quinn", Box::new(Tasks::new(Congestion::None, Threads::One)?)),
        ("quinn_threads", Box::new(Tasks::new(Congestion::None, Threads::Many)?)),
        ("quinn_direct", Box::new(Direct::new(Congestion::None)?)),
        ("sealed_aes128", Box::new(Records::sealed(&AES_128_GCM)?)),
        ("sealed_aes256", Box::new(Records::sealed(&AES_256_GCM)?)),
        ("sealed_chacha20", Box::new(Records::sealed(&CHACHA20_POLY1305)?)),
        ("plain", Box::new(Records::plain())),
    ];
    let road = Road::build()?;
    let mut rounds = vec![Vec::new(); carriers.len()];
    for round in 0..ROUNDS {
        // Who goes first changes from round to round.
        for turn in 0..carriers.len() {
            interrupt::check()?;
            let at = (round + turn) % carriers.len();
            let (name, carrier) = &carriers[at];
            let one =
                one_round(&road, carrier.as_ref()).with_context(|| format!("carrier {name}"))?;
            rounds[at].push(one);
        }
        let line: Vec<String> = carriers
            .iter()
            .zip(&rounds)
            .map(|((name, _), rounds)| {
                let Round { gbps, stream, .. } = rounds[round];
                format!("{name} {gbps:.2} (TCP {:.2})", stream.gbps)
            })
            .collect();
        say(&format!("link round {} of {ROUNDS}, Gb/s: {}", round + 1, line.join(", ")));
    }
    let mut figures = Vec::new();
    for ((name, _), rounds) in carriers.iter().zip(&rounds) {
        let mut add = |metric: &str, value: fn(&Round) -> f64, unit, better| {
            let value = median(rounds.iter().map(value).collect());
            figures.push(figure(&format!("link_{name}_{metric}"), value, unit, better));
        };
        add("gbps", |round| round.gbps, "Gb/s", "higher");
        add("lost_percent", |round| round.lost_percent, "%", "lower");
        add("cores", |round| round.cores, "cores", "lower");
        add("cpu_ns_per_datagram", |round| round.cpu_ns, "ns", "lower");
        add("tcp_gbps", |round| round.stream.gbps, "Gb/s", "higher");
        add("tcp_cpu_ns_per_1400_bytes", |round| round.stream.cpu_ns, "ns", "lower");
        add("round_trip_us", |round| round.round_trip_us, "us", "lower");
    }
    Ok(figures)
}

fn one_round(road: &Road, carrier: &dyn Carrier) -> Result<Round> {
    let meter = Meter::default();
    let (gbps, cores, cpu_ns) = carry(road, carrier, Load::Bulk, &meter, |meter| {
        let started = Instant::now();
        while meter.received.load(SeqCst) == 0 {
            ensure!(started.elapsed() < START, "nothing arrives");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(WARM_UP);
        let (at, cpu, received) = (Instant::now(), cpu_time()?, meter.received.load(SeqCst));
        std::thread::sleep(ROUND);
        let received = meter.received.load(SeqCst) - received;
        let (cpu, time) = (cpu_time()? - cpu, at.elapsed());
        let bits = received as f64 * PAYLOAD_BYTES as f64 * 8.0;
        let cpu_ns = cpu.as_nanos() as f64 / received.max(1) as f64;
        Ok((bits / time.as_secs_f64() / 1e9, cpu.as_secs_f64() / time.as_secs_f64(), cpu_ns))
    })?;
    let (sent, received) = (meter.sent.load(SeqCst), meter.received.load(SeqCst));
    let lost_percent = 100.0 * sent.saturating_sub(received) as f64 / sent.max(1) as f64;

    let meter = Meter::default();
    carry(road, carrier, PINGS, &meter, |_| Ok(()))?;
    let round_trips = meter.round_trips.into_inner().expect("no holder panics");
    ensure!(!round_trips.is_empty(), "no small datagram came back");
    let round_trip_us = median(round_trips.iter().map(|time| time.as_secs_f64() * 1e6).collect());
    let stream = stream(road, carrier).context("a TCP connection through it")?;
    Ok(Round { gbps, lost_percent, cores, cpu_ns, round_trip_us, stream })
}

/// Runs both ends on fresh sockets while `watch` does what it does, then ends a bulk load; pings end
/// by themselves.
fn carry<T>(
    road: &Road,
    carrier: &dyn Carrier,
    load: Load,
    meter: &Meter,
    watch: impl FnOnce(&Meter) -> Result<T>,
) -> Result<T> {
    let (near, far) = road.sockets(carrier.connected())?;
    std::thread::scope(|scope| {
        let on = |core| if carrier.pinned() { pin(core) } else { roam() };
        let receiver =
            scope.spawn(move || on(RECEIVER_CORE).and_then(|()| carrier.receive(far, meter)));
        let sender =
            scope.spawn(move || on(SENDER_CORE).and_then(|()| carrier.send(near, load, meter)));
        let watched = watch(meter);
        meter.stop.store(true, SeqCst);
        let sent = sender.join().map_err(|_| anyhow!("the sender panicked"))?;
        meter.ended.store(true, SeqCst);
        let received = receiver.join().map_err(|_| anyhow!("the receiver panicked"))?;
        sent.context("sender")?;
        received.context("receiver")?;
        watched
    })
}
