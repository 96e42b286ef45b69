//! How incast control does: barrier-synchronised rounds, and long flows.

use crate::sim::*;

fn table(early: bool, limit: u64) {
    println!("queue  N     Mb/s   worst  drops timeouts probes | off: Mb/s timeouts | early {early}");
    for queue in [64u32 << 10, 128 << 10, 256 << 10] {
        for n in [1, 4, 8, 16, 32, 40, 64, 100, 200] {
            let mut line = format!("{:4} {n:4}", queue >> 10);
            for control in [Some(queue), None] {
                let mut sim = Sim::new(Setting { senders: n, queue, control, early, ..Setting::default() });
                let mut rounds = Vec::new();
                for _ in 0..10 {
                    match sim.round(n, 64 << 10, limit) {
                        Some(round) => rounds.push(round),
                        None => break,
                    }
                }
                let mean = (rounds.len() * n * 65536 * 8) as f64
                    / rounds.iter().map(|r| r.ms).sum::<f64>()
                    / 1e3;
                let worst = rounds.iter().map(|r| r.mbps).fold(9999.0, f64::min);
                let late = rounds.iter().filter(|r| r.timeouts + r.probes > 0).count();
                let t = &sim.tally;
                if control.is_some() {
                    line += &format!(
                        " {mean:8.0} {worst:7.0} {:6} {:6} {:6} {late:3}/{} q {:6} g {:6} turns {:6} {:4}",
                        t.drops, t.timeouts, t.probes, rounds.len(), t.queue_max, t.granted_max,
                        sim.host.turns, t.helper_turns
                    );
                } else {
                    line += &format!(" | {mean:8.0} {:6} {late:3}/{}", t.timeouts, rounds.len());
                }
            }
            println!("{line}");
        }
    }
}

#[test]
fn tables() {
    table(true, 5_000 * MS);
    table(false, 5_000 * MS);
}

#[test]
fn trace() {
    for pause_ns in [200 * US, 50 * MS, 500 * MS] {
        for n in [40, 64, 100, 200] {
            let mut sim = Sim::new(Setting { senders: n, pause_ns, ..Setting::default() });
            for _ in 0..4 {
                sim.tally.granted_max = 0;
                sim.tally.queue_max = 0;
                let round = sim.round(n, 64 << 10, 5_000 * MS).unwrap();
                println!("N {n} pause {} ms: {:.0} Mb/s drops {} timeouts {} probes {} granted {} queue {} credit {} helper {}",
                    pause_ns / MS, round.mbps, round.drops, round.timeouts, round.probes,
                    sim.tally.granted_max, sim.tally.queue_max,
                    vsnoop_flow::incast::credit(&sim.host.uplink), sim.tally.helper_turns);
            }
        }
    }
}

#[test]
fn debug1() {
    let mut sim = Sim::new(Setting { senders: 64, ..Setting::default() });
    for _ in 0..2 {
        sim.tally.granted_max = 0;
        let round = sim.round(64, 64 << 10, 5_000 * MS);
        println!("{round:?} {:?} {}", sim.host.uplink, sim.tally.granted_max);
        for f in &sim.host.flows {
            let f = f.unwrap();
            print!("{}/{}/{} ", f.incast.edge.diff(f.incast.received), f.incast.epoch, f.incast.waiting);
        }
        println!("line {:?}", sim.host.line);
        sim.watch = true;
    }
}
