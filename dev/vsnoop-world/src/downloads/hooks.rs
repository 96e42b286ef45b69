//! The port's maps and records, as the splitter's decisions use them.

use anyhow::{Result, bail};
use vsnoop_flow::split::{Candidate, Record, split_key};
use vsnoop_flow::types::*;
use vsnoop_hold::{Connections, delete_flow_if, mark_reset};
use vsnoop_splitter::Hooks;

use super::sockets;
use crate::host::{Vm, bytes_of};

/// A port while its splitter runs.
pub struct PortHooks<'a>(pub &'a mut Vm);

/// A call of the splitter; false: it was killed, and its calls have no effect.
fn is_alive() -> bool {
    sockets::call(|_| Ok(())).is_ok()
}

fn alive() -> Result<()> {
    if !is_alive() {
        bail!("it was killed")
    }
    Ok(())
}

impl Hooks for PortHooks<'_> {
    fn take_records(&mut self) -> Vec<Record> {
        if !is_alive() {
            return Vec::new();
        }
        let records = self.0.port.map_mut("split_ring").take_records();
        let read = |bytes: &Vec<u8>| Record::from_bytes(bytes).expect("a whole record");
        records.iter().map(read).collect()
    }

    fn candidate(&mut self, key: &flow_key) -> Result<Option<Candidate>> {
        alive()?;
        let found = self.0.port.value::<split_candidate>("split_candidates", bytes_of(key));
        Ok(found.map(|candidate| Candidate(*candidate)))
    }

    fn split_flows(&mut self) -> Vec<(flow_key, split_flow)> {
        self.0.port.entries("split_flows")
    }

    fn split_flow(&mut self, key: &flow_key) -> Result<Option<split_flow>> {
        alive()?;
        let found = self.0.port.value::<split_flow>("split_flows", bytes_of(&split_key(key)));
        Ok(found.map(|flow| *flow))
    }

    fn moves(&mut self) -> u64 {
        self.0.port.split_port().moves
    }

    fn change(&mut self, mut change: split_change) -> Result<split_change> {
        alive()?;
        self.0.port.now = self.0.now;
        self.0.port.change_split(&mut change);
        Ok(change)
    }

    fn turn_on(&mut self, is_on: bool) {
        if is_alive() {
            self.0.port.split_port().is_on = is_on.into();
        }
    }

    fn drain(&mut self) {
        if is_alive() {
            self.0.port.split_port().is_on = SPLIT_DRAINS;
        }
    }

    fn extend_late(&mut self, now_ns: u64, until_ns: u64) {
        if is_alive() {
            let port = self.0.port.split_port();
            port.epoch += u32::from(port.late_until_ns <= now_ns);
            port.late_until_ns = port.late_until_ns.max(until_ns);
        }
    }

    fn starved_ns(&mut self) -> u64 {
        self.0.state().starved_ns
    }

    fn change_totals(&mut self, change: impl FnOnce(&mut split_totals)) {
        if is_alive() {
            change(&mut self.0.port.split_port().totals);
        }
    }

    fn may_split(&mut self) -> bool {
        let policy = self.0.policy();
        policy.downloads != 0 && policy.run == port_run::PORT_ACCELERATE
    }

    fn policy(&mut self) -> Result<policy> {
        alive()?;
        Ok(*self.0.policy())
    }

    fn congestion_control(&mut self) -> Result<Option<String>> {
        Ok(None)
    }

    fn flow(&mut self, key: &flow_key) -> Result<Option<flow>> {
        alive()?;
        Ok(Vm::flow(self.0, key).map(|flow| *flow))
    }

    fn delete_flow(&mut self, key: &flow_key) -> Result<()> {
        alive()?;
        let Ok(_) = delete_flow_if(self.0, key, |_| true);
        Ok(())
    }

    fn rejoin(&mut self, key: &flow_key, ends: &rejoined, now_ns: u64) -> Result<()> {
        alive()?;
        if let Some(mut flow) = Vm::flow(self.0, key).map(|flow| *flow) {
            vsnoop_flow::rejoin(&mut flow, ends, now_ns);
            let Ok(_) = self.0.replace(key, &flow);
        }
        Ok(())
    }

    fn mark_reset(&mut self, key: &flow_key, seen: &flow, now_ns: u64) -> Result<()> {
        alive()?;
        let Ok(_) = mark_reset(self.0, key, seen, now_ns);
        Ok(())
    }

    fn count_reset(&mut self, why: reset_reason::Type, flows: u64, bytes: u64) -> Result<()> {
        alive()?;
        let Ok(()) = Connections::count_reset(self.0, why, flows, bytes);
        Ok(())
    }
}
