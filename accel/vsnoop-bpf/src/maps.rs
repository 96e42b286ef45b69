//! Which maps a port has, of its own and by the programs that it shares with others; which of its
//! own are reached through which array of theirs; and which programs there are.
//!
//! Each `match` here names all of an object's maps (src/objects.rs): one that is new in bpf/ does
//! not compile before it says what it is.

use vsnoop_flow::types::{LIST_PORTS, LIST_PREFIXES, port_config};

use crate::hook::Hook;
use crate::objects::{Named, port, vsnoop};

pub(crate) use port::Map as PortMap;
pub(crate) use vsnoop::Map as SharedMap;
pub(crate) use vsnoop::Program as SharedProgram;

/// Which ports have a map or a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HadBy {
    All,
    /// Those with an allow or deny list of port numbers.
    PortLists,
    /// Those with an allow or deny list of prefixes.
    PrefixLists,
    /// Those with incast control.
    Incast,
}

impl HadBy {
    /// Whether a port of this configuration, behind an uplink or not, has maps of this kind.
    pub(crate) fn includes(self, config: &port_config, has_uplink: bool) -> bool {
        match self {
            Self::All => true,
            Self::PortLists => config.lists & LIST_PORTS != 0,
            Self::PrefixLists => config.lists & LIST_PREFIXES != 0,
            Self::Incast => has_uplink,
        }
    }
}

impl PortMap {
    pub(crate) fn had_by(self) -> HadBy {
        match self {
            Self::Doorbell
            | Self::Embryos
            | Self::Failures
            | Self::Flows
            | Self::Meta
            | Self::Ports
            | Self::Stats => HadBy::All,
            Self::PortList => HadBy::PortLists,
            Self::PrefixList => HadBy::PrefixLists,
            Self::Beside | Self::FinishedQueue | Self::GrantQueue => HadBy::Incast,
        }
    }

    /// The name of its pin in the directory of the port.
    pub(crate) fn pin(self) -> &'static str {
        match self {
            // There it is one port's.
            Self::Ports => "port",
            other => other.name(),
        }
    }

    /// The shared array that holds this map at the port's slot; `None` if no program uses it.
    pub(crate) fn table(self) -> Option<SharedMap> {
        let is_it = |shared: &&SharedMap| shared.role() == Role::Table(self);
        SharedMap::ALL.iter().find(is_it).copied()
    }
}

/// The role of a map of the shared programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The array with this map of each port.
    Table(PortMap),
    /// The array with the slabs of all ports.
    Slabs,
    /// `struct port_config`.
    Constants,
    /// The record of the uplink.
    Uplink,
    /// The programs' own, in no place but theirs.
    Private(HadBy),
}

impl SharedMap {
    pub(crate) fn role(self) -> Role {
        match self {
            Self::Beside => Role::Table(PortMap::Beside),
            Self::Doorbell => Role::Table(PortMap::Doorbell),
            Self::Embryos => Role::Table(PortMap::Embryos),
            Self::Failures => Role::Table(PortMap::Failures),
            Self::FinishedQueue => Role::Table(PortMap::FinishedQueue),
            Self::Flows => Role::Table(PortMap::Flows),
            Self::GrantQueue => Role::Table(PortMap::GrantQueue),
            Self::PortList => Role::Table(PortMap::PortList),
            Self::Ports => Role::Table(PortMap::Ports),
            Self::PrefixList => Role::Table(PortMap::PrefixList),
            Self::Stats => Role::Table(PortMap::Stats),
            Self::Slabs => Role::Slabs,
            Self::Rodata => Role::Constants,
            Self::DataUplink => Role::Uplink,
            Self::Scratch => Role::Private(HadBy::All),
            Self::Grants => Role::Private(HadBy::Incast),
        }
    }

    /// The name of its pin in the directory of the programs; `None`: it has none.
    pub(crate) fn pin(self) -> Option<&'static str> {
        match self.role() {
            Role::Table(_) | Role::Slabs => Some(self.name()),
            Role::Uplink => Some("uplink"),
            Role::Constants | Role::Private(_) => None,
        }
    }
}

impl SharedProgram {
    /// The hook whose program it is; `None`: user space runs it.
    pub(crate) fn hook(self) -> Option<Hook> {
        match self {
            Self::ToVm => Some(Hook::ToVm),
            Self::FromVm => Some(Hook::FromVm),
            Self::Grant | Self::Inject | Self::Reclaim => None,
        }
    }

    pub(crate) fn had_by(self) -> HadBy {
        match self {
            Self::Grant => HadBy::Incast,
            Self::FromVm | Self::Inject | Self::Reclaim | Self::ToVm => HadBy::All,
        }
    }

    /// The program of a hook.
    pub(crate) fn of_hook(hook: Hook) -> Self {
        match hook {
            Hook::ToVm => Self::ToVm,
            Hook::FromVm => Self::FromVm,
        }
    }
}
