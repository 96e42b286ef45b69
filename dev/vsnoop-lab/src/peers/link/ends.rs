//! Where connections over a carrier begin and end.

use std::net::Ipv4Addr;
use std::sync::Arc;

use vsnoop_testbed::net::Netns;

/// Where connections over a carrier begin and end.
#[derive(Clone, Debug)]
pub struct Ends {
    pub client: Arc<Netns>,
    pub server: Arc<Netns>,
    /// The server's address, as the client sees it.
    pub address: Ipv4Addr,
    /// The devices of both, where offloads can be switched without changing the path itself.
    pub devices: Option<[String; 2]>,
    /// The client connects to this port of its own, and not to the server's.
    pub forwarded_from: Option<u16>,
}

impl Ends {
    /// On the path itself, without devices of a carrier.
    pub fn new(client: &Arc<Netns>, server: &Arc<Netns>, address: Ipv4Addr) -> Self {
        let (client, server) = (client.clone(), server.clone());
        Self { client, server, address, devices: None, forwarded_from: None }
    }
}
