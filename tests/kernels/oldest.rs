//! The oldest kernel that a distribution offers and that has tcx: the hooks are verified, and some
//! of the tests on network namespaces pass. What they do is told where they are.

use anyhow::{Result, ensure};
use vsnoop_testbed::guest::batch::{Batch, Ended, Report};
use vsnoop_testbed::guest::{self, Kernel};
use vsnoop_testbed::workspace;

use crate::LIMIT;
use crate::programs::test_programs;

pub const SERIES: &str = guest::OLDEST_SERIES;
/// `ip` makes taps, veths and bridges.
const MODULES: [&str; 3] = ["tun", "veth", "bridge"];

/// Names of tests, and the program and arguments that each runs in the machine.
const TESTS: [(&str, &[&str]); 9] = [
    ("hooks_are_verified_and_do_their_work", &["hooks"]),
    ("what_goes_through_a_link_is_diverted", &["divert"]),
    ("an_ipv4_stream_goes_through_a_link", &netns("divert::ipv4_between_bridged_hosts")),
    ("an_ipv6_stream_goes_through_a_link", &netns("divert::ipv6_between_routed_hosts")),
    ("an_ipv4_stream_is_acknowledged_early", &netns("matrix::ipv4_untagged_super_packets")),
    (
        "an_ipv6_stream_in_two_vlans_is_acknowledged_early",
        &netns("matrix::ipv6_double_tagged_mtu_sized_with_checksum_offload"),
    ),
    ("loss_behind_the_hook_is_mended", &netns("guest::loss_is_mended_mtu_sized")),
    ("a_stream_survives_attaching", &netns("lifecycle::attach_in_mid_stream")),
    ("a_stream_survives_detaching", &netns("lifecycle::detach_in_mid_stream")),
];

const fn netns(test: &str) -> [&str; 3] {
    ["netns", "--exact", test]
}

pub fn names() -> Vec<&'static str> {
    TESTS.map(|(name, _)| name).into()
}

pub fn run(kernel: &Kernel) -> Result<Report> {
    let [hooks, divert, netns] = test_programs(["hooks", "divert", "netns"])?;
    let programs = [
        ("hooks", hooks),
        ("divert", divert),
        ("netns", netns),
        ("vsnoop", workspace::vsnoop_command()?),
        ("ip", guest::installed("ip", "iproute2")?),
    ];
    let commands = TESTS.map(|(_, command)| [command, &["--color", "never"]].concat());
    let commands: Vec<&[&str]> = commands.iter().map(Vec::as_slice).collect();
    Batch { kernel, modules: &MODULES, programs: &programs, commands: &commands }.run(LIMIT)
}

/// A test program that ran no test succeeds too.
pub fn verify(report: &Report, index: usize) -> Result<()> {
    let Ended { output, status } = crate::ended(report, index)?;
    let result = output.lines().find_map(|line| line.strip_prefix("test result: ok. "));
    let passed = result.is_some_and(|counts| {
        !counts.starts_with("0 passed") && counts.contains(" 0 failed; 0 ignored;")
    });
    ensure!(status == 0 && passed, "exit status {status}:\n{output}");
    Ok(())
}
