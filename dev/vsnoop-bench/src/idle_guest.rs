//! Uploads to a guest that does nothing else and loses some of what it has taken from its ring: a
//! real machine, whose firewall drops 5 % of the segments with payload.
//!
//! Its vCPU sleeps while a lost segment is missing, so that no time of the vCPU passes.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use vsnoop_guest::control::Command;
use vsnoop_guest::transfer::Direction::Upload;
use vsnoop_lab::results::Figure;
use vsnoop_testbed::client::{self, Outcome, Request};
use vsnoop_testbed::guest;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stage::{CONGESTION_CONTROL, Stage};
use vsnoop_testbed::vm::{self, OnHostCore};
use vsnoop_testbed::vsnoop::Vsnoop;

use crate::figures::{figure, say};

const DROP_PERCENT: u32 = 5;
const UPLOADS: usize = 200;
const AT_ONCE: usize = 2;
const SIZES: [u64; 2] = [100_000, 1_000_000];
/// An upload that takes longer is late, and given up.
const LATE: Duration = Duration::from_secs(2);

pub fn measure() -> Result<Vec<Figure>> {
    let image = guest::prepare(guest::Options { firewall: true, ..guest::Options::default() })?;
    let mut session = Session::begin()?;
    let accelerator = vm::choose_accelerator(&image, &session.scratch())?;
    let vsnoop = Vsnoop::find()?;
    let stage = Stage::build(&mut session, &image, accelerator, 1, Some(&vsnoop))?;
    // Other work of the machine takes no time from the guest, nor from its client.
    stage.vm(0).own_core()?;
    let _client = OnHostCore::enter()?;
    stage.vm(0).command(&Command::Firewall { drop_percent: DROP_PERCENT })?;
    let off = late(&stage)?;
    stage.attach(0)?;
    let attached = late(&stage)?;
    say(&format!(
        "to an idle guest that loses {DROP_PERCENT} %, {attached} of {UPLOADS} uploads take longer \
         than {} s, {off} without vsnoop",
        LATE.as_secs()
    ));
    // Machines before the session, which expects that they are gone.
    drop(stage);
    Ok(vec![
        figure("idle_guest_late_of_200", attached as f64, "uploads", "lower"),
        figure("idle_guest_off_late_of_200", off as f64, "uploads", "lower"),
    ])
}

fn late(stage: &Stage) -> Result<usize> {
    let mut late = 0;
    for pair in 0..UPLOADS / AT_ONCE {
        interrupt::check()?;
        let upload = || {
            let request = Request {
                server: stage.server(0),
                direction: Upload,
                size_bytes: SIZES[pair % SIZES.len()],
                seed: fastrand::u64(..),
                congestion_control: CONGESTION_CONTROL,
                timeout: LATE,
            };
            client::transfer(stage.client(), &request)
        };
        let outcomes = std::thread::scope(|scope| -> Result<Vec<Outcome>> {
            let jobs: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(upload)).collect();
            let joined =
                jobs.into_iter().map(|job| job.join().ok().context("an upload panicked")?);
            joined.collect()
        })?;
        for outcome in outcomes {
            match outcome {
                Outcome::Exact(_) => (),
                Outcome::Hung => late += 1,
                other => bail!("an upload to an idle guest: {other:?}"),
            }
        }
    }
    Ok(late)
}
