//! Listeners that accept again.
//!
//! A listener whose accept queue was full takes a few connections as soon as its application
//! accepts, and refuses the rest of what comes at the same moment. For each connection that the VM
//! has confirmed since the last tick, two others of the same listener are attempted: some that the
//! application may have made room for, and no burst. Only such that were attempted before: a new
//! connection may just wait for the VM's CPU.

use std::collections::HashMap;

use vsnoop_flow::types::flow_key;

/// Connections that the engine attempts for each one that the VM has confirmed.
const OTHERS: usize = 2;

/// Address and port of a VM, in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Listener([u8; 16], u16);

impl Listener {
    pub fn of(key: &flow_key) -> Self {
        Self(key.vm_addr, key.vm_port)
    }
}

/// An unconfirmed connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unconfirmed {
    /// When its last attempt began, CLOCK_MONOTONIC.
    pub attempted_ns: u64,
    /// Number of its hold.
    pub number: u32,
    pub listener: Listener,
}

/// Connections that the VM has confirmed since the last tick, by listener.
#[derive(Clone, Debug, Default)]
pub(crate) struct Confirmed(HashMap<Listener, usize>);

impl Confirmed {
    pub fn note(&mut self, listener: Listener) {
        *self.0.entry(listener).or_default() += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the numbers of the holds to attempt, those first whose last attempt is longest ago,
    /// and forgets what was confirmed.
    pub fn choose_others(&mut self, mut waiting: Vec<Unconfirmed>) -> Vec<u32> {
        waiting.sort_unstable();
        let mut confirmed = std::mem::take(&mut self.0);
        confirmed.values_mut().for_each(|count| *count *= OTHERS);
        waiting.retain(|other| match confirmed.get_mut(&other.listener) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        });
        waiting.iter().map(|other| other.number).collect()
    }
}
