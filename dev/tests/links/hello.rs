//! Hello messages of the hosts in the tests.

use vsnoop_link::compress::CompressionLimits;
use vsnoop_link::handshake::{Hello, HelloTransport, Purpose, Versions};

/// Makes the hello of a host that calls over `udp`; `session`: its number of the session.
pub fn hello(session: u32) -> Hello {
    Hello {
        versions: Versions::OURS,
        purpose: Purpose::Control,
        network: "test".to_owned(),
        instance: 1,
        session,
        epoch: 0,
        transport: HelloTransport::Udp,
        connections: 1,
        mtu_bytes: 1500,
        takes: Vec::new(),
        accepts: CompressionLimits::NONE,
        ecn: true,
        software: String::new(),
    }
}
