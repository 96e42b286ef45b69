//! What both ways to drive QUIC have in common: TLS 1.3 with AES-128-GCM, the unreliable datagrams of
//! RFC 9221, and a transport that is held back by as little as it lets itself be.
//!
//! Buffers never drop; the path's MTU is known from the start and searched for nevertheless; the
//! receiver is asked to acknowledge each 64 packets (the ACK frequency extension) instead of each
//! second one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quinn_proto::congestion::{
    BbrConfig, Controller, ControllerFactory, ControllerMetrics, CubicConfig,
};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    AckFrequencyConfig, ClientConfig, MtuDiscoveryConfig, ServerConfig, TransportConfig,
};
use rustls::crypto::aws_lc_rs::{cipher_suite::TLS13_AES_128_GCM_SHA256, default_provider};
use rustls::pki_types::PrivateKeyDer;

pub const SERVER_NAME: &str = "vsnoop";

/// More than is ever under way, twice.
const DATAGRAM_BUFFER_BYTES: usize = 8 << 20;

/// Of UDP payload: an MTU of 1500, less the headers of IPv4 and UDP.
const MTU_BYTES: u16 = 1472;

const PACKETS_PER_ACK: u32 = 64;
const MAX_ACK_DELAY: Duration = Duration::from_millis(5);

/// What limits the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    Cubic,
    Bbr,
    /// Nothing does, and nothing is paced.
    None,
}

/// Both ends' configuration, with a certificate for this occasion.
#[derive(Clone)]
pub struct Config {
    pub client: ClientConfig,
    pub server: ServerConfig,
}

impl Config {
    pub fn new(congestion: Congestion) -> Result<Self> {
        let mut provider = default_provider();
        provider.cipher_suites = vec![TLS13_AES_128_GCM_SHA256];
        let provider = Arc::new(provider);
        let own = rcgen::generate_simple_self_signed(vec![SERVER_NAME.into()])
            .context("make a certificate")?;
        let certificate = own.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.clone())?;
        let tls13 = &[&rustls::version::TLS13];
        let client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(tls13)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(tls13)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let transport = Arc::new(transport(congestion));
        let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(client)?));
        client.transport_config(transport.clone());
        let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server)?));
        server.transport_config(transport);
        Ok(Self { client, server })
    }
}

fn transport(congestion: Congestion) -> TransportConfig {
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(PACKETS_PER_ACK.into()).max_ack_delay(Some(MAX_ACK_DELAY));
    let mut search = MtuDiscoveryConfig::default();
    search.upper_bound(MTU_BYTES);
    let mut transport = TransportConfig::default();
    transport
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES)
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES))
        .initial_mtu(MTU_BYTES)
        .mtu_discovery_config(Some(search))
        .ack_frequency_config(Some(acks))
        .enable_segmentation_offload(true);
    match congestion {
        Congestion::Cubic => {
            transport.congestion_controller_factory(Arc::new(CubicConfig::default()))
        }
        Congestion::Bbr => transport.congestion_controller_factory(Arc::new(BbrConfig::default())),
        Congestion::None => transport.congestion_controller_factory(Arc::new(Unlimited)),
    };
    transport
}

/// A controller that controls nothing. A window beyond 32 bits also switches pacing off.
#[derive(Clone, Copy, Debug)]
struct Unlimited;

const UNLIMITED_BYTES: u64 = 1 << 40;

impl ControllerFactory for Unlimited {
    fn build(self: Arc<Self>, _now: Instant, _current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Self)
    }
}

impl Controller for Unlimited {
    fn on_congestion_event(&mut self, _: Instant, _: Instant, _: bool, _: u64) {}

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        UNLIMITED_BYTES
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = UNLIMITED_BYTES;
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(*self)
    }

    fn initial_window(&self) -> u64 {
        UNLIMITED_BYTES
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}
