//! Creates the maps of one tap, finds programs for it (src/programs.rs), attaches the hooks, and
//! pins everything.
//!
//! A port is attached completely or not at all, whichever process is killed at any time: loading
//! leaves no trace, and all later steps (pins, hooks, the caller's part) use another name until one
//! rename turns them into a port (`pins`).

use std::net::IpAddr;
use std::path::Path;

use libbpf_rs::{MapCore, MapFlags, MapInfo, Object, ObjectBuilder, OpenObject, PrintLevel};
use vsnoop_flow::types;

use crate::bpffs::check_bpffs;
use crate::error::{Error, Result, refused};
use crate::hook::Hook;
use crate::maps::PortMap;
use crate::objects::{self, Named};
use crate::port::Port;
use crate::program_slot::ProgramSlot;
use crate::programs::{self, Ready};
use crate::record::Record;
use crate::spec::AttachSpec;
use crate::{link, pins};

impl Port {
    /// Attaches the hooks ([`Loaded`] in one step). The calling thread must be in the tap's network
    /// namespace. On error nothing is left behind.
    pub fn attach(spec: &AttachSpec) -> Result<Port> {
        Loaded::new(spec)?.attach(|_| Ok(()))
    }
}

/// Programs and maps of a port before it is attached. All slow work is done; nothing is on the tap
/// yet, and nothing outlives this value.
pub struct Loaded<'a> {
    spec: &'a AttachSpec,
    programs: Ready,
    maps: Object,
}

impl<'a> Loaded<'a> {
    /// Refuses a tap that is attached already. The calling thread must be in the tap's network
    /// namespace.
    pub fn new(spec: &'a AttachSpec) -> Result<Self> {
        check_bpffs()?;
        match Port::open(spec.netns, spec.ifindex) {
            Err(Error::NotAttached(_)) => {}
            Ok(_) => return Err(already_attached(spec)),
            Err(error) => return Err(error),
        }
        expect_no_line_info();
        let mut maps = load(spec)?;
        Ok(Self { spec, programs: Ready::new(spec, &mut maps)?, maps })
    }

    /// Attaches the hooks and pins everything, under a name that does not count as a port. Then
    /// `complete` does the caller's part, and one rename turns it into the tap's port. After an
    /// error nothing is left on the tap; the caller undoes what `complete` has done.
    pub fn attach<E: From<Error>>(
        self,
        complete: impl FnOnce(&Port) -> std::result::Result<(), E>,
    ) -> std::result::Result<Port, E> {
        let arrival = pins::create_arrival()?;
        self.attach_at(&arrival, complete).inspect_err(|_| {
            // Best effort: the error that led here is the one to report.
            let _ = programs::remove(&arrival);
        })
    }

    fn attach_at<E: From<Error>>(
        self,
        arrival: &Path,
        complete: impl FnOnce(&Port) -> std::result::Result<(), E>,
    ) -> std::result::Result<Port, E> {
        let Self { spec, programs, mut maps } = self;
        let slot = programs.take_slot(arrival, &mut maps)?;
        pin(&mut maps, &slot, spec, arrival)?;
        let port = Port::open_dir(arrival)?;
        complete(&port)?;
        let dir = pins::directory(spec.netns, spec.ifindex);
        let lock = pins::lock()?;
        let has_arrived = pins::arrive(arrival, &dir)?;
        drop(lock);
        if !has_arrived {
            return Err(already_attached(spec).into());
        }
        Ok(Port::open(spec.netns, spec.ifindex)?)
    }
}

fn already_attached(spec: &AttachSpec) -> Error {
    Error::AlreadyAttached { ifname: spec.ifname.clone() }
}

/// The port's own maps.
fn load(spec: &AttachSpec) -> Result<Object> {
    let object = if spec.uplink == 0 { objects::PORT } else { objects::PORT_WITH_INCAST };
    let mut builder = ObjectBuilder::default();
    let mut open = builder
        .name("vsnoop_port")
        .and_then(|builder| builder.open_memory(object))
        .map_err(refused("the port's maps"))?;
    set_sizes(&mut open, spec).map_err(refused("the port's maps"))?;
    let object = open.load().map_err(refused("the port's maps"))?;
    fill_lists(&object, spec)?;
    Ok(object)
}

/// The build removes line information from the object (build.rs); libbpf warns of that for each
/// program.
fn expect_no_line_info() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let print = |_: PrintLevel, text: String| {
            if !text.contains("missing .BTF.ext line info") {
                eprint!("{text}");
            }
        };
        libbpf_rs::set_print(Some((PrintLevel::Warn, print)));
    });
}

fn pin(maps: &mut Object, slot: &ProgramSlot, spec: &AttachSpec, dir: &Path) -> Result<()> {
    set_up(&objects::map(maps, PortMap::Ports), slot.index, spec)?;
    write(&objects::map(maps, PortMap::Meta), spec.meta().as_bytes())?;
    slot.fill(maps)?;
    for mut map in maps.maps_mut().filter(|map| map.autocreate()) {
        let path = dir.join(PortMap::from_libbpf(map.name()).pin());
        map.pin(&path).map_err(Error::bpf(format!("pin {}", path.display())))?;
    }
    // from_vm first: a record must exist before anything can be acknowledged.
    for (hook, flags) in
        [(Hook::FromVm, libbpf_sys::BPF_F_BEFORE), (Hook::ToVm, libbpf_sys::BPF_F_AFTER)]
    {
        let program = slot.entry(hook, maps)?;
        let path = dir.join(pins::LINKS[hook as usize]);
        link::attach(&program, hook.attach_type(), spec.ifindex, flags)
            .map_err(Error::bpf(format!("attach {hook:?} to {}", spec.ifname)))?
            .pin(&path)
            .map_err(Error::bpf(format!("pin {}", path.display())))?;
    }
    Ok(())
}

/// Writes the settings, the slot, and the port's id: the kernel's id of a map, which is unique.
fn set_up(map: &impl MapCore, slot: u32, spec: &AttachSpec) -> Result<()> {
    let id = MapInfo::new(map.as_fd()).map_err(Error::bpf("ask about a port's map"))?.info.id;
    write(map, types::port { policy: spec.policy, slot, id, ..Default::default() }.as_bytes())
}

/// Writes the only value of a map.
fn write(map: &impl MapCore, value: &[u8]) -> Result<()> {
    let name = map.name().to_string_lossy();
    map.update(&[0; 4], value, MapFlags::ANY).map_err(Error::bpf(format!("write map {name}")))
}

fn set_sizes(open: &mut OpenObject, spec: &AttachSpec) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut() {
        let name = PortMap::from_libbpf(map.name());
        map.set_autocreate(name.had_by().includes(&spec.config(), spec.uplink != 0))?;
        if let Some(size) = size_of_map(name, spec) {
            map.set_max_entries(size)?;
        }
    }
    Ok(())
}

/// Entries, of a ring bytes; `None`: as bpf/tables.h has it.
fn size_of_map(map: PortMap, spec: &AttachSpec) -> Option<u32> {
    match map {
        PortMap::Flows => Some(spec.limits.max_flows),
        PortMap::Embryos => Some(spec.limits.max_embryos),
        PortMap::Doorbell => Some(spec.doorbell_bytes()),
        PortMap::Beside
        | PortMap::Failures
        | PortMap::FinishedQueue
        | PortMap::GrantQueue
        | PortMap::Meta
        | PortMap::PortList
        | PortMap::Ports
        | PortMap::PrefixList
        | PortMap::Stats => None,
    }
}

fn fill_lists(object: &Object, spec: &AttachSpec) -> Result<()> {
    let list = objects::map(object, PortMap::PortList);
    for (number, allowed) in &spec.port_rules {
        allow(&list, &u32::from(*number).to_ne_bytes(), *allowed)?;
    }
    let list = objects::map(object, PortMap::PrefixList);
    for (addr, bits, allowed) in &spec.prefix_rules {
        let (addr, bits) = match addr {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped(), u32::from(*bits) + 96),
            IpAddr::V6(v6) => (*v6, u32::from(*bits)),
        };
        let mut key = bits.to_ne_bytes().to_vec();
        key.extend(addr.octets());
        allow(&list, &key, *allowed)?;
    }
    Ok(())
}

fn allow(list: &impl MapCore, key: &[u8], allowed: bool) -> Result<()> {
    let name = list.name().to_string_lossy();
    list.update(key, &u32::from(allowed).to_ne_bytes(), MapFlags::ANY)
        .map_err(Error::bpf(format!("write map {name}")))
}
