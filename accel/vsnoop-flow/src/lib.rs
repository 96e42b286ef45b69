//! The decision core of vsnoop (flow/), for Rust.
//!
//! [`types`] is generated from the C headers and shared with the BPF programs. The functions here
//! call the C code that the kernel runs, compiled natively. They take the flow's record by
//! exclusive reference, so that no lock is needed. flow/flow.h has an overview of the parts.

/// Generated from flow/*.h; documented there.
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, reason = "C's names")]
#[allow(dead_code, reason = "not every item of the headers is used here")]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, reason = "bindgen wrote it")]
pub mod types {
    include!(concat!(env!("OUT_DIR"), "/flow.rs"));
}

mod decide;
pub mod expiry;
pub mod growth;
pub mod hold;
pub mod incast;
#[cfg(feature = "native-packets")]
pub mod packets;
mod sequence;
pub mod split;
#[cfg(feature = "testing")]
#[allow(missing_docs, reason = "for tests only")]
pub mod testing;

pub use decide::{
    FromVm, Verdict, answer_embryo, continues_passive, decide_and_grant_shared, embryo_of_vm,
    end_vm_lease, ends_at, flow_accepted, flow_mid_flow, flow_opened, from_vm, grant_lease,
    grant_vm_lease, is_bypassed, is_over, is_own_syn, key_hash, learn, lease_covers, may_be_split,
    note_failure, note_not_taken, pass_by_vm_lease, pass_by_vm_lease_shared, rejoin,
    repeated_embryo, repeats_syn, sender_replaces, to_vm, vm_replaces,
};
pub use types::{ack_fields, embryo, flow, flow_key, outcome, policy, port_state, segment, seq};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_record_leaves_room_in_its_element_and_incast_control_takes_a_line() {
        assert_eq!(std::mem::offset_of!(flow, incast), 152);
        assert_eq!(size_of::<flow>(), 216);
    }

    #[test]
    fn sequence_numbers_compare_across_the_wrap() {
        assert_eq!(seq::new(5).diff(seq::new(u32::MAX - 4)), 10);
        assert_eq!(seq::new(u32::MAX).add(2), seq::new(1));
    }
}
