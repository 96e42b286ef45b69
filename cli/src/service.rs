//! The service, as other commands see it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use vsnoop_host::error::{Unfit, with_causes};
use vsnoop_host::units;
use vsnoop_service::control::{
    self, DetachedTap, FailedMonitor, FailedPort, Request, Response, State,
};

use crate::error::unfit_error;
use crate::log;

/// The error of what needs a service.
pub const NOT_RUNNING: &str =
    "no service runs on this host: `vsnoop run` or `systemctl start vsnoop`";

/// Whether a service runs on this host, and what it says.
#[derive(Default, Serialize)]
pub struct ServiceStatus {
    running: bool,
    /// Null, as all that follows is null or empty, if the service gives no answer.
    pid: Option<i32>,
    file: Option<PathBuf>,
    tables: Vec<String>,
    failed: Vec<FailedPort>,
    detached_by_operator: Vec<DetachedTap>,
    /// Taps that it leaves alone, because no VM is behind them.
    no_vms: Vec<FailedPort>,
    failed_monitors: Vec<FailedMonitor>,
    /// Where it answers Prometheus, and why it does not.
    metrics: Option<SocketAddr>,
    metrics_failed: Option<String>,
    log_lines_lost: u64,
    #[serde(skip)]
    trouble: Option<String>,
}

impl ServiceStatus {
    pub fn of_host() -> Self {
        match control::ask(Request::Status) {
            Ok(None) => Self::default(),
            Ok(Some(Response::Status(state))) => Self::from_state(state),
            Ok(Some(Response::Refused { reason })) => Self::from_silent(reason),
            Ok(Some(_)) => Self::from_silent("it answers something else".to_owned()),
            Err(error) => Self::from_silent(with_causes(&error)),
        }
    }

    fn from_state(state: State) -> Self {
        Self {
            running: true,
            pid: Some(state.pid),
            file: Some(state.file),
            tables: state.tables,
            failed: state.failed,
            detached_by_operator: state.detached_by_operator,
            no_vms: state.no_vms,
            failed_monitors: state.failed_monitors,
            metrics: state.metrics,
            metrics_failed: state.metrics_failed,
            log_lines_lost: state.log_lines_lost,
            trouble: None,
        }
    }

    fn from_silent(trouble: String) -> Self {
        Self { running: true, trouble: Some(trouble), ..Self::default() }
    }

    /// Its configuration; `None` unless it runs and answers.
    pub fn config_file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// An error unless it runs and answers.
    pub fn require_running(&self) -> Result<()> {
        match (&self.trouble, self.running) {
            (Some(trouble), _) => {
                let text = format!("the service does not say how it is: {trouble}");
                Err(unfit_error(Unfit::Other, text))
            }
            (None, false) => Err(unfit_error(Unfit::Other, NOT_RUNNING)),
            (None, true) => Ok(()),
        }
    }

    /// Lines for people.
    pub fn describe_lines(&self) -> Vec<String> {
        if let Some(trouble) = &self.trouble {
            return vec![format!("the service does not say how it is: {trouble}")];
        }
        let (Some(pid), Some(file)) = (self.pid, &self.file) else {
            let missing =
                "no service runs: taps that come are not attached, `vsnoop run` starts it";
            return vec![missing.to_owned()];
        };
        let tables = units::plural(self.tables.len() as u64, "table");
        let file = file.display();
        let mut lines =
            vec![format!("the service runs (process {pid}; {file}, {tables} [[port]])")];
        lines.extend(self.failed.iter().map(|failed| {
            format!("{}: the service cannot attach it: {}", failed.port, failed.reason)
        }));
        lines.extend(
            self.no_vms
                .iter()
                .map(|tap| format!("{}: the service leaves it alone: {}", tap.port, tap.reason)),
        );
        if !self.detached_by_operator.is_empty() {
            let names: Vec<_> =
                self.detached_by_operator.iter().map(|left| left.port.as_str()).collect();
            lines.push(format!(
                "the service leaves off what was detached: {}; `vsnoop reload` attaches it again",
                names.join(", ")
            ));
        }
        lines.extend(self.failed_monitors.iter().map(|monitor| {
            let FailedMonitor { path, reason } = monitor;
            format!("QMP monitor {path}: {reason}; a migration of its VM is not noticed")
        }));
        lines.extend(self.metrics_failed.clone());
        lines.extend(log::loss_text("the service", self.log_lines_lost));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_says_what_it_cannot_attach_and_is_named_if_it_does_not_run() {
        let running = ServiceStatus::from_state(State {
            pid: 7,
            file: "/f.toml".into(),
            tables: vec!["web".into()],
            failed: vec![FailedPort { port: "tap0".into(), netns: 1, reason: "why".into() }],
            detached_by_operator: vec![DetachedTap { port: "tap1".into(), netns: 1 }],
            no_vms: vec![FailedPort { port: "tap2".into(), netns: 1, reason: "a VPN".into() }],
            failed_monitors: vec![FailedMonitor { path: "/q".into(), reason: "silent".into() }],
            metrics: None,
            metrics_failed: Some("no endpoint".into()),
            log_lines_lost: 2,
        });
        let lines = running.describe_lines();
        assert_eq!(lines[0], "the service runs (process 7; /f.toml, 1 table [[port]])");
        assert_eq!(lines[1], "tap0: the service cannot attach it: why");
        assert_eq!(lines[2], "tap2: the service leaves it alone: a VPN");
        assert!(lines[3].contains("detached: tap1; `vsnoop reload`"), "{}", lines[3]);
        assert_eq!(lines[4], "QMP monitor /q: silent; a migration of its VM is not noticed");
        assert_eq!(lines[5], "no endpoint");
        assert!(
            lines[6].starts_with("2 lines of the log of the service were lost"),
            "{}",
            lines[6]
        );
        let missing = ServiceStatus::default().describe_lines();
        assert!(missing.len() == 1 && missing[0].starts_with("no service runs"), "{missing:?}");
    }
}
