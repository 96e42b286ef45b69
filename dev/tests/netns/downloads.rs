//! Split connections (`--downloads on`): what reaches an end without going by its socket.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use vsnoop_bpf::Port;
use vsnoop_bpf::split::SplitPort;
use vsnoop_testbed::relay::Faults;
use vsnoop_testbed::topology::{Family, PORT, Side, Topology};

use crate::attached::{self, Attached};
use crate::case::{Case, SHARING_A_CORE};
use crate::pair::Pair;
use crate::{FAMILIES, trial};

/// The VM sends this much in one download.
const BYTES: u64 = 20_000_000;
/// After these it is split, if it could be.
const FIRST_BYTES: u64 = 500_000;
/// The client sends this much meanwhile.
const UPLOADED_BYTES: u64 = 200_000;
const MOST_TRIES: usize = 50;
/// The VM counts as late for the whole test.
const FOR_EVER_NS: u64 = u64::MAX / 2;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, families) in FAMILIES {
        for (whose, towards) in [("client", Side::Vm), ("vm", Side::Client)] {
            trials.push(trial(format!("downloads::fragments_of_the_{whose}_{name}"), move || {
                fragments(families[0], towards)
            }));
        }
    }
    trials
}

/// A download that is split, of which the first bytes have arrived.
struct Download {
    pair: Pair,
    sending: JoinHandle<Result<()>>,
}

impl Download {
    fn begin(topology: &Topology, family: Family) -> Result<Self> {
        let mut pair = Pair::connect(topology, family)?;
        let mut sender = pair.vm.twin()?;
        let sending = thread::spawn(move || sender.send(BYTES));
        pair.client.receive(FIRST_BYTES)?;
        Ok(Self { pair, sending })
    }

    /// One that is split.
    fn split(topology: &Topology, attached: &Attached<'_>, family: Family) -> Result<Self> {
        let host = &topology.host;
        let index = host.run(|| Ok(nix::net::if_::if_nametoindex(PORT)?))?;
        let maps = SplitPort::open(&Port::open(host.inode()?, index)?)?;
        attached.wait_until("the splitter works", || Ok(maps.counters().is_on == 1))?;
        maps.extend_late(0, FOR_EVER_NS);
        for _ in 0..MOST_TRIES {
            let download = Self::begin(topology, family)?;
            if !maps.split_flows().is_empty() {
                return Ok(download);
            }
            download.end()?;
        }
        bail!("of {MOST_TRIES} downloads none was split: {:?}", maps.counters())
    }

    /// Beside it the client sends something.
    fn upload(&mut self) -> Result<()> {
        let (mut client, vm) = (self.pair.client.twin()?, &mut self.pair.vm);
        let sending = thread::spawn(move || client.send(UPLOADED_BYTES));
        vm.receive(UPLOADED_BYTES).context("of the client")?;
        joined(sending)
    }

    fn end(mut self) -> Result<()> {
        self.pair.client.receive(BYTES - FIRST_BYTES).context("of the VM")?;
        joined(self.sending)
    }
}

fn joined(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A router on the way, or a VM behind another one, cuts packets.
fn fragments(family: Family, towards: Side) -> Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let case = Case {
        options: &["--downloads", "on"],
        hold: Some("64M"),
        network: Faults { delay: Duration::from_millis(5), ..Faults::default() },
        ..Case::default()
    };
    let topology = case.build()?;
    let mut attached = case.attach(&topology)?;
    let mut download = Download::split(&topology, &attached, family)?;
    let cut = Faults { fragment_bytes: Some(512), data_only: true, ..Faults::default() };
    match towards {
        Side::Vm => ensure!(topology.set_network_faults(towards, cut), "no network relay"),
        Side::Client => {
            topology.set_guest_faults(towards, Faults { freeze: SHARING_A_CORE, ..cut });
        }
    }
    download.upload().with_context(|| attached.describe())?;
    download.end().with_context(|| attached.describe())?;
    attached.until_memory_is_free()?;
    attached.ensure_no_reset()?;
    attached.detach()
}
