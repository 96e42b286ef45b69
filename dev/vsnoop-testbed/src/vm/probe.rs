//! KVM where it really boots a guest, TCG otherwise.
//!
//! A /dev/kvm that opens proves nothing (nested or restricted KVM may spin for ever), so a guest is
//! booted under it once. The answer is kept in the build directory for this kernel of the host.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Vm;
use super::accel::Accelerator;
use crate::guest::Image;
use crate::workspace;

/// A guest under working KVM is ready in one or two seconds.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
struct Answer {
    host_kernel: String,
    guest_kernel: String,
    accelerator: Accelerator,
}

/// The best accelerator that boots `image` here.
pub fn choose(image: &Image, scratch: &Path) -> Result<Accelerator> {
    let host_kernel = host_kernel()?;
    let cache = workspace::build_dir()?.join("accelerator.json");
    let known = fs::read(&cache).ok().and_then(|text| serde_json::from_slice::<Answer>(&text).ok());
    if let Some(answer) = known
        && answer.host_kernel == host_kernel
        && answer.guest_kernel == image.kernel_version
    {
        return Ok(answer.accelerator);
    }
    let accelerator = probe(image, scratch)?;
    let answer = Answer { host_kernel, guest_kernel: image.kernel_version.clone(), accelerator };
    fs::write(&cache, serde_json::to_vec_pretty(&answer).context("encode the answer about KVM")?)
        .with_context(|| format!("write {}", cache.display()))?;
    Ok(accelerator)
}

fn probe(image: &Image, scratch: &Path) -> Result<Accelerator> {
    if !Path::new("/dev/kvm").exists() {
        println!("no /dev/kvm: the guests are emulated (TCG)");
        return Ok(Accelerator::Tcg);
    }
    println!("trying whether KVM boots a guest here (up to {} s)", PROBE_TIMEOUT.as_secs());
    let mut vm = Vm::start("vslab-probe", image, Accelerator::Kvm, &[], &scratch.join("probe"))?;
    match vm.wait_ready(PROBE_TIMEOUT) {
        Ok(()) => {
            println!("KVM works: the guests use it");
            Ok(Accelerator::Kvm)
        }
        Err(error) => {
            crate::interrupt::check()?;
            println!("KVM does not boot a guest here ({error:#}): the guests are emulated (TCG)");
            Ok(Accelerator::Tcg)
        }
    }
}

fn host_kernel() -> Result<String> {
    let path = "/proc/sys/kernel/osrelease";
    Ok(fs::read_to_string(path).with_context(|| format!("read {path}"))?.trim().to_owned())
}
