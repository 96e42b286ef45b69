//! The first steps of every experiment on machines.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vsnoop_testbed::guest::{self, Image};
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stage::{CONGESTION_CONTROL, Stage, StageOptions};
use vsnoop_testbed::vm::{self, Accelerator, Share};
use vsnoop_testbed::vsnoop::Vsnoop;

use crate::results::alone;
use crate::results::statistics::{ascending, percentile};

/// The period of the machines' load.
pub const LOAD_PERIOD_MS: u32 = 100;

/// Over which it is measured what a VM that is alone uses of its core under slices.
const ALONE_TIME: Duration = Duration::from_secs(2);
/// A VM that uses too little or too much is measured again: it may have been another program.
const ALONE_MOST: usize = 3;

pub fn require_root() -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "an experiment makes namespaces and taps and attaches vsnoop: run it as root"
    );
    Ok(())
}

fn require_machines() -> Result<()> {
    vm::require_two_cores()?;
    vm::require_qemu()
}

/// The image of a guest with these parts, made if it is missing. The error names the part that
/// could not be made.
pub fn guest_image(parts: guest::Options) -> Result<Image> {
    require_root()?;
    require_machines()?;
    guest::prepare(parts)
}

/// The lock of this machine's lab, and the image that its guests boot.
pub struct Lab {
    pub session: Session,
    image: Image,
    accelerator: Accelerator,
}

impl Lab {
    /// For guests that boot an image, as [`guest_image`] makes it.
    pub fn open(image: Image) -> Result<Self> {
        require_root()?;
        require_machines()?;
        let session = Session::begin()?;
        let accelerator = vm::choose_accelerator(&image, &session.scratch())?;
        Ok(Self { session, image, accelerator })
    }

    pub fn image(&self) -> &Image {
        &self.image
    }

    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// Records what the machines are.
    pub fn describe(&self, environment: &mut BTreeMap<String, Value>) {
        environment.extend([
            ("accelerator".into(), json!(self.accelerator)),
            ("guest_kernel".into(), json!(self.image.kernel_version)),
            ("congestion_control".into(), json!(CONGESTION_CONTROL)),
        ]);
    }

    /// Boots machines.
    pub fn start(&mut self, options: StageOptions, vsnoop: Option<&Vsnoop>) -> Result<Stage> {
        let (image, accelerator) = (&self.image, self.accelerator);
        let machines =
            if options.vms == 1 { "a VM".into() } else { format!("{} VMs", options.vms) };
        if options.vms > 0 {
            println!("booting {machines} (Linux {}, {accelerator})", image.kernel_version);
        }
        Stage::build_with(&mut self.session, image, accelerator, options, vsnoop)
    }

    /// Boots machines that share a core; from now on the lab keeps to the host's core.
    pub fn boot(
        &mut self,
        options: StageOptions,
        share: Share,
        vsnoop: Option<&Vsnoop>,
        environment: &mut BTreeMap<String, Value>,
    ) -> Result<Stage> {
        let mut stage = self.start(options, vsnoop)?;
        vm::pin_self()?;
        stage.share(share)?;
        if share == Share::Slices {
            let load = alone::LOAD_PERCENT / 100.0;
            let used =
                alone_percent(|| Ok(stage.use_alone(load, LOAD_PERIOD_MS, ALONE_TIME)? * 100.0))?;
            environment.insert(alone::name(options.vms), json!((used * 10.0).round() / 10.0));
            if alone::is_off(used) {
                eprintln!(
                    "a VM that alone has a load of {} % uses {used:.0} % of its core: is it busy with \
                     something else?",
                    alone::LOAD_PERCENT
                );
            }
        }
        Ok(stage)
    }
}

/// The share of its core that a VM alone uses, in percent: the first measurement if that is as it
/// must be, else the median of [`ALONE_MOST`].
fn alone_percent(mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    let first = measure()?;
    if !alone::is_off(first) {
        return Ok(first);
    }
    let mut all = vec![first];
    for _ in 1..ALONE_MOST {
        all.push(measure()?);
    }
    Ok(percentile(&ascending(all.into_iter()), 50.0).unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_that_is_off_is_measured_three_times_and_the_median_counts() {
        let measured = |values: &[f64]| {
            let mut left = values.iter();
            let used = alone_percent(|| Ok(*left.next().unwrap())).unwrap();
            (used, left.len())
        };
        assert_eq!(measured(&[64.0, 50.0, 50.0]), (64.0, 2));
        assert_eq!(measured(&[49.9, 61.0, 75.0]), (61.0, 0));
        assert_eq!(measured(&[75.0, 74.0, 60.0]), (74.0, 0));
    }
}
