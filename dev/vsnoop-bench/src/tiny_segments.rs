//! Measures what a VM that sends super-packets of tiny segments (`gso_size` 1) costs the other VMs
//! of its host: the share of echoes that another VM loses to a VM of the same peer.
//!
//! ```text
//! [VM]-----+--[host 0]--link--[host 1]--[VM]
//! [hostile]+  31 Mb/s, 60,000 segments in each super-packet
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use vsnoop_lab::results::Figure;
use vsnoop_packet::testing::SegmentBuilder;
use vsnoop_testbed::hosts::{Network, Plan, inner_v4};
use vsnoop_testbed::raw_vm::{ATTACKER, OTHER, introduce, raw_vm, send_with};

use crate::figures::{figure, say};
use crate::stage::PREFIX;

const ECHOES: u16 = 300;
const SEGMENT_BYTES: u16 = 1;
const PAYLOAD_BYTES: usize = 60_000;
/// Between two super-packets: 31 Mb/s.
const PAUSE: Duration = Duration::from_micros(15_500);

pub fn measure() -> Result<Vec<Figure>> {
    let network = Network::up(Plan { prefix: PREFIX, dead_after: None, ..Plan::default() })?;
    let [a, b] = &network.hosts[..] else { unreachable!("two hosts") };
    let (hostile, other) = (raw_vm(a, "bad")?, raw_vm(b, "raw")?);
    introduce(&hostile, &other, ATTACKER)?;
    introduce(&other, &hostile, OTHER)?;
    let (header, mut packet) =
        SegmentBuilder { payload: PAYLOAD_BYTES, ..SegmentBuilder::default() }
            .partial(Some(SEGMENT_BYTES));
    packet[..6].copy_from_slice(&OTHER);
    packet[6..12].copy_from_slice(&ATTACKER);
    let ends = AtomicBool::new(false);
    let echo = || a.vms[0].ping(inner_v4(1, 0), ECHOES);
    echo()?;
    let answered = std::thread::scope(|scope| {
        let sending = scope.spawn(|| -> Result<u64> {
            let mut sent = 0;
            while !ends.load(Ordering::Relaxed) {
                // The tap may have no room.
                sent += u64::from(send_with(&hostile, header, &packet).is_ok());
                std::thread::sleep(PAUSE);
            }
            Ok(sent)
        });
        let answered = echo().map(|times| times.len());
        ends.store(true, Ordering::Relaxed);
        let sent = sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        ensure!(sent > 0, "no super-packet was sent");
        answered
    })?;
    let loss = 1.0 - answered as f64 / f64::from(ECHOES);
    say(&format!(
        "beside super-packets of one-byte segments another VM loses {loss:.3} of its echoes"
    ));
    Ok(vec![figure("other_vm_loss_beside_gso1", loss, "", "lower")])
}
