//! The panic switch.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;

use crate::sandbox::{PORT, Place, vsnoop};

pub fn trials() -> Vec<Trial> {
    trials![off_takes_everything_off_in_all_namespaces, off_with_nothing_attached_says_so,]
}

fn off_takes_everything_off_in_all_namespaces() -> Result<()> {
    let places = [Place::new("off1")?, Place::new("off2")?];
    let before: Vec<_> = places.iter().map(Place::state).collect::<Result<_>>()?;
    for place in &places {
        place.vsnoop(["attach", PORT])?.ok()?;
    }
    std::fs::remove_file(places[1].pins()?.join("stats"))?;
    let json = vsnoop(["off", "--all", "--json"])?.json()?;
    let count = |what: &str| json[what].as_array().map_or(0, Vec::len);
    ensure!(count("removed") == 1 && count("damaged_removed") == 1, "{json}");
    ensure!(count("qdiscs_restored") == 2 && count("failed") == 0, "{json}");
    for (place, before) in places.iter().zip(before) {
        ensure!(place.state()? == before, "something was left: {:?}", place.state()?);
    }
    Ok(())
}

fn off_with_nothing_attached_says_so() -> Result<()> {
    let ran = vsnoop(["off", "--all"])?.ok()?;
    ensure!(ran.out.contains("nothing was attached"), "{ran:?}");
    Ok(())
}
