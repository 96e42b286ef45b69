//! The decision core under arbitrary input: no undefined behaviour (it traps in test builds), and
//! sound records whatever the two ends do.

mod held;
mod machine;
mod memory;
mod tape;

/// Runs random programs; returns their number.
fn programs(otherwise: u64, mut run: impl FnMut(&[u8])) -> u64 {
    let programs = std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok());
    let programs: u64 = programs.unwrap_or(otherwise);
    for seed in 0..programs {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut program = vec![0; rng.usize(0..4_000)];
        rng.fill(&mut program);
        // Begin with a connection more often than chance would.
        if seed % 4 != 0 && program.len() > 8 {
            program[0] = 15;
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&program)));
        if let Err(panic) = outcome {
            eprintln!("program {seed}: {program:?}");
            std::panic::resume_unwind(panic);
        }
    }
    programs
}

#[test]
fn no_sequence_of_segments_changes_a_packet_of_a_flow_without_a_hold() {
    let mut seen = machine::Seen::default();
    let programs = programs(100_000, |program| machine::run(program, &mut seen));
    println!("{seen:#?}");
    let all =
        [seen.accepted, seen.opened, seen.mid_flow, seen.caught_up, seen.bypassed, seen.closed];
    assert!(programs < 100_000 || all.iter().all(|&n| n > 0), "something never happened: {seen:?}");
}

#[test]
fn no_sequence_of_segments_makes_a_hold_unsound() {
    let mut seen = held::Seen::default();
    let programs = programs(3_000, |program| held::run(program, &mut seen));
    println!("{seen:#?}");
    let all = [
        seen.early,
        seen.handed_on,
        seen.held,
        seen.leased,
        seen.vm_leased,
        seen.out_of_order,
        seen.full,
        seen.withheld,
        seen.waiting,
        seen.fins,
        seen.all_handed,
        seen.forwarded,
        seen.reacked,
        seen.dropped,
        seen.sender_acks,
        seen.suppressed,
        seen.rewritten,
        seen.replaced,
        seen.freed,
        seen.raced,
        seen.told,
        seen.refused,
        seen.silent,
        seen.engine_gone,
        seen.ended,
    ];
    assert!(programs < 3_000 || all.iter().all(|&n| n > 0), "something never happened: {seen:?}");
}
