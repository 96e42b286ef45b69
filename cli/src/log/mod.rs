//! The log of a background process, a link or the service: to the system's log, or in the
//! foreground to standard error.
//!
//! A log that takes no lines never stops the process: [`lines`] drops them, counts them, and says
//! the number when lines are taken again. A process that waits for its log would end no session, no
//! key and no flow in time, and would not hear SIGTERM. [`stderr`] and [`syslog`] are the two
//! destinations; [`journal`] has the form of lines for systemd. `vsnoop status` and `vsnoop link
//! status` show the number, too: [`note`] has that of helper and engine.

mod journal;
mod lines;
pub mod note;
mod stderr;
mod syslog;

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry, reload};
use vsnoop_host::units;

use self::journal::JournalLines;
pub use self::lines::lost_lines as lines_lost;
use self::lines::{Destination, Lines};
use self::stderr::Stderr;
use self::syslog::Syslog;

/// This process has a log.
static IS_LOGGING: AtomicBool = AtomicBool::new(false);

/// Changes the log filter, given in the syntax of RUST_LOG.
pub type LogBy = Box<dyn Fn(&str) -> Result<()>>;

/// Logs to the system's log, or in the foreground to stderr, which may be the journal. RUST_LOG
/// sets the filter, and the returned function changes it.
pub fn log_to(foreground: bool) -> Result<LogBy> {
    let filter = std::env::var("RUST_LOG").ok().and_then(|words| words.parse().ok());
    let (filter, handle) =
        reload::Layer::new(filter.unwrap_or_else(|| Targets::new().with_default(Level::INFO)));
    let layer = fmt::layer().with_target(false);
    let stderr = || Stderr::open().context("open standard error for the log");
    if foreground && journal::has_stderr() {
        let lines = Lines::new(stderr()?, |text| {
            format!("<{}>{text}\n", journal::syslog_priority(Level::WARN))
        });
        let layer = layer.event_format(JournalLines::new()).with_writer(lines);
        registry().with(layer.with_filter(filter)).init();
    } else if foreground {
        let is_terminal = std::io::stderr().is_terminal();
        let lines = Lines::new(stderr()?, |text| format!("{}  WARN {text}\n", format_now()));
        let layer = layer.with_writer(lines).with_ansi(is_terminal);
        registry().with(layer.with_filter(filter)).init();
    } else {
        let lines = Lines::new(Syslog::new(), |text| text.to_owned());
        // The log stamps its lines itself.
        let layer = layer.without_time().with_ansi(false).with_level(false).with_writer(lines);
        registry().with(layer.with_filter(filter)).init();
    }
    log_panics();
    IS_LOGGING.store(true, Ordering::Relaxed);
    Ok(Box::new(move |words| {
        let filter: Targets = words.parse().with_context(|| format!("log by {words}"))?;
        handle.reload(filter).context("change what is logged")
    }))
}

/// Prints the error with which this process ends. One that has a log may not wait for the reader of
/// standard error then, either.
pub fn print_error(message: &str) {
    if !IS_LOGGING.load(Ordering::Relaxed) {
        eprintln!("vsnoop: {message}");
    } else if let Ok(mut stderr) = Stderr::open() {
        let _ = stderr.write(Level::ERROR, format!("vsnoop: {message}\n").as_bytes());
    }
}

/// A message about the lines of its log that a process has lost; `None` if it has lost none.
pub fn loss_text(process: &str, lines: u64) -> Option<String> {
    let count = units::plural(lines, "line");
    let were = if lines == 1 { "was" } else { "were" };
    (lines > 0).then(|| {
        format!(
            "{count} of the log of {process} {were} lost: what reads it was stuck, or is not there"
        )
    })
}

/// The time now, as [`fmt::layer`] writes it.
fn format_now() -> String {
    let mut text = String::new();
    // A String takes everything.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// The default hook waits until standard error takes its lines, and is not in the system's log.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
}
