//! The mark in a port's record by which the service recognises a port that it attached.

use vsnoop_flow::types::port_meta;

use crate::text::{c_name, c_string};

/// The mark of the service in the record of a port that it attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceMark {
    /// Digest of settings that only attaching anew changes; not 0.
    pub settings: u64,
    /// Digest of the bounds that change while packets flow.
    pub bounds: u32,
    /// Name of the table `[[port]]` that the tap meets, up to 31 bytes.
    pub table: String,
}

impl ServiceMark {
    /// `None`: a command attached the port.
    pub fn from_meta(meta: &port_meta) -> Option<Self> {
        (meta.service != 0).then(|| Self {
            settings: meta.service,
            bounds: meta.service_bounds,
            table: c_string(&meta.table),
        })
    }

    pub(crate) fn write(&self, meta: port_meta) -> port_meta {
        port_meta {
            service: self.settings,
            service_bounds: self.bounds,
            table: c_name(&self.table),
            ..meta
        }
    }
}
