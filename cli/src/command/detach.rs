//! `vsnoop detach`: stops early ACKs, waits until the VM has acknowledged everything, takes the
//! port off.

use anyhow::Result;
use vsnoop_bpf::ServiceMark;
use vsnoop_host::detached_by_operator::{Mark, Marks, Until};
use vsnoop_host::error::with_causes;
use vsnoop_host::holds::{Outstanding, amount};
use vsnoop_host::lock::CommandLock;
use vsnoop_host::port_removal::{Detached, detach};
use vsnoop_host::ports::{self, Attached};
use vsnoop_host::sweep;
use vsnoop_host::system::kernel;
use vsnoop_host::system::netns::Netns;
use vsnoop_host::units;
use vsnoop_service::control;

use crate::cli::{self, Cli};
use crate::drain::{drain_all, drain_port};
use crate::output::report::{self, Outcome};
use crate::output::watch::{Interrupt, print_text};
use crate::splitter;

pub fn run(cli: &Cli, arguments: &cli::Detach) -> Result<u8> {
    kernel::require()?;
    if arguments.all {
        return run_all(cli, arguments);
    }
    let netns = Netns::chosen(cli.netns.as_deref())?;
    let interrupt = Interrupt::catch_signals()?;
    let timeout = arguments.patience.timeout();
    let code = report::report_each(cli, &arguments.ports, |name| {
        let attached = ports::find(name, &netns)?;
        let left = drain_port(&attached, timeout, &interrupt)?;
        // Also while the service is stopped or starts again.
        let is_detached_by_operator =
            control::is_served() || ServiceMark::from_meta(&attached.meta).is_some();
        finish_detach(attached, left, is_detached_by_operator.then_some(Until::Reload))
    })?;
    clean_up()?;
    Ok(code)
}

/// Ports of all network namespaces, or of the one of `--netns`, wait at the same time. Damaged
/// state stays: `off --all` removes it.
fn run_all(cli: &Cli, arguments: &cli::Detach) -> Result<u8> {
    let interrupt = Interrupt::catch_signals()?;
    let found = ports::chosen(&[], cli.netns.as_deref())?;
    let timeout = arguments.patience.timeout();
    if found.ports.is_empty() && !cli.json {
        print_text("nothing was attached")?;
    }
    // With the service stopped, it takes everything off until that starts.
    let until = if arguments.until_start { Until::Start } else { Until::Reload };
    let marked_until = control::is_served().then_some(until);
    let drained = drain_all(&found.ports, timeout, &interrupt);
    let code = report::report_all(
        cli,
        found.ports.into_iter().zip(drained).map(|(port, left)| {
            let name = port.name.clone();
            let detached = left.and_then(|left| finish_detach(port, left, marked_until));
            (name, detached)
        }),
    )?;
    for damaged in &found.damaged {
        eprintln!(
            "vsnoop: {} is damaged ({}); `vsnoop off --all` removes it",
            damaged.path.display(),
            damaged.reason
        );
    }
    clean_up()?;
    Ok(code)
}

/// Removes what killed commands have left, and what no port uses any more.
fn clean_up() -> Result<()> {
    let lock = CommandLock::take()?;
    sweep::sweep(&lock)?;
    splitter::forget_unused(&lock);
    Ok(())
}

/// The lock was not held during the wait, so that other ports could be changed. `marked_until`:
/// until when the service is not to attach it again.
fn finish_detach(
    attached: Attached,
    left: Outstanding,
    marked_until: Option<Until>,
) -> Result<Outcome> {
    let name = attached.name.clone();
    let is_of_service = ServiceMark::from_meta(&attached.meta).is_some();
    let _lock = CommandLock::take()?;
    let mark = marked_until.and_then(|until| set_mark(&attached, until));
    let detached = detach(attached).inspect_err(|_| {
        // Best effort: the error that led here is the one to report.
        let _ = mark.map(|mark| Marks::of_host().remove(mark));
    })?;
    let again = match (marked_until.filter(|_| mark.is_some()), is_of_service) {
        (Some(until), _) => Again::After(until),
        (None, true) if marked_until.is_none() => Again::AtStart,
        _ => Again::Unknown,
    };
    Ok(build_outcome(&name, left, detached, again))
}

/// When the service may attach a port that was detached.
#[derive(Clone, Copy)]
enum Again {
    After(Until),
    /// It does not run, and the port was its own.
    AtStart,
    /// It has nothing to do with the port, or there was a warning.
    Unknown,
}

impl Again {
    fn as_text(self) -> &'static str {
        match self {
            Self::After(Until::Reload) => "; the service leaves it off until `vsnoop reload`",
            Self::After(Until::Start) => {
                "; the service leaves it off until it starts again or `vsnoop reload`"
            }
            Self::AtStart => "; no service runs: the next one may attach it when it starts",
            Self::Unknown => "",
        }
    }

    /// In JSON.
    fn until(self) -> Option<&'static str> {
        match self {
            Self::After(Until::Reload) => Some("reload"),
            Self::After(Until::Start) | Self::AtStart => Some("start"),
            Self::Unknown => None,
        }
    }
}

/// Before the hooks are off: the service must not find a tap without hooks and without a mark.
fn set_mark(attached: &Attached, until: Until) -> Option<Mark> {
    let marked = Mark::from_device(&attached.netns()?, attached.meta.ifindex)
        .and_then(|mark| Marks::of_host().add(mark, until).map(|()| mark));
    marked
        .inspect_err(|error| {
            let (name, error) = (&attached.name, with_causes(error));
            eprintln!("vsnoop: port {name}: the service may attach it again: {error}");
        })
        .ok()
}

fn build_outcome(name: &str, left: Outstanding, detached: Detached, again: Again) -> Outcome {
    // The mark of a tap that is gone says nothing of the next one.
    let again = if detached.tap_deleted { Again::Unknown } else { again };
    // Otherwise the ring is gone, or another process reports it.
    let has_ring = !detached.tap_deleted && !detached.by_another;
    let ended = detached.ended;
    let left = if has_ring { left.without(ended) } else { Outstanding::default() };
    let mut text = format!("{name}: detached");
    if detached.tap_deleted {
        text.push_str("; the tap had been deleted before");
    }
    if detached.by_another {
        text.push_str(" meanwhile, by somebody else or because its tap was deleted");
    }
    if ended.flows > 0 {
        text.push_str(&format!("; {} reset", units::plural(ended.flows, "connection")));
    }
    if let Some(note) = detached.note {
        text.push_str(&format!("; {note}"));
    }
    text.push_str(again.as_text());
    let mut warnings = Vec::new();
    if ended.flows > 0 {
        warnings.push(format!(
            "{} had not been handed to the VM: they were lost with the hold, and these connections \
             were reset at both ends",
            amount(ended.held_bytes, ended.flows)
        ));
    }
    if left.bytes > 0 {
        warnings.push(format!(
            "{} were still on their way to the VM: they are in its ring, and it has not acknowledged \
             them yet",
            left.describe_outstanding()
        ));
    }
    Outcome {
        outstanding_flows: Some(left.flows),
        outstanding_bytes: Some(left.bytes),
        reset_flows: Some(ended.flows),
        reset_bytes: Some(ended.held_bytes),
        detached_until: again.until(),
        warning: (!warnings.is_empty())
            .then(|| format!("port {name} was detached while {}", warnings.join("; "))),
        ..Outcome::done(name, "detached", text)
    }
}
