//! A session stays the same while other peers, ports and hosts come and go.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;
use vsnoop_testbed::hosts::Host;

/// Taken from the status of a peer: state, epoch, reconnects, roams.
pub type Session = [Value; 4];

pub fn session(host: &Host, peer: &str) -> Result<Session> {
    let peer = host.peer(peer)?;
    Ok(["state", "epoch", "reconnects", "roams"].map(|key| peer[key].clone()))
}

/// The session with a peer once it has stayed for 3 s: ends that call each other at the same time
/// may agree on the later call.
pub fn settled(host: &Host, peer: &str) -> Result<Session> {
    let (mut stays, mut since) = (session(host, peer)?, Instant::now());
    while since.elapsed() < Duration::from_secs(3) {
        thread::sleep(Duration::from_millis(100));
        let later = session(host, peer)?;
        if later != stays {
            (stays, since) = (later, Instant::now());
        }
    }
    Ok(stays)
}
