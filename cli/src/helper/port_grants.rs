//! Opens windows of waiting connections that incast control has closed: the rounds of
//! `vsnoop_hold::grants`, at the ports of this host.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use vsnoop_bpf::{GrantQueue, Uplink};
use vsnoop_hold::grants::{PORT_GRANTS, Rounds, grant};
use vsnoop_host::error;
use vsnoop_host::ports::Attached;
use vsnoop_host::system::clock::monotonic_ns;
use vsnoop_host::system::netns::Netns;

/// The grants of one port.
pub struct PortGrants {
    uplink: Uplink,
    queue: GrantQueue,
    name: String,
    netns: u64,
    netns_path: Option<PathBuf>,
    rounds: Rounds,
}

/// Most grants of all ports in one round: some 0.3 ms of the helper's time.
const GRANTS: usize = 64;

/// Serves these ports, starting with another one each time. Returns the time to the next round;
/// `None` without ports.
pub fn serve_all(ports: &mut [&mut PortGrants], first: usize) -> Option<Duration> {
    let mut left = GRANTS;
    let count = ports.len();
    let mut pause = None;
    for at in 0..count {
        let port = &mut ports[(first + at) % count];
        let offered = port.serve_round(left.min(PORT_GRANTS));
        left = left.saturating_sub(offered);
        pause = pause.into_iter().chain([port.round_period()]).min();
    }
    pause
}

impl PortGrants {
    /// The grants of a port with incast control; `known`: the previous state.
    pub fn open_known(attached: &Attached, known: Option<Self>) -> Result<Option<Self>> {
        if attached.meta.uplink == 0 {
            return Ok(None);
        }
        if known.is_some() {
            return Ok(known);
        }
        let Some(uplink) = Uplink::open(attached.meta.netns, attached.meta.uplink)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            uplink,
            queue: attached.port.grant_queue()?,
            name: attached.name.clone(),
            netns: attached.meta.netns,
            netns_path: None,
            rounds: Rounds::new(monotonic_ns()?),
        }))
    }

    fn round_period(&self) -> Duration {
        Duration::from_nanos(self.rounds.period_ns())
    }

    /// A round. Returns how many grants were offered, at most `most`.
    fn serve_round(&mut self, most: usize) -> usize {
        let Self { uplink, queue, name, netns, netns_path, rounds } = self;
        let Ok(now_ns) = monotonic_ns() else { return 0 };
        rounds.serve(&mut &*queue, most, now_ns, |queue, most| {
            // There is rarely credit; shared memory shows that without a system call.
            if !uplink.has_grant(queue.incast(), now_ns) {
                return 0;
            }
            grant_in(*netns, netns_path, queue, most).unwrap_or_else(|error| {
                tracing::debug!("port {name}: {error:#}");
                0
            })
        })
    }
}

fn grant_in(
    netns: u64,
    path: &mut Option<PathBuf>,
    queue: &GrantQueue,
    most: usize,
) -> Result<usize> {
    let netns = Netns::find_again(netns, path).context("its network namespace cannot be found")?;
    Ok(netns.run(|| Ok::<_, error::Error>(grant(&mut &*queue, most)?))?)
}
