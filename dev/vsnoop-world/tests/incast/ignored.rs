//! The hooks leave out work for most ACKs of a VM; it would change nothing.

use fastrand::Rng;
use vsnoop_flow::incast;

use crate::case::*;

/// How many ACKs of the VM may be ignored, and of how many, among flows of one port with random
/// traffic.
fn ignored(flows: usize) -> (usize, usize) {
    const EVENTS: usize = 4_000;
    let mut rng = Rng::with_seed(flows as u64);
    let mut c = IncastCase::with(flows);
    for id in 0..flows {
        c.vm(id, 100);
    }
    let mut ignored = 0;
    for _ in 0..EVENTS {
        let id = rng.usize(0..flows);
        let now = c.wait(rng.u64(1..60_000)).now;
        c.advance_time(now);
        let vm = c.of_vm(id, 0);
        let (f, u, port) = (*c.f(id), *c.u(), *c.p());
        if incast::ignores(&f, &u, &vm) {
            let mut after = (f, u, port);
            assert!(!incast::answer(&mut after.0, &mut after.1, &mut after.2, &vm, now));
            assert_eq!(after, (f, u, port));
            ignored += 1;
        }
        if rng.bool() {
            c.vm(id, if rng.u32(0..20) == 0 { 100 } else { 0 });
            continue;
        }
        let room = f.adv_edge.diff(f.incast.received).max(0) as u32;
        let len = [MSS, MSS, 4 * MSS, rng.u32(1..MSS)][rng.usize(0..4)].min(room);
        if len > 0 {
            c.data(id, len);
        }
    }
    (ignored, EVENTS)
}

#[test]
fn an_ack_that_is_ignored_would_change_nothing() {
    for flows in [1, 5, 60] {
        let (ignored, all) = ignored(flows);
        println!("{flows} flows: {ignored} of {all}");
        assert!(ignored > all / 10 && ignored < all, "{ignored} of {all}");
    }
}
