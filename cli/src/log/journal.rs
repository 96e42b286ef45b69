//! Lines for the journal: systemd takes the priority from the beginning of a line (sd-daemon(3)),
//! and has the time itself.

use std::os::fd::AsFd;

use nix::sys::stat::fstat;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Names the journal's end of a stream, as DEVICE:INODE (systemd.exec(5)).
const STREAM: &str = "JOURNAL_STREAM";

/// Is standard error what systemd has connected with the journal?
pub fn has_stderr() -> bool {
    let stream = std::env::var(STREAM).unwrap_or_default();
    fstat(std::io::stderr().as_fd())
        .is_ok_and(|stderr| stream == format!("{}:{}", stderr.st_dev, stderr.st_ino))
}

pub struct JournalLines(Format<Full, ()>);

impl JournalLines {
    pub fn new() -> Self {
        let lines = Format::default().without_time().with_level(false).with_target(false);
        Self(lines.with_ansi(false))
    }
}

impl<S, N> FormatEvent<S, N> for JournalLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        write!(writer, "<{}>", syslog_priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// syslog(3)
pub fn syslog_priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}
