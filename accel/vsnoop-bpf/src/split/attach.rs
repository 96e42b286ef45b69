//! The programs of split connections, on a tap and on the device behind which the sockets are.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, OpenObject};
use vsnoop_flow::types::split_port;

use crate::error::{Error, Result, refused};
use crate::link::{self, PinnedLink};
use crate::objects::split::{Map, Program};
use crate::objects::{self, Named};
use crate::pins;
use crate::port::Port;
use crate::record::Record;
use crate::split::{CHANGE, DIRECTORY, LINKS, MAPS};

/// The devices and settings with which a port's programs are loaded.
#[derive(Clone, Copy, Debug)]
pub struct SplitSpec {
    /// The tap.
    pub tap_ifindex: u32,
    /// The near end of the pair of devices behind which the sockets are. Both are in the network
    /// namespace of the calling thread.
    pub socket_ifindex: u32,
}

/// Loads the programs, attaches them before the port's others, and pins all. Nothing is split
/// before [`crate::split::SplitPort::turn_on`]. Pins that are there are replaced. After an error
/// nothing is left.
pub fn attach(port: &Port, spec: &SplitSpec) -> Result<()> {
    detach(port)?;
    let directory = directory_of(port);
    pins::create_private(&directory)
        .map_err(Error::io(format!("create {}", directory.display())))?;
    attach_in(&directory, spec).inspect_err(|_| {
        // Best effort: the error that led here is the one to report.
        let _ = remove(&directory);
    })
}

/// Takes the programs off, and removes the pins. Ends of connections that are split then get no
/// answer: they have been joined or reset before. No error if there are none.
pub fn detach(port: &Port) -> Result<()> {
    remove(&directory_of(port))
}

/// Has the port such programs?
pub fn is_attached(port: &Port) -> bool {
    directory_of(port).join(CHANGE).exists()
}

/// Has it any of their pins? A process that was killed may have left some.
pub fn has_pins(port: &Port) -> bool {
    directory_of(port).exists()
}

/// Distinguishes these pins from earlier and later ones of the port. `None` without any.
pub fn id(port: &Port) -> Option<u64> {
    pins::inode(&directory_of(port))
}

/// The kernel's ids of the programs on the tap.
pub fn program_ids(port: &Port) -> Vec<u32> {
    let directory = directory_of(port);
    let info = |name| PinnedLink::open(&directory.join(name)).and_then(|link| link.info()).ok();
    LINKS.iter().filter_map(|(name, _)| Some(info(name)?.program_id)).collect()
}

pub(super) fn directory_of(port: &Port) -> PathBuf {
    port.dir().join(DIRECTORY)
}

fn remove(directory: &Path) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    pins::take_links_off(directory, LINKS.iter().map(|(name, _)| *name))?;
    pins::clear(directory)
}

fn attach_in(directory: &Path, spec: &SplitSpec) -> Result<()> {
    let mut object = load()?;
    let port = split_port {
        tap_ifindex: spec.tap_ifindex,
        socket_ifindex: spec.socket_ifindex,
        ..Default::default()
    };
    objects::map(&object, Map::SplitPort)
        .update(&[0; 4], port.as_bytes(), MapFlags::ANY)
        .map_err(Error::bpf("write map split_port"))?;
    pin(&mut object, directory)?;
    for (name, program) in LINKS {
        let (ifindex, kind) = match program {
            Program::SplitFromSocket => (spec.socket_ifindex, libbpf_sys::BPF_TCX_INGRESS),
            Program::SplitFromVm => (spec.tap_ifindex, libbpf_sys::BPF_TCX_INGRESS),
            _ => (spec.tap_ifindex, libbpf_sys::BPF_TCX_EGRESS),
        };
        let what = format!("attach {} to interface {ifindex}", program.name());
        let descriptor = objects::program(&object, program).as_fd().try_clone_to_owned();
        let descriptor = descriptor.map_err(Error::io(what.clone()))?;
        link::attach(&descriptor, kind, ifindex, libbpf_sys::BPF_F_BEFORE)
            .and_then(|link| link.pin(&directory.join(name)))
            .map_err(Error::bpf(what))?;
    }
    Ok(())
}

fn load() -> Result<Object> {
    let mut builder = ObjectBuilder::default();
    builder
        .name("vsnoop_split")
        .and_then(|builder| builder.open_memory(objects::SPLIT))
        .and_then(OpenObject::load)
        .map_err(refused("the programs of split connections"))
}

fn pin(object: &mut Object, directory: &Path) -> Result<()> {
    for mut map in object.maps_mut() {
        let own = Map::from_libbpf(map.name());
        let Some((name, _)) = MAPS.iter().find(|(_, map)| *map == own) else { continue };
        let path = directory.join(name);
        map.pin(&path).map_err(Error::bpf(format!("pin {}", path.display())))?;
    }
    let path = directory.join(CHANGE);
    for mut program in object.progs_mut() {
        if Program::from_libbpf(program.name()) == Program::ChangeSplit {
            program.pin(&path).map_err(Error::bpf(format!("pin {}", path.display())))?;
        }
    }
    Ok(())
}
