//! Exhaustive searches of small connections: all events in every order.
//!
//! `VSNOOP_STATES` sets the limit of states; the larger searches are for `make soak`. A failure has
//! the history that leads to it, and `VSNOOP_TRACE=1` prints it segment by segment.

use vsnoop_world::search::{Budget, Found, Setting, replay, search};

fn most() -> usize {
    std::env::var("VSNOOP_STATES").ok().and_then(|v| v.parse().ok()).unwrap_or(5_000)
}

/// Runs a search, and asserts that there is no violation.
fn run(name: &str, setting: Setting) -> Found {
    let found = search(&setting, most());
    println!(
        "{name}: {} states ({} holding), {} transitions, complete: {}, fair ends: {} exact, {} reset",
        found.states,
        found.holding,
        found.transitions,
        found.is_complete,
        found.exact,
        found.resets
    );
    if let Some((history, why)) = &found.wrong {
        if std::env::var_os("VSNOOP_TRACE").is_some() {
            let _ = replay(&setting, history);
        }
        panic!("{name}: {why}\n after {history:?}");
    }
    found
}

const NOTHING: Budget =
    Budget { network_losses: 0, overtakes: 0, guest_losses: 0, full_rings: 0, kills: 0, times: 1 };

const PLAIN: Setting = Setting {
    budget: NOTHING,
    segments: 2,
    window: 8,
    timestamps: false,
    sack: true,
    handshake: false,
};

#[test]
fn every_order_of_two_segments_and_a_fin() {
    run("two segments", PLAIN);
}

#[test]
fn a_loss_in_the_network() {
    let budget = Budget { network_losses: 1, overtakes: 1, ..NOTHING };
    run("network", Setting { budget, ..PLAIN });
}

#[test]
fn a_loss_inside_the_guest() {
    let budget = Budget { guest_losses: 1, ..NOTHING };
    run("guest", Setting { budget, ..PLAIN });
}

#[test]
fn a_window_of_two_segments() {
    let found = run("small window", Setting { window: 2, segments: 4, ..PLAIN });
    assert!(found.holding > 0, "nothing was ever held");
}

#[test]
fn a_ring_that_refuses() {
    let budget = Budget { full_rings: 1, ..NOTHING };
    run("full ring", Setting { budget, ..PLAIN });
}

#[test]
fn an_engine_that_dies_anywhere() {
    let budget = Budget { kills: 1, ..NOTHING };
    let found = run("engine", Setting { budget, window: 2, segments: 4, ..PLAIN });
    assert!(found.holding > 0, "nothing was ever held");
}

#[test]
fn what_happens_during_the_handshake() {
    let budget = Budget { network_losses: 1, ..NOTHING };
    run("handshake", Setting { budget, handshake: true, segments: 1, ..PLAIN });
}

#[test]
#[ignore = "large: make soak"]
fn a_death_beside_a_loss_inside_the_guest() {
    let budget = Budget { guest_losses: 1, kills: 1, times: 3, ..NOTHING };
    run("death and loss", Setting { budget, window: 2, segments: 4, timestamps: true, ..PLAIN });
}

#[test]
#[ignore = "large: make soak"]
fn a_ring_that_refuses_beside_losses() {
    let budget = Budget { network_losses: 1, guest_losses: 1, full_rings: 1, ..NOTHING };
    run("refusal and losses", Setting { budget, ..PLAIN });
}

#[test]
#[ignore = "large: make soak"]
fn a_guest_without_sack_that_loses_twice() {
    let budget = Budget { guest_losses: 2, times: 4, ..NOTHING };
    run("two losses", Setting { budget, segments: 3, sack: false, ..PLAIN });
}

#[test]
#[ignore = "large: make soak"]
fn deaths_and_losses_during_the_handshake() {
    let budget = Budget { network_losses: 1, guest_losses: 1, kills: 1, times: 2, ..NOTHING };
    run("handshake, death and losses", Setting { budget, handshake: true, ..PLAIN });
}
