//! Checks whether this host is ready. Each check reports its finding and, on failure, the remedy.

use anyhow::Result;
use vsnoop_host::config::{Config, HOLD_LEAST};
use vsnoop_host::error::{self, Unfit, with_causes};
use vsnoop_host::split;
use vsnoop_host::system::headroom::{Bound, Headroom};
use vsnoop_host::system::kernel::{self, Probe};
use vsnoop_host::system::netns::Netns;
use vsnoop_host::units;

use super::{Check, Level, configuration, incast};
use crate::background::{self, Role};

/// All checks, the most important first.
pub fn check_host(config: &error::Result<Config>, netns: &Netns) -> Result<Vec<Check>> {
    let missing = kernel::missing_privileges();
    let probe = missing.is_empty().then(kernel::probe_tcx);
    let mut checks = vec![
        check_version(probe.as_ref())?,
        check_privileges(&missing),
        check_btf(),
        check_bpffs(),
        check_tcx(probe.as_ref()),
        configuration::of_host(config),
        thread_times(),
    ];
    checks.extend(missing.is_empty().then(check_downloads));
    checks.extend(vsnoop_bpf::lockdown().map(|level| check_lockdown(&level)));
    checks.extend(check_headroom(background::running_pid(Role::Engine)));
    checks.extend(probe.and_then(|probe| Some(check_jit(&probe.ok()?))));
    checks.extend(incast::check_incast(config.as_ref().ok(), netns));
    Ok(checks)
}

fn build_check(name: &'static str, unfit: Unfit, level: Level, detail: impl Into<String>) -> Check {
    Check { name, level, detail: detail.into(), unfit }
}

fn check_version(probe: Option<&error::Result<Probe>>) -> Result<Check> {
    let (release, new_enough) = kernel::version()?;
    Ok(of_version(&release, new_enough, matches!(probe, Some(Ok(_)))))
}

/// `has_tcx`: it was tried.
fn of_version(release: &str, new_enough: bool, has_tcx: bool) -> Check {
    let (level, detail) = match (new_enough, has_tcx) {
        (true, _) => (Level::Ok, format!("Linux {release}")),
        (false, true) => (Level::Ok, format!("Linux {release}, to which tcx was ported back")),
        (false, false) => {
            (Level::Fail, format!("Linux {release} is too old; 6.6 or newer is needed (tcx)"))
        }
    };
    build_check("kernel", Unfit::Kernel, level, detail)
}

/// The hooks read no memory of the kernel by a helper, which is what "confidentiality" refuses.
fn check_lockdown(level: &str) -> Check {
    let detail = format!(
        "{level}: vsnoop uses nothing that it refuses; if `attach` is refused all the same, start \
         the host with lockdown=none to see whether that is why"
    );
    build_check("lockdown", Unfit::Kernel, Level::Ok, detail)
}

/// Checks the memory that the engine may still take, or else this command, which would start it.
fn check_headroom(engine: Option<i32>) -> Option<Check> {
    let headroom = Headroom::of_process(engine.unwrap_or(std::process::id() as i32))?;
    Some(of_headroom(&headroom))
}

fn of_headroom(headroom: &Headroom) -> Check {
    let room = units::bytes(headroom.bytes);
    let detail = match &headroom.bound {
        Bound::Host { available_bytes, floor_bytes } => format!(
            "holds may grow by {room}: {} are available, and {} stay for others",
            units::bytes(*available_bytes),
            units::bytes(*floor_bytes)
        ),
        Bound::Group { directory, limit_bytes, used_bytes } => format!(
            "holds may grow by {room}: the control group {} may have {}, and uses {}; raise its \
             limit for larger holds",
            directory.display(),
            units::bytes(*limit_bytes),
            units::bytes(*used_bytes)
        ),
    };
    let level = if headroom.bytes < HOLD_LEAST { Level::Warn } else { Level::Ok };
    build_check("memory", Unfit::Other, level, detail)
}

fn check_privileges(missing: &[&str]) -> Check {
    if missing.is_empty() {
        return build_check("privileges", Unfit::Privilege, Level::Ok, "all that is needed");
    }
    let detail = format!("missing: {}; run vsnoop as root", missing.join(" and "));
    build_check("privileges", Unfit::Privilege, Level::Fail, detail)
}

fn check_btf() -> Check {
    if kernel::has_btf() {
        return build_check("BTF", Unfit::Kernel, Level::Ok, "the kernel describes its types");
    }
    let detail = "no /sys/kernel/btf/vmlinux; a kernel with CONFIG_DEBUG_INFO_BTF is needed";
    build_check("BTF", Unfit::Kernel, Level::Fail, detail)
}

fn check_bpffs() -> Check {
    match kernel::require_bpffs() {
        Ok(()) => {
            build_check("bpffs", Unfit::BpfFs, Level::Ok, format!("mounted at {}", kernel::BPFFS))
        }
        Err(error) => build_check("bpffs", Unfit::BpfFs, Level::Fail, error.to_string()),
    }
}

fn check_tcx(probe: Option<&error::Result<Probe>>) -> Check {
    match probe {
        None => {
            build_check("tcx", Unfit::Kernel, Level::Warn, "cannot be tried without privileges")
        }
        Some(Ok(_)) => {
            build_check("tcx", Unfit::Kernel, Level::Ok, "a program was attached and taken off")
        }
        Some(Err(error)) => {
            let text = with_causes(error);
            let text = text.strip_prefix("cannot ").unwrap_or(&text);
            let detail = format!("cannot {text}; Linux 6.6 or newer is needed");
            build_check("tcx", Unfit::Kernel, Level::Fail, detail)
        }
    }
}

/// Checks what only `--downloads on` needs.
fn check_downloads() -> Check {
    match split::require() {
        Ok(()) => {
            let detail = "possible: a socket in repair mode and a pair of devices were made";
            build_check("downloads", Unfit::Kernel, Level::Ok, detail)
        }
        Err(error) => {
            let detail = format!("they stay off with `--downloads on`: {}", with_causes(&error));
            build_check("downloads", Unfit::Kernel, Level::Warn, detail)
        }
    }
}

fn check_jit(probe: &Probe) -> Check {
    if probe.is_compiled {
        return build_check("BPF JIT", Unfit::Kernel, Level::Ok, "on");
    }
    let detail = "off: programs are interpreted; `sysctl net.core.bpf_jit_enable=1` in the host's own \
                  network namespace";
    build_check("BPF JIT", Unfit::Kernel, Level::Warn, detail)
}

fn thread_times() -> Check {
    if kernel::has_schedstat() {
        return build_check("schedstat", Unfit::Kernel, Level::Ok, "run and wait times of threads");
    }
    build_check(
        "schedstat",
        Unfit::Kernel,
        Level::Warn,
        "no /proc/PID/schedstat: which VMs would gain cannot be told (CONFIG_SCHED_INFO)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kernel_with_tcx_will_do() {
        let level = |new_enough, has_tcx| of_version("5.14.0-503.el9", new_enough, has_tcx).level;
        assert_eq!(level(false, true), Level::Ok);
        assert_eq!(level(false, false), Level::Fail);
        assert_eq!(level(true, false), Level::Ok, "the check of tcx says that");
    }

    #[test]
    fn the_limit_that_bounds_the_holds_is_named() {
        const MIB: u64 = 1 << 20;
        let group = |bytes| {
            let directory = "/sys/fs/cgroup/kubepods/pod7".into();
            let (limit_bytes, used_bytes) = (48 * MIB, 20 * MIB);
            of_headroom(&Headroom {
                bytes,
                bound: Bound::Group { directory, limit_bytes, used_bytes },
            })
        };
        let some = group(17 * MIB);
        assert_eq!(some.level, Level::Ok);
        for words in ["grow by 17 MiB", "/sys/fs/cgroup/kubepods/pod7", "48 MiB", "raise its limit"]
        {
            assert!(some.detail.contains(words), "{words:?} is not in: {}", some.detail);
        }
        assert_eq!(group(0).level, Level::Warn);
        let bound = Bound::Host { available_bytes: 512 * MIB, floor_bytes: 64 * MIB };
        let host = of_headroom(&Headroom { bytes: 448 * MIB, bound });
        assert!(host.detail.contains("448 MiB"), "{}", host.detail);
    }
}
