//! The hook that diverts, in the running kernel: which frames go into the link, and when.
//!
//! Frames are given to it by BPF_PROG_TEST_RUN on a tap in a network namespace of the test's own;
//! that diverted ones come out of the link's tap is tested with whole hosts
//! (dev/tests/netns/divert).

use std::ffi::CString;
use std::process::Command;

use etherparse::PacketBuilder;
use libtest_mimic::{Arguments, Failed, Trial};
use vsnoop_divert::{Action, Diversion, Error, Rule, RuleCounters, Sources};

/// Verdicts.
const NEXT: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

fn main() {
    let arguments = Arguments::from_args();
    let tests: [(&str, fn()); 10] = [
        ("the_verifier_accepts_the_hook", the_verifier_accepts_the_hook),
        ("the_longest_prefix_decides", the_longest_prefix_decides),
        (
            "a_prefix_matches_its_own_address_family_only",
            a_prefix_matches_its_own_address_family_only,
        ),
        ("unroutable_packets_are_not_diverted", unroutable_packets_are_not_diverted),
        ("fragments_are_diverted", fragments_are_diverted),
        ("damaged_and_random_frames_pass", damaged_and_random_frames_pass),
        ("a_rule_says_what_happens_while_the_link_is_down", while_the_link_is_down),
        ("forged_sources_are_not_diverted", forged_sources_are_not_diverted),
        ("a_link_whose_tap_is_gone_is_down", a_link_whose_tap_is_gone_is_down),
        ("new_rules_keep_what_their_prefixes_have_counted", new_rules_keep_counts),
    ];
    // SAFETY: no arguments, no effect.
    let root = unsafe { libc::geteuid() } == 0;
    let trials = tests.into_iter().map(|(name, test)| {
        let trial = Trial::test(name, move || {
            // A thread of its own, to be put into a namespace of its own.
            std::thread::spawn(test).join().map_err(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
                Failed::from(text.unwrap_or_else(|| "panicked".into()))
            })
        });
        if root { trial } else { trial.with_kind("skipped: needs root").with_ignored_flag(true) }
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("run ip");
    assert!(status.success(), "ip {arguments}");
}

fn index(name: &str) -> u32 {
    let name = CString::new(name).expect("no NUL");
    // SAFETY: a C string that outlives the call.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

fn rule(prefix: &str, action: Action) -> Rule {
    Rule { prefix: prefix.parse().expect("a prefix"), action }
}

/// A VM's tap and a link's, in a namespace that ends with the calling thread; the hook on the
/// first.
fn attached(rules: &[Rule]) -> Diversion {
    attached_with(rules, Sources::default())
}

fn attached_with(rules: &[Rule], sources: Sources) -> Diversion {
    // SAFETY: moves only the calling thread, which runs nothing but this test.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "cannot make a network namespace");
    for tap in ["vm0", "link0"] {
        ip(&format!("tuntap add dev {tap} mode tap vnet_hdr"));
        ip(&format!("link set {tap} up"));
    }
    Diversion::attach(index("vm0"), index("link0"), rules, sources)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Attaches the rules for a link that is up.
fn up(rules: &[Rule]) -> Diversion {
    let diversion = attached(rules);
    diversion.set_up(true).expect("set it up");
    diversion
}

const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const VM: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn v4(from: [u8; 4], to: [u8; 4], ttl: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(VM, ROUTER).ipv4(from, to, ttl).udp(7, 7);
    builder.write(&mut frame, b"data").expect("build a frame");
    frame
}

fn to_v4(to: [u8; 4]) -> Vec<u8> {
    v4([10, 1, 0, 2], to, 64)
}

fn v6_address(text: &str) -> [u8; 16] {
    text.parse::<std::net::Ipv6Addr>().expect("an address").octets()
}

fn v6(from: &str, to: &str, hop_limit: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(VM, ROUTER);
    let builder = builder.ipv6(v6_address(from), v6_address(to), hop_limit).udp(7, 7);
    builder.write(&mut frame, b"data").expect("build a frame");
    frame
}

fn to_v6(to: &str) -> Vec<u8> {
    v6("fd00:1::2", to, 64)
}

fn everything() -> [Rule; 2] {
    ["0.0.0.0/0", "::/0"].map(|prefix| rule(prefix, Action::DivertOrPass))
}

fn the_verifier_accepts_the_hook() {
    let verified = up(&everything()).verified_instructions().expect("the program");
    // The kernel's bound is a million.
    assert!((1..1_000_000).contains(&verified), "{verified} instructions");
    println!("{verified} instructions verified");
}

fn the_longest_prefix_decides() {
    let mut diversion = up(&[
        rule("10.2.0.0/16", Action::DivertOrPass),
        rule("10.2.3.0/24", Action::Never),
        rule("10.2.3.4/32", Action::DivertOrDrop),
        rule("fd00:2::/32", Action::DivertOrPass),
        rule("fd00:2:3::/48", Action::Never),
        rule("fd00:2:3::4/128", Action::DivertOrDrop),
    ]);
    for (frame, verdict, what) in [
        (to_v4([10, 2, 9, 9]), REDIRECT, "the short prefix"),
        (to_v4([10, 2, 3, 5]), NEXT, "an exception"),
        (to_v4([10, 2, 3, 4]), REDIRECT, "an exception from that"),
        (to_v4([10, 3, 3, 4]), NEXT, "no prefix"),
        (to_v6("fd00:2:9::9"), REDIRECT, "the short prefix, IPv6"),
        (to_v6("fd00:2:3::5"), NEXT, "an exception, IPv6"),
        (to_v6("fd00:2:3::4"), REDIRECT, "an exception from that, IPv6"),
        (to_v6("fd00:3::4"), NEXT, "no prefix, IPv6"),
    ] {
        assert_eq!(diversion.run_hook(&frame).expect("run"), verdict, "{what}");
    }
    let counters = diversion.read_counters().expect("counters");
    let packets: Vec<_> = counters.iter().map(|(_, counted)| counted.packets).collect();
    assert_eq!(packets, [1, 0, 1, 1, 0, 1]);
    assert_eq!(counters[0].1.bytes, to_v4([10, 2, 9, 9]).len() as u64);
}

fn forged_sources_are_not_diverted() {
    let remote = [10, 2, 0, 1];
    let [pass, drop] = [Action::DivertOrPass, Action::DivertOrDrop];
    let rules = [rule("10.2.0.0/16", pass), rule("10.3.0.0/16", drop), rule("::/0", pass)];
    let prefix = |text: &str| text.parse().expect("a prefix");
    let sources =
        Sources { macs: vec![VM], prefixes: vec![prefix("10.1.0.2/32"), prefix("fd00:1::/64")] };
    let mut diversion = attached_with(&rules, sources);
    diversion.set_up(true).expect("set it up");
    let mut other_mac = to_v4(remote);
    other_mac[11] ^= 1;
    for (frame, verdict, what) in [
        (to_v4(remote), REDIRECT, "the VM's own"),
        (to_v6("fd00:2::1"), REDIRECT, "the VM's own, IPv6"),
        (v4([10, 1, 0, 3], remote, 64), NEXT, "another address"),
        (v4([10, 1, 0, 3], [10, 3, 0, 1], 64), DROP, "another address, where nothing may pass"),
        (v6("fd00:3::2", "fd00:2::1", 64), NEXT, "another address, IPv6"),
        (other_mac, NEXT, "another MAC address"),
    ] {
        assert_eq!(diversion.run_hook(&frame).expect("run"), verdict, "{what}");
    }
    let counters = diversion.read_counters().expect("counters");
    let forged: Vec<_> = counters.iter().map(|(_, counted)| counted.forged).collect();
    let packets: Vec<_> = counters.iter().map(|(_, counted)| counted.packets).collect();
    assert_eq!((forged, packets), (vec![2, 1, 1], vec![1, 0, 1]));
}

fn a_prefix_matches_its_own_address_family_only() {
    let mut diversion = up(&[rule("::/0", Action::DivertOrPass)]);
    assert_eq!(diversion.run_hook(&to_v4([10, 2, 0, 1])).expect("run"), NEXT);
    diversion.set_rules(&[rule("0.0.0.0/0", Action::DivertOrPass)]).expect("other rules");
    assert_eq!(diversion.run_hook(&to_v6("fd00:2::1")).expect("run"), NEXT);
    assert_eq!(diversion.run_hook(&to_v4([10, 2, 0, 1])).expect("run"), REDIRECT);
}

/// Everything is to be diverted; these are not.
fn unroutable_packets_are_not_diverted() {
    let mut diversion = up(&everything());
    let vm = [10, 1, 0, 2];
    let remote = [10, 2, 0, 1];
    let mut frames: Vec<(String, Vec<u8>)> = Vec::new();
    for to in [
        [224, 0, 0, 1],
        [239, 1, 2, 3],
        [255, 255, 255, 255],
        [169, 254, 169, 254],
        [127, 0, 0, 1],
        [0, 0, 0, 0],
    ] {
        frames.push((format!("to {to:?}"), v4(vm, to, 64)));
    }
    for from in [[0, 0, 0, 0], [169, 254, 1, 1]] {
        frames.push((format!("from {from:?}"), v4(from, remote, 64)));
    }
    for ttl in [0, 1] {
        frames.push((format!("TTL {ttl}"), v4(vm, remote, ttl)));
        frames.push((format!("hop limit {ttl}"), v6("fd00:1::2", "fd00:2::1", ttl)));
    }
    for (from, to) in [
        ("fd00:1::2", "fe80::1"),
        ("fd00:1::2", "ff02::1"),
        ("fd00:1::2", "ff0e::1"),
        ("fd00:1::2", "::1"),
        ("fe80::2", "fd00:2::1"),
        ("::", "fd00:2::1"),
    ] {
        frames.push((format!("{from} to {to}"), v6(from, to, 255)));
    }
    for kind in 133..=137 {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2(VM, ROUTER);
        let builder = builder.ipv6(v6_address("fd00:1::2"), v6_address("fd00:1::1"), 255);
        let builder = builder.icmpv6_raw(kind, 0, [0; 4]);
        builder.write(&mut frame, &[0; 16]).expect("build a frame");
        frames.push((format!("neighbour discovery {kind}"), frame));
    }
    for mac in [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]] {
        let mut frame = to_v4(remote);
        frame[..6].copy_from_slice(&mac);
        frames.push((format!("to MAC {mac:x?}"), frame));
    }
    for ether_type in [0x8100u16, 0x88a8] {
        let mut frame = to_v4(remote);
        frame.splice(12..12, [ether_type.to_be_bytes(), [0, 5]].concat());
        frames.push((format!("with a tag {ether_type:x}"), frame));
    }
    let mut arp = to_v4(remote);
    arp[12..14].copy_from_slice(&0x0806u16.to_be_bytes());
    frames.push(("ARP".into(), arp));
    for (what, frame) in frames {
        assert_eq!(diversion.run_hook(&frame).expect("run"), NEXT, "{what}");
    }
    // Echo requests are no neighbour discovery, and the hook does divert.
    let mut echo = Vec::new();
    PacketBuilder::ethernet2(VM, ROUTER)
        .ipv6(v6_address("fd00:1::2"), v6_address("fd00:2::1"), 64)
        .icmpv6_echo_request(1, 1)
        .write(&mut echo, &[])
        .expect("build a frame");
    for frame in [echo, v4(vm, remote, 2)] {
        assert_eq!(diversion.run_hook(&frame).expect("run"), REDIRECT);
    }
}

fn fragments_are_diverted() {
    let mut diversion = up(&everything());
    for offset_and_flags in [0x2000u16, 0x00b9] {
        let mut frame = to_v4([10, 2, 0, 1]);
        frame[20..22].copy_from_slice(&offset_and_flags.to_be_bytes());
        assert_eq!(diversion.run_hook(&frame).expect("run"), REDIRECT);
    }
    let mut frame = to_v6("fd00:2::1");
    frame[20] = 44;
    assert_eq!(diversion.run_hook(&frame).expect("run"), REDIRECT);
}

fn damaged_and_random_frames_pass() {
    let mut diversion = up(&everything());
    let wrong_version = |mut frame: Vec<u8>, version: u8| {
        frame[14] = version << 4 | 5;
        frame
    };
    for frame in [wrong_version(to_v4([10, 2, 0, 1]), 6), wrong_version(to_v6("fd00:2::1"), 4)] {
        assert_eq!(diversion.run_hook(&frame).expect("run"), NEXT, "{frame:x?}");
    }
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..20_000 {
        let length = random.usize(14..120);
        let mut frame: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
        // In this way the kernel runs no program on an IP header that is cut.
        let ether_type = random.choice([[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00]]);
        if let Some(ether_type) = ether_type.filter(|_| length > 14 + 40) {
            frame[12..14].copy_from_slice(&ether_type);
        }
        let is_ip = matches!(frame[12..14], [0x08, 0x00] | [0x86, 0xdd]);
        match diversion.run_hook(&frame).expect("run") {
            NEXT => {}
            verdict => assert!(is_ip && verdict == REDIRECT, "verdict {verdict} of {frame:x?}"),
        }
    }
}

fn while_the_link_is_down() {
    let mut diversion = attached(&[
        rule("10.2.0.0/16", Action::DivertOrPass),
        rule("10.3.0.0/16", Action::DivertOrDrop),
    ]);
    let (or_pass, or_drop) = (to_v4([10, 2, 0, 1]), to_v4([10, 3, 0, 1]));
    let verdicts = |diversion: &mut Diversion| {
        [&or_pass, &or_drop].map(|frame| diversion.run_hook(frame).expect("run the hook"))
    };
    assert_eq!(verdicts(&mut diversion), [NEXT, DROP], "not yet up");
    diversion.set_up(true).expect("up");
    assert_eq!(verdicts(&mut diversion), [REDIRECT, REDIRECT]);
    diversion.set_up(false).expect("down");
    assert_eq!(verdicts(&mut diversion), [NEXT, DROP], "down again");
    for (rule, counted) in diversion.read_counters().expect("counters") {
        assert_eq!((counted.packets, counted.missed), (1, 2), "{rule:?}");
    }
}

fn a_link_whose_tap_is_gone_is_down() {
    let mut diversion = up(&everything());
    let frame = to_v4([10, 2, 0, 1]);
    assert_eq!(diversion.run_hook(&frame).expect("run"), REDIRECT);
    ip("link del link0");
    assert_eq!(diversion.run_hook(&frame).expect("run"), NEXT);
}

fn new_rules_keep_counts() {
    let (stays, goes) = ("10.2.0.0/16", "10.3.0.0/16");
    let mut diversion = up(&[rule(stays, Action::DivertOrPass), rule(goes, Action::DivertOrPass)]);
    let frame = to_v4([10, 2, 0, 1]);
    let bytes = frame.len() as u64;
    for _ in 0..3 {
        diversion.run_hook(&frame).expect("run");
    }
    for round in 1..3 {
        diversion.set_rules(&[rule(stays, Action::DivertOrDrop)]).expect("other rules");
        assert_eq!(diversion.run_hook(&to_v4([10, 3, 0, 1])).expect("run"), NEXT);
        diversion.run_hook(&frame).expect("run");
        let packets = 3 + round;
        let expected = RuleCounters { packets, bytes: packets * bytes, ..RuleCounters::default() };
        let counters = diversion.read_counters().expect("counters");
        assert_eq!(counters, [(rule(stays, Action::DivertOrDrop), expected)]);
    }
    // Host bits do not make a prefix another one.
    let twice = [rule(stays, Action::Never), rule("10.2.3.4/16", Action::DivertOrPass)];
    assert!(matches!(diversion.set_rules(&twice), Err(Error::TwoRules { .. })));
    assert_eq!(diversion.run_hook(&frame).expect("run"), REDIRECT, "the rules before do not hold");
}
