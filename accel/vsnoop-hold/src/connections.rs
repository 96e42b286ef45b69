//! The connections of one port, as user space reads and changes them beside the hooks.

use std::fmt::Display;

use vsnoop_flow::types::{flow, flow_key, flow_mode, reset_reason};

/// The records of a port, and the ways to both ends of its connections.
///
/// Each access to a record is atomic by itself, but for what flow/vm_lease.h names; hooks may
/// change it between two.
pub trait Connections {
    /// Why an access failed.
    type Error: Display;

    /// All flows on record. One that is added or removed meanwhile may be missing.
    fn flows(&mut self) -> Result<Vec<(flow_key, flow)>, Self::Error>;
    /// How many flows there may be.
    fn max_flows(&mut self) -> u32;
    /// The record of one flow.
    fn flow(&mut self, key: &flow_key) -> Result<Option<flow>, Self::Error>;
    /// Takes a record out of the table and returns its last contents.
    fn take(&mut self, key: &flow_key) -> Result<Option<flow>, Self::Error>;
    /// Adds a record; false if there is one.
    fn add(&mut self, key: &flow_key, flow: &flow) -> Result<bool, Self::Error>;
    /// Adds a record or replaces the one that is there.
    fn put(&mut self, key: &flow_key, flow: &flow) -> Result<(), Self::Error>;
    /// Overwrites a record; false if there is none.
    fn replace(&mut self, key: &flow_key, flow: &flow) -> Result<bool, Self::Error>;
    /// Stops handing over for a flow that was reset, whose record names this hold. The engine
    /// notices it within a second, even if this fails.
    fn end_hold(&mut self, number: u32);

    /// Counts connections that user space reset, and their bytes that the VM had not acknowledged.
    fn count_reset(
        &mut self,
        why: reset_reason::Type,
        flows: u64,
        bytes: u64,
    ) -> Result<(), Self::Error>;
    /// Counts a failure of this VM port (host byte order). `now_ns`: CLOCK_MONOTONIC.
    fn note_failure(&mut self, vm_port: u16, now_ns: u64) -> Result<(), Self::Error>;

    /// Counts a connection that user space reset, and whose sender could not be sent a RST.
    fn count_unsent(&mut self) -> Result<(), Self::Error>;

    /// Sends an Ethernet frame, of [`Place::Routed`] an IP packet. An error: it has not left.
    fn send(&mut self, place: Place, frame: &[u8]) -> Result<(), Self::Error>;
}

/// Where a frame enters the network. Interfaces are those of the tap's network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// To the VM, out of the tap.
    ToVm,
    /// In by the tap, as if the VM had sent it.
    FromVm,
    /// Out of another interface, as if the host had sent it.
    OutOf(u32),
    /// In by another interface, up the stack of the host.
    InBy(u32),
    /// Wherever the host routes it.
    Routed,
}

/// Removes a flow's record if `is_due` returns true for it. Returns false if it was kept, or
/// gone already.
///
/// `is_due` is called twice: for the present record, so that busy records are rarely taken out;
/// then for the removed record, which no hook can change. A record that
/// became busy meanwhile is put back. While a record is out, segments for the VM pass and
/// nothing is acknowledged early. The VM's ACK passes as well, or creates another record; if
/// that one begins below the old NEXT_SEQ, it does not cover the bytes between, and the
/// record enters RESET (the helper sends the RSTs).
///
/// One race remains: a hook on another CPU that has looked the record up and not locked it yet,
/// a few instructions later, works on a record that is no longer in the table. If that is
/// `decide_kept()`, one segment is acknowledged early without a record. The segment is in the
/// VM's ring all the same; only a guest that loses this very segment would leave its sender
/// waiting, on a connection that was idle for the time of `is_due` and resumed within those
/// nanoseconds. To close it, the record would have to be marked as dead under its lock first,
/// which needs a BPF program; or the port suspended for an RCU grace period, which costs all
/// its connections more than the risk is worth. If the table fills up while the record is out,
/// an error is returned, and the record is lost.
pub fn delete_flow_if<C: Connections>(
    connections: &mut C,
    key: &flow_key,
    mut is_due: impl FnMut(&flow) -> bool,
) -> Result<bool, C::Error> {
    let Some(flow) = connections.flow(key)? else { return Ok(false) };
    if !is_due(&flow) {
        return Ok(false);
    }
    let Some(mut taken) = connections.take(key)? else { return Ok(false) };
    if is_due(&taken) {
        return Ok(true);
    }
    if connections.add(key, &taken)? {
        return Ok(false);
    }
    let acknowledged = connections.flow(key)?.map_or(taken.vm_seq, |other| other.vm_seq);
    let unknown = taken.next_seq.diff(acknowledged);
    if unknown > 0 {
        taken.mode = flow_mode::FLOW_RESET as u8;
        taken.retired = unknown as u32;
        connections.put(key, &taken)?;
    }
    Ok(false)
}

/// Puts a flow into RESET: the hooks answer later segments of either end with RST.
/// `seen` is the record on which the decision is based; returns false, and does nothing, if the
/// VM has advanced since. `now_ns` (CLOCK_MONOTONIC): the record's lifetime in RESET begins.
///
/// Reading and writing are two accesses, each under the record's lock; changes of the hooks
/// between them are overwritten. None of these breaks the promise:
/// - the VM acknowledges: a healthy connection is reset. Its ACK came within microseconds after
///   seconds of silence;
/// - more is acknowledged early: the connection must be reset all the same; `retired` misses
///   those bytes;
/// - either end sends: the sequence numbers of the first RSTs are out of date, and the
///   hooks answer the next packet with RST;
/// - the connection ends, and its record is removed: nothing is written, and false returned.
///   Only if another connection with the same addresses and ports begins as well, that one is
///   reset.
pub fn mark_reset<C: Connections>(
    connections: &mut C,
    key: &flow_key,
    seen: &flow,
    now_ns: u64,
) -> Result<bool, C::Error> {
    let Some(mut now) = connections.flow(key)? else { return Ok(false) };
    if now.vm_seq != seen.vm_seq || u32::from(now.mode) == flow_mode::FLOW_RESET {
        return Ok(false);
    }
    now.mode = flow_mode::FLOW_RESET as u8;
    now.last_ns = now_ns;
    now.retired = now.next_seq.diff(now.vm_seq).max(0) as u32;
    if !connections.replace(key, &now)? {
        return Ok(false);
    }
    if now.hold != 0 {
        connections.end_hold(now.hold.into());
    }
    Ok(true)
}
