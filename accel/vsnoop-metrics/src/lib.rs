//! Metrics of ports and of the service, and the endpoint where Prometheus reads them
//! (docs/reference/metrics.md).
//!
//! A metric is defined once: `counters` has the counters of the hooks, `of_port`, `of_uplink` and
//! `of_service` the other values, each with its name, its help and how it is read. `stats --json`,
//! the endpoint (`exposition`) and docs/reference/metrics.md (`document`) are made of these
//! definitions.
//!
//! A scrape (`scrape`) reads all ports (`port`) with what is known around their taps
//! (`surroundings`), at most once a second for all that ask; `endpoint` is the HTTP server.

pub mod counters;
mod definition;
pub mod document;
mod endpoint;
mod error;
mod exposition;
mod of_port;
mod of_service;
mod of_uplink;
mod port;
mod scrape;
pub mod split;
mod surroundings;

pub use endpoint::Endpoint;
pub use error::{Error, Result};
pub use of_service::{Background, Facts};
pub use scrape::Scrape;
