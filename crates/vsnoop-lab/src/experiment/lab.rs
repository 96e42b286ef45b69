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

/// The period of the machines' load.
pub const LOAD_PERIOD_MS: u32 = 100;

/// What a VM alone must use of its core under slices; the report says what it does use.
const ALONE_LOAD: f64 = 0.6;
const ALONE_TIME: Duration = Duration::from_secs(2);
const ALONE_TOLERANCE_PERCENT: f64 = 5.0;

/// What machines boot.
pub enum Guest {
    /// Made if it is missing.
    Parts(guest::Options),
    Made(Image),
}

impl From<guest::Options> for Guest {
    fn from(parts: guest::Options) -> Self {
        Self::Parts(parts)
    }
}

impl From<Image> for Guest {
    fn from(image: Image) -> Self {
        Self::Made(image)
    }
}

/// The lock of this machine's lab, and the image that its guests boot.
pub struct Lab {
    pub session: Session,
    image: Image,
    accelerator: Accelerator,
}

impl Lab {
    /// Makes missing parts, such as a guest image with these options. The error names the part that
    /// could not be made.
    pub fn open(guest: impl Into<Guest>) -> Result<Self> {
        ensure!(
            nix::unistd::geteuid().is_root(),
            "an experiment makes namespaces and taps and attaches vsnoop: run it as root"
        );
        vm::require_two_cores()?;
        vm::require_qemu()?;
        let image = match guest.into() {
            Guest::Parts(parts) => guest::prepare(parts)?,
            Guest::Made(image) => image,
        };
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
            let used = stage.use_alone(ALONE_LOAD, LOAD_PERIOD_MS, ALONE_TIME)? * 100.0;
            let name = format!("alone_cpu_percent_{}vms", options.vms);
            environment.insert(name, json!((used * 10.0).round() / 10.0));
            if (used - ALONE_LOAD * 100.0).abs() > ALONE_TOLERANCE_PERCENT {
                eprintln!(
                    "a VM that alone has a load of {} % uses {used:.0} % of its core: is it busy with \
                     something else?",
                    ALONE_LOAD * 100.0
                );
            }
        }
        Ok(stage)
    }
}
