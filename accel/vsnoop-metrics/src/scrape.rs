//! Reads all values, for one scrape.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use vsnoop_bpf::Uplink;
use vsnoop_host::error::{Result, with_causes};
use vsnoop_host::incast::listed;
use vsnoop_host::ports::{self, AttachmentState};

use crate::exposition::Sample;
use crate::of_service::{Background, Facts, ServiceSample};
use crate::port::PortSample;
use crate::surroundings::Surroundings;

/// Who asks again within this time gets the same text: several clients cost no more than one.
const FRESH: Duration = Duration::from_secs(1);

/// Reads ports, uplinks, and what the service knows.
pub struct Scrape {
    facts: Arc<Mutex<Facts>>,
    background: fn() -> Background,
    surroundings: Surroundings,
    unread: u64,
    last: Option<(Instant, Bytes)>,
}

/// Why there are no values.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    #[error(transparent)]
    Host(#[from] vsnoop_host::error::Error),
    #[error("the values cannot be written as text")]
    Text(#[from] fmt::Error),
}

impl Scrape {
    /// `facts`: what the service publishes. `background` says whether helper and engine run.
    pub fn new(facts: Arc<Mutex<Facts>>, background: fn() -> Background) -> Self {
        Self { facts, background, surroundings: Surroundings::default(), unread: 0, last: None }
    }

    /// The text of all series, at most [`FRESH`] old.
    pub fn read_text(&mut self) -> std::result::Result<Bytes, Unread> {
        if let Some((at, text)) = &self.last
            && at.elapsed() < FRESH
        {
            return Ok(text.clone());
        }
        let text = Bytes::from(self.read()?.render_text()?);
        self.last = Some((Instant::now(), text.clone()));
        Ok(text)
    }

    fn read(&mut self) -> Result<Sample> {
        let began = Instant::now();
        let mut inventory = ports::inventory()?;
        // A port whose tap is gone has only pins left; another tap may have its name.
        inventory.ports.retain(|port| port.state != AttachmentState::Gone);
        // The latest one first: taps that exchange their names have the same one for a moment.
        inventory.ports.sort_by_key(|port| std::cmp::Reverse(port.meta.attached_at));
        let mut places = self.surroundings.find_places(&inventory.ports);
        let mut names = HashSet::new();
        let mut samples = Vec::new();
        for attached in &inventory.ports {
            let key = (attached.meta.netns, attached.meta.ifindex);
            let place = places.remove(&key).unwrap_or_default();
            match PortSample::read(attached, &place) {
                Ok(sample) => {
                    let (netns, port) = sample.labels.name();
                    if names.insert((netns.to_owned(), port.to_owned())) {
                        samples.push(sample);
                    }
                }
                // Detached meanwhile.
                Err(_) if !attached.port.is_there() => {}
                Err(error) => {
                    self.unread += 1;
                    tracing::debug!("port {}: {}", attached.name, with_causes(&error));
                }
            }
        }
        let uplinks = if Uplink::are_any() { listed::all()? } else { listed::Uplinks::default() };
        let facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let service = ServiceSample {
            facts,
            background: (self.background)(),
            ports: inventory.ports.len(),
            damaged: inventory.damaged.len() + uplinks.damaged.len(),
            unread: self.unread,
            duration: began.elapsed(),
        };
        Ok(Sample { ports: samples, uplinks: uplinks.uplinks, service })
    }
}
