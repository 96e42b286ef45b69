//! Every TCP feature that a connection may have: used where understood, left alone where not.

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::net::Offloads;
use vsnoop_testbed::relay::Faults;
use vsnoop_testbed::stream::{SocketOptions, Stream, StreamPlan};
use vsnoop_testbed::topology::{Family, Side, TopologyOptions};

use crate::attached::{self, Attached};
use crate::case::{Case, Early, marks_are_echoed};
use crate::{FAMILIES, probe, trial};

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("features::ecn_marks_reach_the_sender", || congestion_marks(&[Family::V4])),
        trial("features::ecn_marks_reach_the_sender_ipv6", || congestion_marks(&[Family::V6])),
        trial("features::urgent_data_stays_in_place", urgent_data),
        trial("features::fast_open_data_arrives_once", fast_open),
        trial("features::window_that_closes_opens_again", closing_window),
        trial("features::tiny_writes_from_both_ends", tiny_writes),
    ];
    for bits in 0..8 {
        trials.push(options(bits & 1 != 0, bits & 2 != 0, bits & 4 != 0));
    }
    let accurate_ecn = trial("features::accurate_ecn_is_bypassed", accurate_ecn);
    trials.push(skip_if(accurate_ecn, probe::no_accurate_ecn()));
    let mptcp = trial("features::mptcp_is_bypassed", || {
        bypassed(SocketOptions { mptcp: true, ..SocketOptions::default() })
    });
    trials.push(skip_if(mptcp, probe::no_mptcp()));
    let md5 = trial("features::md5_signatures_are_bypassed", || {
        bypassed(SocketOptions { md5: true, ..SocketOptions::default() })
    });
    trials.push(skip_if(md5, probe::no_md5()));
    trials
}

fn skip_if(trial: Trial, reason: Option<String>) -> Trial {
    match reason {
        Some(reason) => trial.with_kind(format!("skipped: {reason}")).with_ignored_flag(true),
        None => trial,
    }
}

/// Timestamps, window scale and SACK, on or off, in either size of segments.
fn options(timestamps: bool, window_scale: bool, sack: bool) -> Trial {
    let part = |on: bool, name: &str| if on { format!("_{name}") } else { String::new() };
    let name = format!(
        "features::options{}{}{}{}",
        if timestamps || window_scale || sack { "" } else { "_none" },
        part(timestamps, "timestamps"),
        part(window_scale, "window_scale"),
        part(sack, "sack"),
    );
    trial(name, move || {
        for (families, offloads) in
            [(FAMILIES[0].1, Offloads::SUPER_PACKETS), (FAMILIES[1].1, Offloads::NONE)]
        {
            let base = Case::default();
            let value = |on: bool| if on { "1" } else { "0" };
            let case = Case {
                topology: TopologyOptions {
                    from_client: offloads,
                    to_vm: offloads,
                    from_vm: offloads,
                    ..base.topology.clone()
                },
                sysctls: vec![
                    ("net.ipv4.tcp_timestamps", value(timestamps)),
                    ("net.ipv4.tcp_window_scaling", value(window_scale)),
                    ("net.ipv4.tcp_sack", value(sack)),
                ],
                families,
                ..base
            };
            case.run_and(|_, _, outcomes| {
                for outcome in outcomes {
                    let info = outcome.client.info()?;
                    ensure!(
                        (info.timestamps, info.window_scale, info.sack)
                            == (timestamps, window_scale, sack),
                        "the connection has other options than meant: {info:?}"
                    );
                }
                Ok(())
            })?;
        }
        Ok(())
    })
}

fn congestion_marks(families: &'static [Family]) -> anyhow::Result<()> {
    let base = Case::default();
    let case = Case {
        sysctls: vec![("net.ipv4.tcp_ecn", "1")],
        network: Faults { mark_ce: 0.05, ..Faults::default() },
        topology: TopologyOptions { from_client: Offloads::NONE, ..base.topology.clone() },
        families,
        ..base
    };
    case.run_and(|topology, _, _| marks_are_echoed(topology))
}

/// RFC 9768 counts marks in header bits that early acknowledgements cannot continue.
fn accurate_ecn() -> anyhow::Result<()> {
    let base = Case::default();
    Case {
        sysctls: vec![("net.ipv4.tcp_ecn", probe::ACCURATE_ECN)],
        network: Faults { mark_ce: 0.05, ..Faults::default() },
        early: Early::Never,
        ..base
    }
    .run()
}

fn urgent_data() -> anyhow::Result<()> {
    let base = Case::default();
    // URG stands on every segment of the 64 KB before urgent data, which may be all of them.
    Case {
        plan: StreamPlan { urgent_every_bytes: Some(37_777), ..base.plan.clone() },
        early: Early::Any,
        ..base
    }
    .run()
}

fn fast_open() -> anyhow::Result<()> {
    let base = Case::default();
    let case = Case { sysctls: vec![("net.ipv4.tcp_fastopen", "3")], ..base };
    let topology = case.build()?;
    let mut attached = Attached::new(&topology)?;
    let socket = SocketOptions { fast_open: true, ..SocketOptions::default() };
    let mut used = 0;
    // The first connection fetches the cookie that the others use.
    for seed in 0..4 {
        for opener in [Side::Client, Side::Vm] {
            let plan = StreamPlan { opener, seed, socket, ..case.plan.clone() };
            let outcome = Stream::run(&topology, &plan).with_context(|| attached.describe())?;
            ensure!(outcome.is_complete(), "{opener:?}: {outcome:?}\n{}", attached.describe());
            used += u32::from(outcome.client.info()?.fast_open);
            used += u32::from(outcome.vm.info()?.fast_open);
        }
    }
    ensure!(used > 0, "no connection had data in its SYN");
    case.verify_early(&attached)?;
    attached.detach()
}

fn closing_window() -> anyhow::Result<()> {
    for offloads in [Offloads::SUPER_PACKETS, Offloads::NONE] {
        let base = Case::default();
        Case {
            topology: TopologyOptions { from_client: offloads, ..base.topology.clone() },
            plan: StreamPlan {
                vm_dawdles: std::time::Duration::from_millis(5),
                socket: SocketOptions {
                    vm_receive_buffer_bytes: Some(8192),
                    ..SocketOptions::default()
                },
                ..base.plan.clone()
            },
            ..base
        }
        .run_and(|_, attached, outcomes| {
            for outcome in outcomes {
                let info = outcome.client.info()?;
                // The host takes what the VM has no room for.
                let closed = info.window_limited_us > 0 || attached.has_hold();
                ensure!(closed, "the window never closed: {info:?}");
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn tiny_writes() -> anyhow::Result<()> {
    let base = Case::default();
    Case {
        plan: StreamPlan {
            write_bytes: 7,
            to_vm_bytes: 50_000,
            from_vm_bytes: 50_000,
            ..base.plan.clone()
        },
        ..base
    }
    .run()
}

/// Connections with options that are not understood: exact, and never acknowledged early.
fn bypassed(socket: SocketOptions) -> anyhow::Result<()> {
    let base = Case::default();
    Case {
        plan: StreamPlan { socket, ..base.plan.clone() },
        families: &[Family::V4, Family::V6],
        early: Early::Never,
        ..base
    }
    .run_and(|_, attached, _| {
        if attached::is_wanted() {
            let bypassed = attached.counter("bypassed")?;
            ensure!(bypassed > 0, "no connection was on record\n{}", attached.describe());
        }
        Ok(())
    })
}
