//! Checks whether this host is ready. Each check reports its finding and, on failure, the remedy.

use anyhow::Result;
use vsnoop_host::config::Config;
use vsnoop_host::error::{self, Unfit, with_causes};
use vsnoop_host::system::kernel::{self, Probe};
use vsnoop_host::system::netns::Netns;

use super::{Check, Level, configuration, incast};

/// All checks, the most important first.
pub fn checks(config: &error::Result<Config>, netns: &Netns) -> Result<Vec<Check>> {
    let missing = kernel::missing_privileges();
    let probe = missing.is_empty().then(kernel::probe_tcx);
    let mut checks = vec![
        version()?,
        privileges(&missing),
        btf(),
        bpffs(),
        tcx(probe.as_ref()),
        configuration::of_host(config),
        thread_times(),
    ];
    checks.extend(probe.and_then(|probe| Some(jit(&probe.ok()?))));
    checks.extend(incast::check(config.as_ref().ok(), netns));
    Ok(checks)
}

fn check(name: &'static str, unfit: Unfit, level: Level, detail: impl Into<String>) -> Check {
    Check { name, level, detail: detail.into(), unfit }
}

fn version() -> Result<Check> {
    let (release, new_enough) = kernel::version()?;
    Ok(if new_enough {
        check("kernel", Unfit::Kernel, Level::Ok, format!("Linux {release}"))
    } else {
        let detail = format!("Linux {release} is too old; 6.6 or newer is needed (tcx)");
        check("kernel", Unfit::Kernel, Level::Fail, detail)
    })
}

fn privileges(missing: &[&str]) -> Check {
    if missing.is_empty() {
        return check("privileges", Unfit::Privilege, Level::Ok, "all that is needed");
    }
    let detail = format!("missing: {}; run vsnoop as root", missing.join(" and "));
    check("privileges", Unfit::Privilege, Level::Fail, detail)
}

fn btf() -> Check {
    if kernel::has_btf() {
        return check("BTF", Unfit::Kernel, Level::Ok, "the kernel describes its types");
    }
    let detail = "no /sys/kernel/btf/vmlinux; a kernel with CONFIG_DEBUG_INFO_BTF is needed";
    check("BTF", Unfit::Kernel, Level::Fail, detail)
}

fn bpffs() -> Check {
    match kernel::require_bpffs() {
        Ok(()) => check("bpffs", Unfit::BpfFs, Level::Ok, format!("mounted at {}", kernel::BPFFS)),
        Err(error) => check("bpffs", Unfit::BpfFs, Level::Fail, error.to_string()),
    }
}

fn tcx(probe: Option<&error::Result<Probe>>) -> Check {
    match probe {
        None => check("tcx", Unfit::Kernel, Level::Warn, "cannot be tried without privileges"),
        Some(Ok(_)) => {
            check("tcx", Unfit::Kernel, Level::Ok, "a program was attached and taken off")
        }
        Some(Err(error)) => {
            let text = with_causes(error);
            let text = text.strip_prefix("cannot ").unwrap_or(&text);
            let detail = format!("cannot {text}; Linux 6.6 or newer is needed");
            check("tcx", Unfit::Kernel, Level::Fail, detail)
        }
    }
}

fn jit(probe: &Probe) -> Check {
    if probe.is_compiled {
        return check("BPF JIT", Unfit::Kernel, Level::Ok, "on");
    }
    let detail = "off: programs are interpreted; `sysctl net.core.bpf_jit_enable=1` in the host's own \
                  network namespace";
    check("BPF JIT", Unfit::Kernel, Level::Warn, detail)
}

fn thread_times() -> Check {
    if kernel::has_schedstat() {
        return check("schedstat", Unfit::Kernel, Level::Ok, "run and wait times of threads");
    }
    check(
        "schedstat",
        Unfit::Kernel,
        Level::Warn,
        "no /proc/PID/schedstat: which VMs would gain cannot be told (CONFIG_SCHED_INFO)",
    )
}
