//! Other software at the same tap, with parts of the kernel that few machines have: what of the
//! tests of `coexistence` needs them runs under a kernel of Debian.

use std::path::Path;

use anyhow::Result;
use vsnoop_testbed::guest::batch::{Batch, Report};
use vsnoop_testbed::guest::{self, Kernel};
use vsnoop_testbed::workspace;

use crate::LIMIT;
use crate::programs::test_programs;

const MODULES: [&str; 12] = [
    "tun",
    "veth",
    "bridge",
    "openvswitch",
    "sch_htb",
    "sch_sfq",
    "cls_fw",
    "sch_ingress",
    "cls_u32",
    "act_police",
    "cls_matchall",
    "act_gact",
];

/// Programs of this host, with their packages.
pub const SOFTWARE: [(&str, &str); 9] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("unshare", "util-linux"),
    ("ovsdb-server", "openvswitch-switch"),
    ("ovsdb-tool", "openvswitch-switch"),
    ("ovs-vsctl", "openvswitch-switch"),
    ("ovs-vswitchd", "openvswitch-switch"),
    ("ovs-ofctl", "openvswitch-switch"),
    ("ovs-appctl", "openvswitch-switch"),
];
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Names of tests, and the groups of `coexistence` that each runs in the machine.
const TESTS: [(&str, &str); 3] = [
    ("open_vswitch_is_no_hindrance", "open_vswitch_kernel::"),
    ("limits_of_libvirt_are_kept", "bandwidth_in_full::"),
    ("filters_at_the_ingress_are_no_hindrance", "tc_ingress::"),
];

pub fn names() -> Vec<&'static str> {
    TESTS.map(|(name, _)| name).into()
}

pub fn run(kernel: &Kernel) -> Result<Report> {
    let [coexistence] = test_programs(["coexistence"])?;
    let mut programs = vec![("coexistence", coexistence), ("vsnoop", workspace::vsnoop_command()?)];
    for (name, package) in SOFTWARE {
        programs.push((name, guest::installed(name, package)?));
    }
    let commands = TESTS.map(|(_, group)| ["coexistence", group, "--color", "never"]);
    Batch {
        kernel,
        modules: &MODULES,
        programs: &programs,
        files: &[Path::new(SCHEMA)],
        commands: &commands.each_ref().map(|command| command.as_slice()),
    }
    .run(LIMIT)
}
