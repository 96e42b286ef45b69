//! Features of the kernel that vsnoop needs, found by probing.

use std::fs;
use std::path::Path;

use nix::sys::statfs::{FsType, statfs};
use nix::unistd::geteuid;
use vsnoop_bpf::{EmptyProgram, Hook};

use crate::error::{Error, Result, Unfit, unfit};

/// Where the pins live.
pub const BPFFS: &str = "/sys/fs/bpf";

/// The first kernel with tcx.
const NEEDED: (u32, u32) = (6, 6);

/// "6.18.5-generic" and whether it is new enough to have tcx, unless that was left out.
pub fn version() -> Result<(String, bool)> {
    let release =
        nix::sys::utsname::uname().map_err(Error::call("ask for the kernel's version"))?;
    let release = release.release().to_string_lossy().into_owned();
    let new_enough = parse_version(&release).is_some_and(|version| version >= NEEDED);
    Ok((release, new_enough))
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

pub fn has_btf() -> bool {
    Path::new("/sys/kernel/btf/vmlinux").exists()
}

/// Is a BPF file system mounted at [`BPFFS`]?
pub fn has_bpffs() -> bool {
    is_bpffs(BPFFS)
}

fn is_bpffs(path: &str) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == FsType(libc::BPF_FS_MAGIC as _))
}

/// Are run and wait times of threads accounted? The own thread has run, so its time cannot be 0.
pub fn has_schedstat() -> bool {
    let text = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|run_ns| run_ns.parse::<u64>().ok()).is_some()
}

/// CAP_SYS_ADMIN, or CAP_BPF with CAP_NET_ADMIN, is what the command needs; root has them.
pub fn missing_privileges() -> Vec<&'static str> {
    const NET_ADMIN: u32 = 12;
    const SYS_ADMIN: u32 = 21;
    const BPF: u32 = 39;
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective =
        effective_capabilities(&status).unwrap_or(if geteuid().is_root() { !0 } else { 0 });
    let has = |bit: u32| effective & (1 << bit) != 0;
    let mut missing = Vec::new();
    if !has(NET_ADMIN) {
        missing.push("CAP_NET_ADMIN");
    }
    if !has(BPF) && !has(SYS_ADMIN) {
        missing.push("CAP_BPF");
    }
    missing
}

fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Refuses to start without the privileges, or a place for the pins.
pub fn require() -> Result<()> {
    let missing = missing_privileges();
    if !missing.is_empty() {
        return Err(unfit(
            Unfit::Privilege,
            format!("vsnoop needs {}: run it as root", missing.join(" and ")),
        ));
    }
    require_bpffs()
}

/// Refuses kernels without the features that the hooks need.
pub fn require_features() -> Result<()> {
    let (release, new_enough) = version()?;
    require_tcx(&release, new_enough, || probe_tcx().is_ok())?;
    if !has_btf() {
        let text = "the kernel does not describe its types (no /sys/kernel/btf/vmlinux); one built \
                    with CONFIG_DEBUG_INFO_BTF is needed";
        return Err(unfit(Unfit::Kernel, text));
    }
    Ok(())
}

/// Distributions port tcx back to older kernels: what can be tried counts, and not the number.
fn require_tcx(release: &str, new_enough: bool, has_tcx: impl FnOnce() -> bool) -> Result<()> {
    if new_enough || has_tcx() {
        return Ok(());
    }
    let text = format!("Linux {release} is too old; 6.6 or newer is needed (tcx)");
    Err(unfit(Unfit::Kernel, text))
}

/// Reading attachments needs only the BPF file system.
pub fn require_bpffs() -> Result<()> {
    if has_bpffs() {
        return Ok(());
    }
    let remedy = if is_bpffs(&format!("/proc/1/root{BPFFS}")) {
        "the host has one, which this command cannot see, for example within `ip netns exec`: run it \
         outside, with --netns NAME for ports in a network namespace"
            .into()
    } else {
        format!("mount it: mount -t bpf -o mode=0700 bpf {BPFFS}")
    };
    Err(unfit(Unfit::BpfFs, format!("no BPF file system is mounted at {BPFFS}; {remedy}")))
}

/// Results of loading an empty program.
pub struct Probe {
    /// The kernel has compiled it. The setting, net.core.bpf_jit_enable, says the same, but can be
    /// read in the initial network namespace only.
    pub is_compiled: bool,
}

/// Does this kernel have tcx? Tries to attach an empty program to the loopback device of a new
/// network namespace, which has no traffic.
pub fn probe_tcx() -> Result<Probe> {
    std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
            .map_err(Error::call("make a network namespace to probe in"))?;
        let loopback =
            nix::net::if_::if_nametoindex("lo").map_err(Error::call("find the loopback device"))?;
        let program = EmptyProgram::attach(loopback, Hook::ToVm)?;
        Ok(Probe { is_compiled: program.info()?.jited_bytes > 0 })
    })
    .join()
    .map_err(|_| Error::ProbeDied)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_compare_as_numbers() {
        assert!(parse_version("6.18.5-generic").unwrap() >= NEEDED);
        assert!(parse_version("6.6.0").unwrap() >= NEEDED);
        assert!(parse_version("6.1.0-37-cloud-amd64").unwrap() < NEEDED);
        assert!(parse_version("5.15.0").unwrap() < NEEDED);
        assert_eq!(parse_version("unknown"), None);
    }

    #[test]
    fn a_kernel_that_has_tcx_is_not_refused_for_its_version() {
        let old = "5.14.0-503.el9";
        assert!(require_tcx(old, false, || true).is_ok());
        let refused = require_tcx(old, false, || false).expect_err("it has no tcx");
        assert!(refused.to_string().contains(old), "{refused}");
        let is_not_tried = || unreachable!("its number says enough");
        assert!(require_tcx("6.6.0", true, is_not_tried).is_ok());
    }

    #[test]
    fn effective_capabilities_are_read_from_the_status() {
        assert_eq!(
            effective_capabilities("CapPrm:\t00\nCapEff:\t000001ffffffffff\n"),
            Some(0x1ff_ffff_ffff)
        );
        assert_eq!(effective_capabilities("Name:\tx\n"), None);
    }
}
