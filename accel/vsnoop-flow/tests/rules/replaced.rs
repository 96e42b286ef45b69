//! A SYN or SYN-ACK of the VM with the key of a live record: only the sender can end the connection
//! of which bytes are outstanding.

use vsnoop_flow::{embryo, segment, types::*};

use crate::case::*;

/// ISN of another connection, for the VM and for the sender.
const OTHER: u32 = 0x1234_5678;

/// The embryo of another SYN-ACK of the VM to the SYN of the same connection.
fn of_another_socket() -> embryo {
    vsnoop_flow::embryo_of_vm(&segment { seq: seq_of(OTHER), ..vm_syn(ACK) })
}

/// The embryo of a SYN-ACK of the VM to a new SYN of the sender.
fn of_a_new_connection() -> embryo {
    let syn_ack = segment { seq: seq_of(OTHER), ack: seq_of(OTHER + 1), ..vm_syn(ACK) };
    vsnoop_flow::embryo_of_vm(&syn_ack)
}

fn seq_of(v: u32) -> vsnoop_flow::seq {
    vsnoop_flow::seq::new(v)
}

#[test]
fn a_live_record_with_bytes_outstanding_is_not_over_and_one_that_was_reset_is() {
    let mut c = FlowCase::holding();
    assert!(!vsnoop_flow::is_over(&c.f));
    c.f.mode = flow_mode::FLOW_BYPASS as u8;
    assert!(!vsnoop_flow::is_over(&c.f));
    c.f.flags |= FLOW_F_CLOSED as u16;
    assert!(vsnoop_flow::is_over(&c.f));
    let mut c = FlowCase::holding();
    c.f.mode = flow_mode::FLOW_RESET as u8;
    assert!(vsnoop_flow::is_over(&c.f));
}

#[test]
fn what_the_sender_sends_in_its_connection_confirms_no_other() {
    for e in [of_another_socket(), of_a_new_connection()] {
        for c in [FlowCase::holding(), FlowCase::full(), FlowCase::mid_flow()] {
            let next = c.f.next_seq.diff(at(0)) as u32;
            let more = c.data(next, MSS);
            let challenge = segment { ack: vm_at(0), ..c.ack_of_sender(next, 0) };
            let old = c.data(0, 1);
            let beyond = c.data(next + (1 << 30), 1);
            for s in [more, challenge, old, beyond, segment { tcp_flags: RST | ACK, ..more }] {
                assert!(!vsnoop_flow::sender_replaces(&c.f, &e, &s), "{s:?}");
            }
        }
    }
}

#[test]
fn the_senders_ack_of_the_new_isn_ends_the_old_connection() {
    let c = FlowCase::holding();
    let ack = segment { ack: seq_of(OTHER + 1), ..c.data(0, 0) };
    // The sender talks to the other socket after all.
    assert!(vsnoop_flow::sender_replaces(&c.f, &of_another_socket(), &ack));
    // It uses the port again; its first segment may be lost, and the next has data.
    for (offset, len) in [(1, 0), (1, 100), (101, 100)] {
        let s = segment { seq: seq_of(OTHER + offset), len, ..ack };
        assert!(vsnoop_flow::sender_replaces(&c.f, &of_a_new_connection(), &s));
        assert!(!vsnoop_flow::sender_replaces(&c.f, &of_another_socket(), &s));
    }
    // A SYN that it repeats confirms nothing.
    let syn = segment { seq: seq_of(OTHER), tcp_flags: SYN, ..ack };
    assert!(!vsnoop_flow::sender_replaces(&c.f, &of_a_new_connection(), &syn));
}

/// The VM was rebooted, and chooses the same ISN.
#[test]
fn a_new_connection_with_the_old_isn_of_the_vm_is_confirmed_by_the_senders_seq() {
    let c = FlowCase::holding();
    let e = vsnoop_flow::embryo_of_vm(&segment { ack: seq_of(OTHER + 1), ..vm_syn(ACK) });
    let new = segment { seq: seq_of(OTHER + 1), ack: vm_at(0), ..c.data(0, 0) };
    assert!(vsnoop_flow::sender_replaces(&c.f, &e, &new));
    let old = c.data(c.f.next_seq.diff(at(0)) as u32, MSS);
    assert!(!vsnoop_flow::sender_replaces(&c.f, &e, &old));
}

/// The VM opens a connection of the same addresses and ports again.
#[test]
fn the_senders_syn_ack_of_the_vms_new_syn_ends_the_old_connection() {
    let c = FlowCase::holding();
    let e = vsnoop_flow::embryo_of_vm(&segment { seq: seq_of(OTHER), ..vm_syn(0) });
    let answer = segment { ack: seq_of(OTHER + 1), ..sender_syn_ack() };
    assert!(vsnoop_flow::sender_replaces(&c.f, &e, &answer));
    for ack in [vm_at(0), seq_of(OTHER), seq_of(OTHER + 2)] {
        let other = segment { ack, ..answer };
        assert!(!vsnoop_flow::sender_replaces(&c.f, &e, &other), "{ack:?}");
    }
    // Its challenge ACK to that SYN belongs to the old one.
    let challenge = c.ack_of_sender(c.f.next_seq.diff(at(0)) as u32, 0);
    assert!(!vsnoop_flow::sender_replaces(&c.f, &e, &challenge));
}

/// The sender's ACK has taken another path.
#[test]
fn the_vm_alone_ends_no_connection_with_bytes_outstanding() {
    let e = of_a_new_connection();
    let c = FlowCase::holding();
    let new =
        segment { seq: seq_of(OTHER + 1), ack: seq_of(OTHER + 500), ..c.ack_of_vm(0, WINDOW) };
    assert!(!vsnoop_flow::vm_replaces(&c.f, &e, &new));
    let c = FlowCase::accepted();
    assert!(vsnoop_flow::vm_replaces(&c.f, &e, &new));
    assert!(!vsnoop_flow::vm_replaces(&c.f, &e, &c.ack_of_vm(0, WINDOW)));
    let syn_ack = segment { tcp_flags: SYN | ACK, ..new };
    assert!(!vsnoop_flow::vm_replaces(&c.f, &e, &syn_ack));
}

/// The port was attached after the connection had begun, so that there is no record yet.
#[test]
fn an_embryo_of_another_socket_makes_no_record_of_the_vms_connection() {
    let c = FlowCase::accepted();
    for distance in [1, 1_000, 1 << 29] {
        let iss = vm_at(0).add(0u32.wrapping_sub(1 + distance));
        let e = vsnoop_flow::embryo_of_vm(&segment { seq: iss, ..vm_syn(ACK) });
        assert!(vsnoop_flow::flow_opened(&e, &c.ack_of_vm(100, WINDOW), c.now).is_none());
    }
}
