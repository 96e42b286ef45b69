//! Exhaustive searches of small connections: all events in every order.
//!
//! Searches that a test can afford are walked to their end, which `whole` asserts. The others stop
//! at a limit, which `VSNOOP_STATES` raises: they are for `make soak`. A failure has the history
//! that leads to it, and `VSNOOP_TRACE=1` prints it segment by segment.

use vsnoop_world::host::Vcpus;
use vsnoop_world::search::{Budget, Found, Setting, replay, search};

/// Limit of a search that is not walked to its end, states.
const PART: usize = 2_000;
/// More states than any search has that is walked to its end.
const WHOLE: usize = 200_000;

/// Runs a search to its end.
fn whole(name: &str, setting: Setting) -> Found {
    let found = run(name, setting, most(WHOLE));
    assert!(found.is_complete, "{name}: more than {} states", found.states);
    found
}

/// Runs a search up to its limit.
fn part(name: &str, setting: Setting) -> Found {
    run(name, setting, most(PART))
}

/// `VSNOOP_STATES`, and at least this many.
fn most(least: usize) -> usize {
    let wanted = std::env::var("VSNOOP_STATES").ok().and_then(|states| states.parse().ok());
    wanted.unwrap_or(0).max(least)
}

/// Runs a search, and asserts that there is no violation.
fn run(name: &str, setting: Setting, most: usize) -> Found {
    let found = search(&setting, most);
    println!(
        "{name}: {} states ({} holding, {} split, {} joined), {} transitions, complete: {}, fair ends: {} exact, {} reset",
        found.states,
        found.holding,
        found.split,
        found.joined,
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

const NOTHING: Budget = Budget {
    network_losses: 0,
    overtakes: 0,
    guest_losses: 0,
    misses: 0,
    full_rings: 0,
    kills: 0,
    helper_kills: 0,
    other_syn_acks: 0,
    roll_backs: 0,
    moves: 0,
    splitter_kills: 0,
    keeper_kills: 0,
    splitting_kills: 0,
    socket_waits: 0,
    splitter_ticks: 0,
    pauses: 0,
    aborts: 0,
    times: 1,
};

const PLAIN: Setting = Setting {
    budget: NOTHING,
    segments: 2,
    window: 8,
    vm_segments: 0,
    begins_split: false,
    joins_early: false,
    timestamps: false,
    sack: true,
    handshake: false,
    stays_open: false,
    vcpus: Vcpus::Busy,
};

#[test]
fn every_order_of_two_segments_and_a_fin() {
    whole("two segments", PLAIN);
}

#[test]
fn a_loss_in_the_network() {
    let budget = Budget { network_losses: 1, overtakes: 1, ..NOTHING };
    whole("network", Setting { budget, ..PLAIN });
}

#[test]
fn a_loss_inside_the_guest() {
    let budget = Budget { guest_losses: 1, ..NOTHING };
    whole("guest", Setting { budget, ..PLAIN });
}

/// Nothing follows what the VM loses, and its threads sleep.
#[test]
fn losses_inside_a_guest_that_is_idle() {
    let budget = Budget { guest_losses: 2, ..NOTHING };
    for vcpus in [Vcpus::Halted, Vcpus::Unnamed] {
        let found = part("idle", Setting { budget, window: 2, vcpus, ..PLAIN });
        assert_eq!(found.resets, 0);
    }
}

/// Only another frame wakes it. A sender that was acknowledged all and stays open sends none.
#[test]
fn a_vm_that_misses_the_wake_up_of_its_ring() {
    let budget = Budget { misses: 1, ..NOTHING };
    for vcpus in [Vcpus::Halted, Vcpus::Unnamed] {
        let setting = Setting { budget, vcpus, ..PLAIN };
        for found in [
            part("missed wake-up", Setting { window: 2, segments: 4, ..setting }),
            whole("silent sender", Setting { window: 1, segments: 3, stays_open: true, ..setting }),
        ] {
            assert!(found.holding > 0, "nothing was ever held");
            assert_eq!(found.resets, 0);
        }
    }
}

#[test]
fn a_syn_ack_of_another_socket_of_the_vm() {
    let budget = Budget { other_syn_acks: 1, ..NOTHING };
    let found = part("other SYN-ACK", Setting { budget, window: 2, segments: 4, ..PLAIN });
    assert!(found.holding > 0, "nothing was ever held");
    whole("other SYN-ACK, whole", Setting { budget, ..PLAIN });
}

/// A VM that lacks what both ends have given up is given up, too, or not vouched for.
#[test]
fn a_vm_that_is_rolled_back_at_any_time() {
    let budget = Budget { roll_backs: 1, ..NOTHING };
    let found = part("roll-back", Setting { budget, window: 1, segments: 3, ..PLAIN });
    assert!(found.holding > 0 && found.resets > 0, "nothing was ever given up");
    whole("roll-back, whole", Setting { budget, ..PLAIN });
}

#[test]
fn a_vm_that_moves_to_another_port() {
    let budget = Budget { moves: 1, ..NOTHING };
    let found = part("move", Setting { budget, window: 2, segments: 4, ..PLAIN });
    assert!(found.holding > 0, "nothing was ever held");
    assert_eq!(found.resets, 0);
    whole("move, whole", Setting { budget, ..PLAIN });
}

#[test]
fn a_window_of_two_segments() {
    let found = part("small window", Setting { window: 2, segments: 4, ..PLAIN });
    assert!(found.holding > 0, "nothing was ever held");
}

#[test]
fn a_ring_that_refuses() {
    let budget = Budget { full_rings: 1, ..NOTHING };
    whole("full ring", Setting { budget, ..PLAIN });
}

#[test]
fn an_engine_that_dies_anywhere() {
    let budget = Budget { kills: 1, ..NOTHING };
    let found = part("engine", Setting { budget, window: 2, segments: 4, ..PLAIN });
    assert!(found.holding > 0, "nothing was ever held");
}

/// One segment fills the VM's window, so that the other one waits for the engine.
#[test]
fn engine_and_helper_die_and_come_back() {
    let budget = Budget { kills: 1, helper_kills: 1, ..NOTHING };
    let found = whole("engine and helper", Setting { budget, window: 1, segments: 2, ..PLAIN });
    assert!(found.holding > 0, "nothing was ever held");
}

#[test]
fn what_happens_during_the_handshake() {
    let budget = Budget { network_losses: 1, ..NOTHING };
    whole("handshake", Setting { budget, handshake: true, segments: 1, ..PLAIN });
}

/// The VM sends two segments, waits for ACKs, and has two more.
const DOWNLOAD: Setting = Setting { segments: 0, vm_segments: 4, ..PLAIN };

/// A connection on which an end has closed is not joined.
const JOINED: Setting = Setting { begins_split: true, stays_open: true, ..DOWNLOAD };

/// A search of a connection that is split somewhere.
fn split(name: &str, setting: Setting) -> Found {
    let found = part(name, setting);
    assert!(found.split > 0, "{name}: it was never split");
    found
}

#[test]
fn every_order_of_a_download() {
    let found = split("download", DOWNLOAD);
    assert_eq!(found.resets, 0);
}

#[test]
fn a_download_beside_an_upload() {
    let found = split("both ways", Setting { segments: 2, begins_split: true, ..DOWNLOAD });
    assert_eq!(found.resets, 0);
}

#[test]
fn losses_of_a_download() {
    let budget = Budget { network_losses: 1, overtakes: 1, guest_losses: 1, ..NOTHING };
    let found = split("download, losses", Setting { budget, ..DOWNLOAD });
    assert_eq!(found.resets, 0);
}

/// The next one takes up what the keeper has.
#[test]
fn a_splitter_that_dies_anywhere() {
    let budget = Budget { splitter_kills: 2, ..NOTHING };
    let found = split("splitter", Setting { budget, ..DOWNLOAD });
    assert_eq!(found.resets, 0);
}

#[test]
fn a_splitter_that_dies_while_it_joins() {
    let budget = Budget { splitter_kills: 1, pauses: 1, splitter_ticks: 2, ..NOTHING };
    let found = split("splitter, join", Setting { budget, ..JOINED });
    assert!(found.joined > 0, "nothing was ever joined");
    assert_eq!(found.resets, 0);
}

#[test]
fn splitter_and_keeper_die() {
    let budget = Budget { splitter_kills: 1, keeper_kills: 1, splitting_kills: 1, ..NOTHING };
    let found = split("splitter and keeper", Setting { budget, ..DOWNLOAD });
    assert!(found.resets > 0, "nothing was ever lost");
}

/// The helper repeats the RSTs, and has the ends say whether they still have the connection: its
/// record has the numbers from before the split.
#[test]
fn splitter_and_keeper_die_and_a_rst_is_lost() {
    let budget = Budget { splitting_kills: 1, network_losses: 1, guest_losses: 1, ..NOTHING };
    let found = split("lost RST", Setting { budget, ..JOINED });
    assert!(found.resets > 0, "nothing was ever lost");
}

#[test]
fn a_download_that_is_split_during_the_handshake() {
    let budget = Budget { network_losses: 1, overtakes: 1, ..NOTHING };
    let found = split("split, handshake", Setting { budget, handshake: true, ..DOWNLOAD });
    assert_eq!(found.resets, 0);
}

#[test]
fn segments_that_reach_the_sockets_late() {
    let budget = Budget { socket_waits: 1, pauses: 1, splitter_ticks: 2, ..NOTHING };
    let found = split("late segments", Setting { budget, ..JOINED });
    assert_eq!(found.resets, 0);
}

#[test]
fn a_port_that_is_paused_amid_a_download() {
    let budget = Budget { pauses: 1, splitter_ticks: 2, ..NOTHING };
    let found = split("pause", Setting { budget, ..JOINED });
    assert!(found.joined > 0, "nothing was ever joined");
    assert_eq!(found.resets, 0);
}

/// The checks notice a splitter that joins while bytes are on their way.
#[test]
fn a_download_that_is_joined_too_early_is_noticed() {
    let budget = Budget { pauses: 1, splitter_ticks: 2, ..NOTHING };
    let setting = Setting { budget, joins_early: true, ..JOINED };
    assert!(search(&setting, most(PART)).wrong.is_some(), "nothing was found");
}

#[test]
fn an_end_that_resets_a_download() {
    let budget = Budget { aborts: 1, ..NOTHING };
    let found = split("aborts", Setting { budget, ..DOWNLOAD });
    assert!(found.resets > 0, "nothing was ever reset");
}

#[test]
#[ignore = "large: make soak"]
fn a_download_that_is_joined_beside_deaths_losses_and_late_segments() {
    let budget = Budget {
        network_losses: 1,
        guest_losses: 1,
        socket_waits: 1,
        splitter_kills: 1,
        pauses: 1,
        splitter_ticks: 3,
        ..NOTHING
    };
    split("join, deaths and losses", Setting { budget, segments: 1, timestamps: true, ..JOINED });
}

#[test]
#[ignore = "large: make soak"]
fn an_end_that_resets_a_download_beside_deaths_and_late_segments() {
    let budget = Budget {
        aborts: 1,
        socket_waits: 1,
        splitter_kills: 1,
        pauses: 1,
        splitter_ticks: 2,
        ..NOTHING
    };
    split("aborts and deaths", Setting { budget, segments: 1, begins_split: true, ..DOWNLOAD });
}

#[test]
#[ignore = "large: make soak"]
fn a_death_beside_a_loss_inside_the_guest() {
    let budget = Budget { guest_losses: 1, kills: 1, times: 3, ..NOTHING };
    part("death and loss", Setting { budget, window: 2, segments: 4, timestamps: true, ..PLAIN });
}

#[test]
#[ignore = "large: make soak"]
fn a_ring_that_refuses_beside_losses() {
    let budget = Budget { network_losses: 1, guest_losses: 1, full_rings: 1, ..NOTHING };
    part("refusal and losses", Setting { budget, ..PLAIN });
}

#[test]
#[ignore = "large: make soak"]
fn a_guest_without_sack_that_loses_twice() {
    let budget = Budget { guest_losses: 2, times: 4, ..NOTHING };
    part("two losses", Setting { budget, segments: 3, sack: false, ..PLAIN });
}

#[test]
#[ignore = "large: make soak"]
fn deaths_and_losses_during_the_handshake() {
    let budget = Budget { network_losses: 1, guest_losses: 1, kills: 1, times: 2, ..NOTHING };
    part("handshake, death and losses", Setting { budget, handshake: true, ..PLAIN });
}
