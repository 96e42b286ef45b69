//! Checks before a link is created. Each error names the object and a remedy. An unreachable peer
//! is no error: the link calls it repeatedly.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use anyhow::{Context, Result};
use nix::ifaddrs::getifaddrs;
use vsnoop_host::error::Unfit;
use vsnoop_host::system::netdev::{self, Device};
use vsnoop_linkd::config::{Address, Config, PeerConfig, PortConfig, PortKind, TrustConfig};
use vsnoop_linkd::control::{AlreadyUp, LinkFiles};
use vsnoop_linkd::identity::credentials;
use vsnoop_linkd::{Membership, listen_address};

use crate::error::unfit_error;

/// Checks files and the host, in the network namespace (called `place`) of the calling thread.
/// Returns warnings.
pub fn run_checks(config: &Config, place: &str) -> Result<Vec<String>> {
    // First, because it explains an address in use.
    if LinkFiles::new(&config.name).is_taken()? {
        return Err(AlreadyUp(config.name.clone()).into());
    }
    check_identity(config)?;
    let mut warnings = Vec::new();
    for port in &config.ports {
        warnings.extend(self::check_port(port, config, place)?);
    }
    own_way_out(config)?;
    for interface in config.diverted_interfaces() {
        if let Some(device) = netdev::find(interface)? {
            check_diverted(interface, &device, config)?;
        } else {
            warnings.push(format!(
                "interface {interface} does not exist in the network namespace {place} now; its traffic is \
                 diverted as soon as it does"
            ));
        }
    }
    check_listen(listen_address(config.listen))?;
    warnings.extend(check_etcd(config)?);
    warnings.extend(config.list_unencrypted().map(|peer| {
        format!(
            "traffic with peer {} is NOT ENCRYPTED ({}): everybody on the way can read it, change it and \
             send frames to the VMs; use udp or tls for anything but measurements",
            peer.name, peer.transport
        )
    }));
    Ok(warnings)
}

fn check_identity(config: &Config) -> Result<()> {
    let other = |error| unfit_error(Unfit::Other, format!("{:#}", anyhow::Error::new(error)));
    let cert = config.authority.as_ref().map(|authority| authority.cert.as_path());
    let own = credentials::read_identity(&config.key, cert).map_err(other)?;
    if let Some(authority) = &config.authority {
        let authority = credentials::read_authority(authority).map_err(other)?;
        authority.check_lists(&own).map_err(|error| other(error.into()))?;
    }
    let is_own = |peer: &&PeerConfig| match &peer.trust {
        TrustConfig::Keys(keys) => keys.contains(&own.public_key()),
        TrustConfig::Subject(_) => false,
    };
    match config.peers.iter().find(is_own) {
        Some(peer) => Err(unfit_error(
            Unfit::Other,
            format!(
                "peer {} has the key of this host; give the one that `vsnoop link keygen FILE --show` prints \
                 on its host",
                peer.name
            ),
        )),
        None => Ok(()),
    }
}

/// Can the files be read by which etcd is reached? That it is away is no error.
fn check_etcd(config: &Config) -> Result<Option<String>> {
    Membership::etcd_settings(config)
        .map_err(|error| unfit_error(Unfit::Other, format!("{:#}", anyhow::Error::new(error))))?;
    let Some(etcd) = &config.etcd else { return Ok(None) };
    let open = etcd.endpoints.iter().find(|endpoint| !endpoint.is_encrypted);
    Ok(open.map(|endpoint| {
        format!(
            "the connection to etcd at {endpoint} is NOT ENCRYPTED: who can change it on the way decides who \
             is a peer; use https:// anywhere but on a network of your own"
        )
    }))
}

fn check_port(port: &PortConfig, config: &Config, place: &str) -> Result<Vec<String>> {
    let name = &port.name;
    let there = netdev::find(name)?;
    let mut warnings = Vec::new();
    let carrier = match &port.kind {
        PortKind::Interface => {
            let device = there.ok_or_else(|| netdev::does_not_exist(name, place))?;
            warnings.extend(check_bridged(&device, config)?);
            Some(device)
        }
        PortKind::Bridge(_) | PortKind::Tap if there.is_some() => {
            let file = config.file.display();
            let text = format!(
                "interface {name} exists already, and the link would make it: give interface = \"{name}\" in \
                 {file} if it is a VM's, or name another one; `ip link del {name}` if it is left over"
            );
            return Err(unfit_error(Unfit::Other, text));
        }
        PortKind::Bridge(bridge) => Some(self::find_bridge(bridge, place)?),
        PortKind::Tap => None,
    };
    warnings.extend(carrier.and_then(|device| check_mtu(&device, config)));
    Ok(warnings)
}

/// Warns of a port that is in a bridge: link and bridge both get what the interface receives, and
/// the link does not get what the bridge sends out of it.
fn check_bridged(device: &Device, config: &Config) -> Result<Option<String>> {
    let bridge = device.master.map(netdev::find_index).transpose()?.flatten();
    let Some(bridge) = bridge.filter(|bridge| bridge.kind == "bridge") else { return Ok(None) };
    let (name, bridge) = (&device.name, &bridge.name);
    let is_port_too = config.ports.iter().any(|port| port.kind == PortKind::Bridge(bridge.clone()));
    Ok(Some(if is_port_too {
        format!(
            "port {name} is in bridge {bridge}, which is a port, too: what comes in by {name} goes through the \
             link twice; leave out the [[port]] with interface = \"{name}\", or take {name} out of the bridge \
             (`ip link set {name} nomaster`)"
        )
    } else {
        format!(
            "port {name} is in bridge {bridge}, of which the link gets only what comes in by {name}: others \
             in {bridge} and the peers do not reach each other; give bridge = \"{bridge}\" instead, or take \
             {name} out of the bridge (`ip link set {name} nomaster`)"
        )
    }))
}

fn find_bridge(name: &str, place: &str) -> Result<Device> {
    match netdev::find(name)? {
        Some(device) if device.kind == "bridge" => Ok(device),
        Some(device) => {
            let kind = device.kind_words();
            let text = format!(
                "{name} is no bridge but a {kind}; a link takes such an interface as `interface = \"{name}\"`"
            );
            Err(unfit_error(Unfit::Other, text))
        }
        None => Err(unfit_error(
            Unfit::NoPort,
            format!(
                "bridge {name} does not exist in the network namespace {place}; \
                 `ip link add {name} type bridge` makes one, --netns names another namespace"
            ),
        )),
    }
}

/// Diversion needs the tap of a VM: only there a packet is known to come from the VM.
fn check_diverted(interface: &str, device: &Device, config: &Config) -> Result<()> {
    let divert = config.diverts.iter().find(|divert| divert.interface == interface);
    let Some(divert) = divert.filter(|_| device.tap.is_none()) else { return Ok(()) };
    let why = format!(
        "this is a {}, not a tap, and diversion is of what comes from the tap of a VM: name that one (`ip link \
         show type tun` lists taps, those of VMs in pods in their network namespaces)",
        device.kind_words()
    );
    Err(unfit_error(Unfit::NotATap, config.wrong_interface(divert, &why).to_string()))
}

/// The link's own packets must not leave by a port: the link would carry them again.
fn own_way_out(config: &Config) -> Result<()> {
    for port in config.ports.iter().filter(|port| port.kind == PortKind::Interface) {
        let addresses = addresses_of(&port.name)?;
        // Names of hosts are not resolved yet.
        let peers = config.peers.iter().flat_map(|peer| {
            let at = |address: &Address| {
                Some((&peer.name, SocketAddr::new(address.literal()?, address.port)))
            };
            peer.addresses.iter().filter_map(at).collect::<Vec<_>>()
        });
        for (peer, to) in peers {
            if way_out(to).is_some_and(|from| addresses.contains(&from)) {
                let text = format!(
                    "{} is the interface by which this host reaches peer {peer} ({to}), so it cannot be a port \
                     of the link: give another interface, or the VMs' bridge",
                    port.name
                );
                return Err(unfit_error(Unfit::Other, text));
            }
        }
    }
    Ok(())
}

/// The address of this host from which packets to `to` would leave now; nothing is sent.
fn way_out(to: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn addresses_of(interface: &str) -> Result<Vec<IpAddr>> {
    let all = getifaddrs().context("list the addresses of this host")?;
    let of_it = all.filter(|entry| entry.interface_name == interface);
    Ok(of_it
        .filter_map(|entry| {
            let address = entry.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
        })
        .collect())
}

fn check_mtu(device: &Device, config: &Config) -> Option<String> {
    (device.mtu < u32::from(config.mtu_bytes)).then(|| {
        format!(
            "{} has an MTU of {}, less than link.mtu = {}: longer frames are lost there",
            device.name, device.mtu, config.mtu_bytes
        )
    })
}

/// Is the address one of this host, and free?
fn check_listen(address: SocketAddr) -> Result<()> {
    let tried = UdpSocket::bind(address).map(drop).map_err(|error| ("UDP", "u", error));
    let tried = tried
        .and_then(|()| TcpListener::bind(address).map(drop).map_err(|error| ("TCP", "t", error)));
    let Err((protocol, letter, error)) = tried else { return Ok(()) };
    let text = match error.kind() {
        std::io::ErrorKind::AddrInUse => format!(
            "{protocol} port {address} is in use by another process; `ss -{letter}lnp` shows it, link.listen \
             chooses another one"
        ),
        std::io::ErrorKind::AddrNotAvailable => format!(
            "{address} is no address of this host; set link.listen to one of `ip address`, or to \"[::]:{}\"",
            address.port()
        ),
        _ => format!("cannot listen at {protocol} port {address}: {error}"),
    };
    Err(unfit_error(Unfit::Other, text))
}
