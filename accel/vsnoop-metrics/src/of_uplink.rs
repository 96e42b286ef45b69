//! The metrics of an uplink with incast control.

use vsnoop_host::incast::UplinkControl;
use vsnoop_host::incast::listed::ListedUplink;

use crate::definition::{Definition, gauge, some_gauge, states};

/// Labels of all series of an uplink.
pub fn labels(uplink: &ListedUplink) -> [(&'static str, &str); 2] {
    [("uplink", &uplink.state.name), ("netns", uplink.netns_name.as_deref().unwrap_or_default())]
}

const STATES: &[&str] = &["on", "off", "gone", "unhooked"];

pub fn metrics() -> Vec<Definition<ListedUplink>> {
    let bytes = |bits: u64| bits as f64 / 8.0;
    vec![
        states(
            "uplink_state",
            "1 for the present state of incast control: on, off (turned off), gone (the interface \
             was deleted), unhooked (its hook was removed)",
            STATES,
            |uplink: &ListedUplink| match uplink.state.state {
                UplinkControl::On => "on",
                UplinkControl::Off => "off",
                UplinkControl::Gone => "gone",
                UplinkControl::Unhooked => "unhooked",
            },
        )
        .json("incast.state"),
        gauge("uplink_ports", "ports behind the uplink", |uplink: &ListedUplink| {
            uplink.ports.len() as f64
        }),
        gauge(
            "uplink_limit_bytes_per_second",
            "rate of the last hop; 0 unless windows are shaped",
            move |uplink: &ListedUplink| bytes(uplink.state.rate_bits_per_second),
        ),
        some_gauge(
            "uplink_received_bytes_per_second",
            "rate that comes in; missing unless on",
            move |uplink: &ListedUplink| uplink.state.bandwidth.total_bits_per_second.map(bytes),
        ),
        gauge("uplink_flows", "connections that are shaped", |uplink: &ListedUplink| {
            uplink.state.flows as f64
        })
        .json("incast.flows"),
        gauge("uplink_waiting_flows", "connections in the grant queue", |uplink: &ListedUplink| {
            uplink.state.waiting as f64
        })
        .json("incast.waiting"),
        gauge("uplink_granted_bytes", "outstanding credit", |uplink: &ListedUplink| {
            uplink.state.granted_bytes as f64
        })
        .json("incast.granted_bytes"),
        some_gauge(
            "uplink_credit_bytes",
            "limit of the outstanding credit; missing unless on",
            |uplink: &ListedUplink| uplink.state.credit_bytes.map(f64::from),
        )
        .json("incast.credit_bytes"),
    ]
}
