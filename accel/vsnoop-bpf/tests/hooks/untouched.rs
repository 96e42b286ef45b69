//! Frames that the hooks do not understand.

use vsnoop_bpf::Hook;

use crate::scene::{Attached, NEXT, ahead, of_vm};

/// Well-formed frames with one thing wrong.
pub fn damaged_frames_pass_untouched() {
    let port = Attached::active();
    ahead(&port);
    let good = of_vm(500, 4000, 7000, &[], b"0123456789");
    let mut frames = Vec::new();
    let mut with = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        frames.push((what.to_owned(), frame));
    };
    with("an IP length beyond the frame", &|f| f[16..18].copy_from_slice(&9000u16.to_be_bytes()));
    with("an IP length below its header", &|f| f[16..18].copy_from_slice(&19u16.to_be_bytes()));
    with("an IP length below TCP's header", &|f| f[16..18].copy_from_slice(&30u16.to_be_bytes()));
    with("an IP header that is too short", &|f| f[14] = 0x44);
    with("IP options", &|f| f[14] = 0x46);
    with("IP version 7", &|f| f[14] = 0x75);
    with("a first fragment", &|f| f[20] = 0x20);
    with("a later fragment", &|f| f[21] = 0x10);
    with("a TCP header that is too short", &|f| f[46] = 0x40);
    with("a TCP header beyond the packet", &|f| f[46] = 0xf0);
    with("three VLAN tags", &|f| {
        for _ in 0..3 {
            f.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
        }
    });
    with("another protocol", &|f| f[23] = 17);
    with("a wrong IP header checksum", &|f| f[22] ^= 0x10);
    with("a wrong TCP checksum", &|f| f[42] ^= 0x40);
    with("an unknown ethertype", &|f| f[12..14].copy_from_slice(&[0x88, 0xb5]));
    // The kernel itself takes no shorter frame of IPv4 for a test run.
    for length in 34..54 {
        with(&format!("only its first {length} bytes"), &|f| f.truncate(length));
    }
    for (what, frame) in frames {
        for hook in [Hook::ToVm, Hook::FromVm] {
            let (verdict, after) = port.run_hook(hook, &frame, 1).expect("run");
            assert_eq!(verdict, NEXT, "{hook:?} did not pass {what}");
            assert_eq!(after, frame, "{hook:?} changed {what}");
        }
    }
    assert_eq!(port.flows().expect("flows").len(), 1, "a damaged frame made a flow");
}

pub fn random_frames_pass_untouched() {
    let port = Attached::active();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let mut frame = of_vm(random.u32(..), random.u32(..), random.u16(..), &[], &[0; 60]);
        for _ in 0..random.usize(1..20) {
            let at = random.usize(0..frame.len());
            frame[at] = random.u8(..);
        }
        frame.truncate(random.usize(54..=frame.len()));
        let hook = if random.bool() { Hook::ToVm } else { Hook::FromVm };
        let (verdict, after) = port.run_hook(hook, &frame, 1).expect("run");
        // No flow is ahead of its VM, so that nothing may be held back or changed.
        assert_eq!(verdict, NEXT, "{hook:?}: {frame:02x?}");
        assert_eq!(after.len(), frame.len(), "{hook:?}: {frame:02x?}");
        let changed: Vec<usize> = (0..frame.len()).filter(|&i| frame[i] != after[i]).collect();
        assert!(changed.is_empty(), "{hook:?} changed {changed:?} of {frame:02x?}");
    }
}
