//! Kernels that have what vsnoop needs: the hooks are verified, and some of the tests on network
//! namespaces pass. What they do is told where they are.

use anyhow::Result;
use vsnoop_testbed::guest::batch::{Batch, Report};
use vsnoop_testbed::guest::{self, Kernel};
use vsnoop_testbed::workspace;

use crate::LIMIT;
use crate::programs::test_programs;

/// `ip` makes taps, veths and bridges.
const MODULES: [&str; 3] = ["tun", "veth", "bridge"];

/// How many of the tests run on the oldest and the newest kernel; in `make soak` each has all.
pub const FEW: usize = 3;
pub const ALL: usize = 11;

/// Names of tests, and the program and arguments that each runs in the machine.
const TESTS: [(&str, &[&str]); ALL] = [
    ("hooks_are_verified", &["hooks", "the_verifier_accepts"]),
    ("an_ipv4_stream_is_acknowledged_early", &netns("matrix::ipv4_untagged_super_packets")),
    ("hooks_do_their_work", &HOOKS),
    ("a_stream_survives_attaching", &netns("lifecycle::attach_in_mid_stream")),
    ("an_ipv4_stream_goes_through_a_link", &netns("divert::ipv4_between_bridged_hosts")),
    ("what_goes_through_a_link_is_diverted", &["divert"]),
    ("a_stream_survives_detaching", &netns("lifecycle::detach_in_mid_stream")),
    ("an_ipv6_stream_goes_through_a_link", &netns("divert::ipv6_between_routed_hosts")),
    (
        "an_ipv6_stream_in_two_vlans_is_acknowledged_early",
        &netns("matrix::ipv6_double_tagged_mtu_sized_with_checksum_offload"),
    ),
    // This machine's own kernel may filter no VLANs.
    ("a_vm_that_moves_within_a_vlan_is_reset", &["sh", "-c", IN_A_VLAN]),
    ("loss_behind_the_hook_is_mended", &netns("guest::loss_is_mended_mtu_sized")),
];

/// All but what the first test has verified, and many ports, which are the same on each kernel.
const HOOKS: [&str; 5] = ["hooks", "--skip", "the_verifier_accepts", "--skip", "more_ports_than"];

const IN_A_VLAN: &str = "VSNOOP_FILTERS_VLANS=1 faults --exact \
                         moves::a_vm_that_moves_within_a_vlan_is_reset_and_the_next_one_works \
                         --color never";

const fn netns(test: &str) -> [&str; 3] {
    ["netns", "--exact", test]
}

/// Names of the first `N` tests.
pub fn names<const N: usize>() -> Vec<&'static str> {
    TESTS[..N].iter().map(|(name, _)| *name).collect()
}

pub fn run<const N: usize>(kernel: &Kernel) -> Result<Report> {
    let [hooks, divert, netns, faults] = test_programs(["hooks", "divert", "netns", "faults"])?;
    let programs = [
        ("hooks", hooks),
        ("divert", divert),
        ("netns", netns),
        ("faults", faults),
        ("vsnoop", workspace::vsnoop_command()?),
        ("ip", guest::installed("ip", "iproute2")?),
        ("bridge", guest::installed("bridge", "iproute2")?),
    ];
    let plain = |(_, command): &(_, &[_])| [*command, &["--color", "never"]].concat();
    let commands: Vec<_> = TESTS[..N].iter().map(plain).collect();
    let commands: Vec<&[&str]> = commands.iter().map(Vec::as_slice).collect();
    let commands = commands.as_slice();
    Batch { kernel, modules: &MODULES, programs: &programs, files: &[], commands }.run(LIMIT)
}
