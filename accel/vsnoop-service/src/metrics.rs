//! The endpoint for Prometheus where the configuration wants it, and what it says of the service.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vsnoop_host::error::with_causes;
use vsnoop_metrics::{Background, Endpoint, Facts, Scrape};

use crate::error::Result;

/// Pause before the service tries again to listen. The address may come later than the service.
const RETRY: Duration = Duration::from_secs(5);

pub struct Metrics {
    endpoint: Endpoint,
    facts: Arc<Mutex<Facts>>,
    missing: Option<Missing>,
}

/// The configuration wants the endpoint there, and it is not.
struct Missing {
    at: SocketAddr,
    reason: String,
    tried: Instant,
}

impl Metrics {
    /// `background` says whether helper and engine run.
    pub fn start(background: fn() -> Background) -> Result<Self> {
        let facts = Arc::default();
        let endpoint = Endpoint::start(Scrape::new(Arc::clone(&facts), background))?;
        Ok(Self { endpoint, facts, missing: None })
    }

    /// Listens there if that is possible; else it is logged and tried again, since ports are
    /// attached without it as well.
    pub fn begin(&mut self, at: Option<SocketAddr>) {
        let Err(error) = self.listen(at) else { return };
        let reason = with_causes(&error);
        if self.missing.is_none() {
            tracing::warn!("{reason}; tried again every {RETRY:?}");
        }
        self.missing = at.map(|at| Missing { at, reason, tried: Instant::now() });
    }

    /// After an error all is as it was before.
    pub fn listen(&mut self, at: Option<SocketAddr>) -> Result<()> {
        if self.endpoint.at() != at {
            self.endpoint.listen(at)?;
            if let Some(at) = at {
                tracing::info!("metrics for Prometheus: http://{at}/metrics");
            }
        }
        self.missing = None;
        Ok(())
    }

    /// Listens again, [`RETRY`] after the endpoint could not listen at its address.
    pub fn try_again(&mut self) {
        let due = self.missing.as_ref().filter(|missing| missing.tried.elapsed() >= RETRY);
        if let Some(at) = due.map(|missing| missing.at) {
            self.begin(Some(at));
        }
    }

    /// Time until then.
    pub fn pause(&self) -> Option<Duration> {
        self.missing.as_ref().map(|missing| RETRY.saturating_sub(missing.tried.elapsed()))
    }

    /// Where it listens, and why it does not.
    pub fn state(&self) -> (Option<SocketAddr>, Option<String>) {
        (self.endpoint.at(), self.missing.as_ref().map(|missing| missing.reason.clone()))
    }

    /// Changes what the metrics say of the service.
    pub fn note(&self, change: impl FnOnce(&mut Facts)) {
        change(&mut self.facts.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
