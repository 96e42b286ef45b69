//! A port with a hold: what the host acknowledges beyond the VM's window reaches the VM, byte for
//! byte, or both ends get an error.
//!
//! Where the engine and the helper are killed is another test program (dev/tests/faults): here
//! others use them at the same time.

mod bound;
mod detach;
mod ends;
mod frozen;
mod lossy;
mod moved;
mod mtu;
mod network;
mod no_tso;
mod reboot;
mod window;

use libtest_mimic::Trial;
use vsnoop_testbed::relay::Freeze;

use crate::case::Case;

/// Room for everything that one of these tests sends.
const SIZE: &str = "16M";
/// Keeps the VM's window small: Linux would enlarge it during the connection.
const SMALL_WINDOW: (&str, &str) = ("net.ipv4.tcp_rmem", "4096 131072 131072");

pub fn trials() -> Vec<Trial> {
    [
        frozen::trials(),
        lossy::trials(),
        moved::trials(),
        mtu::trials(),
        bound::trials(),
        window::trials(),
        ends::trials(),
        network::trials(),
        no_tso::trials(),
        detach::trials(),
        reboot::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A port with a hold, whose VM has a small window and is frozen by the test only.
fn still() -> Case {
    Case {
        hold: Some(SIZE),
        sysctls: vec![SMALL_WINDOW],
        freezes: &[Freeze::Never],
        ..Case::default()
    }
}
