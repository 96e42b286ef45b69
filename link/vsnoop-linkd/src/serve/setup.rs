//! Opening what a link needs of the host: keys, sockets, ports, threads.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use socket2::{Domain, Socket, Type};

use crate::config::{self, Config, PortKind};
use crate::divert::taps::DivertTaps;
use crate::egress::{self, Egress};
use crate::error::LinkError;
use crate::frames::compression_policy::Policies;
use crate::identity::credentials::Credentials;
use crate::identity::revocation::RevocationLists;
use crate::ingress::Ingress;
use crate::io::device::Interface;
use crate::io::packet_socket::SparePacketSocket;
use crate::io::poll::{Half, Poll, Watch};
use crate::io::port::LinkPort;
use crate::io::udp_port::UdpPort;
use crate::io::wake;
use crate::membership::{Membership, MembershipError};
use crate::ports::counted_port::CountedPort;
use crate::threads::crew::Crew;
use crate::threads::event::ControlEvent;
use crate::threads::handoff;
use crate::threads::orders::Orders;
use crate::threads::pairs::Pairs;
use crate::threads::shared::Shared;
use crate::threads::slots::BySlot;
use crate::threads::slots::Slots;
use vsnoop_link::slots::PeerSlot;

type Result<T> = std::result::Result<T, LinkError>;

/// Callers that wait to be looked at.
const BACKLOG: i32 = 256;
/// Interfaces that may become ports while the link runs: by then it may not make a packet socket.
const SPARES: usize = 16;

/// Resources whose opening may be refused, or that may be in use.
pub struct Opened {
    pub lists: RevocationLists,
    pub credentials: Credentials,
    /// How etcd is reached.
    pub etcd: Option<vsnoop_etcd::Settings>,
    /// For interfaces that become ports later.
    pub spares: Vec<SparePacketSocket>,
    pub udp: UdpPort,
    pub listener: TcpListener,
    pub ports: Vec<CountedPort>,
    pub divert_taps: Option<DivertTaps>,
}

impl Opened {
    pub fn open(config: &Config, peers: &Slots<PeerSlot>) -> Result<Self> {
        Ok(Self {
            // Before the files are read: a file that is replaced meanwhile is read again.
            lists: RevocationLists::new(config),
            credentials: Credentials::read(config)?,
            etcd: Membership::etcd_settings(config).map_err(MembershipError::from)?,
            spares: open_spares(),
            udp: UdpPort::bind(config.listen, count_pairs(config))
                .map_err(|error| in_use(config, "UDP", error))?,
            listener: open_listener(config)?,
            ports: config
                .ports
                .iter()
                .map(|port| open_port(config, port))
                .collect::<Result<_>>()?,
            divert_taps: DivertTaps::open(config, peers)?,
        })
    }
}

/// Number of pairs of data threads.
fn count_pairs(config: &Config) -> usize {
    config.pairs.map_or(1, Pairs::count)
}

/// Without CAP_NET_RAW there are none.
fn open_spares() -> Vec<SparePacketSocket> {
    (0..SPARES).map_while(|_| SparePacketSocket::new().ok()).collect()
}

/// The threads of a pair.
pub struct PairThreads {
    pub egress: JoinHandle<()>,
    pub ingress: JoinHandle<()>,
}

/// The threads that move frames, and the channels to and from them.
pub struct Threads {
    pub pairs: Vec<PairThreads>,
    pub orders: Orders,
    /// For threads that tell of something.
    pub events: wake::Sender<ControlEvent>,
    pub told: wake::Receiver<ControlEvent>,
}

impl Threads {
    pub fn start(shared: &Shared, policies: impl Fn() -> Policies) -> Result<Self> {
        let eventfd = LinkError::call("making an eventfd");
        let (events, told) = wake::channel().map_err(&eventfd)?;
        let (handoff, handed) = handoff::channels(shared.pairs).map_err(&eventfd)?;
        let (mut to_egress, mut to_ingress) = (BySlot::default(), BySlot::default());
        let mut pairs = Vec::new();
        for (pair, handed) in shared.pairs.all().zip(handed) {
            let shared = Arc::new(shared.for_pair(pair));
            let (egress, orders) = wake::channel().map_err(&eventfd)?;
            let inputs = egress::Inputs { orders, handed };
            let (ingress, orders) = wake::channel().map_err(&eventfd)?;
            let both = Arc::new(Poll::new().map_err(LinkError::call("making an epoll"))?);
            let watch = |half| Watch::new(&both, half).map_err(LinkError::call("making an epoll"));
            let (out, back) = (watch(Half::Egress)?, watch(Half::Ingress)?);
            let (view, of_egress) = (Arc::clone(&shared), handoff.another());
            let out = Egress::new(view, inputs, of_egress, events.clone(), policies(), out)?;
            let back = Ingress::new(shared, orders, events.clone(), handoff.another(), back)?;
            let crew = Arc::new(Crew::new(both, out, back)?);
            let second = Arc::clone(&crew);
            pairs.push(PairThreads {
                egress: spawn_thread("egress", move || second.run_egress())?,
                ingress: spawn_thread("ingress", move || crew.run_ingress())?,
            });
            to_egress.push(egress);
            to_ingress.push(ingress);
        }
        Ok(Self { pairs, orders: Orders::new(to_egress, to_ingress), events, told })
    }
}

fn spawn_thread(name: &'static str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|error| LinkError::Thread { name, error })
}

fn open_listener(config: &Config) -> Result<TcpListener> {
    let make = || -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(config.listen), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if config.listen.is_ipv6() {
            socket.set_only_v6(!config.listen.ip().is_unspecified())?;
        }
        socket.bind(&config.listen.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    Ok(make().map_err(|error| in_use(config, "TCP", error))?.into())
}

fn in_use(config: &Config, protocol: &'static str, error: std::io::Error) -> LinkError {
    let hint = match error.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            ": something listens there already (`ss -lntup`); `listen` names another"
        }
        Some(libc::EADDRNOTAVAIL) => ": `listen` must be an address of this host",
        _ => "",
    };
    LinkError::Listen { address: config.listen, protocol, error, hint }
}

fn open_port(config: &Config, port: &config::PortConfig) -> Result<CountedPort> {
    if port.kind == PortKind::Interface {
        return Ok(CountedPort::new(LinkPort::open_interface(&port.name)?));
    }
    let opened = open_tap(config, port)?;
    start_tap(port)?;
    Ok(opened)
}

/// Makes the tap of a port, with a queue for each pair of threads; nothing reaches it yet.
pub fn open_tap(config: &Config, port: &config::PortConfig) -> Result<CountedPort> {
    let pairs = count_pairs(config);
    let opened = if pairs == 1 {
        CountedPort::new(LinkPort::open_tap(&port.name)?)
    } else {
        let queue = |_| LinkPort::open_queue(&port.name);
        let first = queue(0)?;
        CountedPort::with_queues(
            first,
            (1..pairs).map(queue).collect::<std::result::Result<_, _>>()?,
        )
    };
    Interface::new(&port.name).set_mtu(config.mtu_bytes)?;
    Ok(opened)
}

/// Puts the tap of a port into its bridge, and sets it up.
pub fn start_tap(port: &config::PortConfig) -> Result<()> {
    let device = Interface::new(&port.name);
    if let PortKind::Bridge(bridge) = &port.kind {
        device.join_bridge(bridge)?;
    }
    Ok(device.set_up()?)
}
