//! Makes the maps of one tap, finds it programs (src/programs.rs), attaches the hooks, pins
//! everything.
//!
//! A port appears at once or not at all, whoever dies when: loading leaves no trace, and what comes
//! after it (pins, hooks, the caller's part) is under another name until one rename makes it a port
//! (`pins`).

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::path::Path;
use std::ptr::NonNull;

use libbpf_rs::{
    AsRawLibbpf, MapCore, MapFlags, MapHandle, MapInfo, Object, ObjectBuilder, OpenObject,
    PrintLevel,
};
use vsnoop_flow::types;

use crate::error::{Error, Result};
use crate::link;
use crate::pins;
use crate::port::{Hook, Port};
use crate::programs::{self, INCAST_MAPS, Ready, Seat};
use crate::record::Record;

static MAPS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/port.bpf.o"));

/// The host vouches for a VM that has sent nothing for this long, and no longer.
pub const SILENCE_MS: u32 = 300_000;

/// `BPF_FS_MAGIC`, linux/magic.h.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Of the ring in which the hooks write the numbers of holds with news: 16 bytes each.
const DOORBELL_BYTES: u32 = 4096;

/// Bounds of one port's tables. Both are memory that a port takes though it is idle: 16 bytes for a flow
/// (its bucket; the record comes with the connection), 152 for an embryo.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Working flows; a flow beyond is not accelerated.
    pub max_flows: u32,
    /// Handshakes under way; the oldest gives way.
    pub max_embryos: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_flows: 4096, max_embryos: 256 }
    }
}

/// What to attach to, and how.
#[derive(Debug, Clone)]
pub struct AttachSpec {
    /// Index of the tap in the network namespace that the calling thread is in.
    pub ifindex: u32,
    /// Its name, up to 15 bytes.
    pub ifname: String,
    /// Inode of that network namespace.
    pub netns: u64,
    /// Settings that may change while the port is attached.
    pub policy: types::policy,
    /// Port number (of either end) and whether it is allowed.
    pub port_rules: Vec<(u16, bool)>,
    /// Prefix of the sender's address, its length, and whether it is allowed;
    /// the longest prefix wins.
    pub prefix_rules: Vec<(IpAddr, u8, bool)>,
    /// Bounds of the tables.
    pub limits: Limits,
    /// The default qdisc that the caller replaced by noqueue, to be restored.
    pub qdisc_replaced: Option<String>,
    /// The tap's ring and queues, to notice when they change.
    pub tx_queue_len: u32,
    /// See `tx_queue_len`.
    pub tx_queues: u32,
    /// Index of the bridge that the tap is a port of; 0: none.
    pub bridge: u32,
    /// The interface for incast control, which [`Uplink::attach`] has put its hook on; 0: none.
    pub uplink: u32,
}

impl AttachSpec {
    /// A spec with default settings that only observes.
    pub fn new(ifindex: u32, ifname: &str, netns: u64) -> Self {
        AttachSpec {
            ifindex,
            ifname: ifname.to_owned(),
            netns,
            policy: types::policy {
                run: types::port_run::PORT_OBSERVE,
                thin: 1,
                ahead: u32::MAX,
                silence_ms: SILENCE_MS,
                ..Default::default()
            },
            port_rules: Vec::new(),
            prefix_rules: Vec::new(),
            limits: Limits::default(),
            qdisc_replaced: None,
            tx_queue_len: 0,
            tx_queues: 0,
            bridge: 0,
            uplink: 0,
        }
    }

    /// What is constant while the port is attached. Once a list allows something, what it does not name
    /// is denied.
    pub(crate) fn config(&self) -> types::port_config {
        let mut lists = 0;
        let mut set = |present: bool, allows: bool, flag: u32, allow_flag: u32| {
            lists |= if present { flag } else { 0 } | if allows { allow_flag } else { 0 };
        };
        set(
            !self.port_rules.is_empty(),
            self.port_rules.iter().any(|r| r.1),
            types::LIST_PORTS,
            types::LIST_PORTS_ALLOW,
        );
        set(
            !self.prefix_rules.is_empty(),
            self.prefix_rules.iter().any(|r| r.2),
            types::LIST_PREFIXES,
            types::LIST_PREFIXES_ALLOW,
        );
        types::port_config { hold: u32::from(self.policy.hold_chunks > 0), lists }
    }

    /// Room for the numbers of some holds. A ring that is full costs nothing but time: the engine looks at
    /// all holds now and then.
    fn doorbell_bytes(&self) -> u32 {
        DOORBELL_BYTES
    }

    fn meta(&self) -> types::port_meta {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        types::port_meta {
            abi: types::VSNOOP_ABI,
            ifindex: self.ifindex,
            netns: self.netns,
            attached_at: now.map(|d| d.as_secs()).unwrap_or(0),
            ifname: c_name(&self.ifname),
            qdisc: c_name(self.qdisc_replaced.as_deref().unwrap_or("")),
            tx_queue_len: self.tx_queue_len,
            tx_queues: self.tx_queues,
            bridge: self.bridge,
            uplink: self.uplink,
            lists: self.config().lists,
            ..Default::default()
        }
    }
}

pub(crate) fn c_name(name: &str) -> [std::ffi::c_char; 16] {
    let mut out = [0; 16];
    for (to, from) in out.iter_mut().zip(name.bytes().take(15)) {
        *to = from as std::ffi::c_char;
    }
    out
}

pub(crate) fn check_bpffs() -> Result<()> {
    let path = CString::new("/sys/fs/bpf").expect("no NUL in a literal");
    let mut st = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: a valid C string and a buffer of the right type.
    let rc = unsafe { libc::statfs(path.as_ptr(), st.as_mut_ptr()) };
    // SAFETY: statfs() fills the zeroed buffer or leaves it zeroed.
    if rc != 0 || unsafe { st.assume_init() }.f_type != BPF_FS_MAGIC {
        return Err(Error::NoBpfFs);
    }
    Ok(())
}

/// Programs and maps of a port that is to be attached. All that takes long is done; nothing is on the
/// tap yet, and nothing outlives this value.
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

    /// Puts the hooks on the tap and pins everything, under a name that nobody takes for a port. Then
    /// `complete` does what else belongs to the port, and one rename makes it the tap's. On error
    /// nothing is left on the tap; what `complete` has done, its caller undoes.
    pub fn attach<E: From<Error>>(
        self,
        complete: impl FnOnce(&Port) -> std::result::Result<(), E>,
    ) -> std::result::Result<Port, E> {
        let arrival = pins::create_arrival()?;
        self.attach_at(&arrival, complete).inspect_err(|_| {
            // Best effort: the error that led here is the one to report.
            let _ = pins::remove(&arrival);
        })
    }

    fn attach_at<E: From<Error>>(
        self,
        arrival: &Path,
        complete: impl FnOnce(&Port) -> std::result::Result<(), E>,
    ) -> std::result::Result<Port, E> {
        let Self { spec, programs, mut maps } = self;
        let seat = programs.seat(arrival, &mut maps)?;
        pin(&mut maps, &seat, spec, arrival)?;
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

/// What the kernel, or libbpf, has against a part of an object.
pub(crate) fn refused(what: &str) -> impl FnOnce(libbpf_rs::Error) -> Error + use<> {
    let what = what.to_owned();
    move |source| match source.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => {
            Error::Permission { what: format!("load {what}") }
        }
        _ => Error::Load { what, source },
    }
}

/// The port's own maps.
fn load(spec: &AttachSpec) -> Result<Object> {
    let mut builder = ObjectBuilder::default();
    let mut open = builder
        .name("vsnoop_port")
        .and_then(|builder| builder.open_memory(MAPS))
        .map_err(refused("the port's maps"))?;
    set_sizes(&mut open, spec).map_err(refused("the port's maps"))?;
    let object = open.load().map_err(refused("the port's maps"))?;
    fill_lists(&object, spec)?;
    Ok(object)
}

/// The build takes line information out of the object (build.rs), which libbpf warns of for each program.
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

fn pin(maps: &mut Object, seat: &Seat, spec: &AttachSpec, dir: &Path) -> Result<()> {
    for map in maps.maps() {
        match map.name().to_str() {
            Some("ports") => set_up(&map, seat.slot, spec)?,
            Some("meta") => {
                let meta = types::port_meta { slot: seat.slot, ..spec.meta() };
                write(&map, meta.as_bytes())?;
            }
            _ => {}
        }
    }
    seat.fill(maps)?;
    for mut map in maps.maps_mut().filter(|map| map.autocreate()) {
        let name = map.name().to_string_lossy().into_owned();
        let path = dir.join(if name == "ports" { "port" } else { &name });
        map.pin(&path).map_err(Error::bpf(format!("pin {}", path.display())))?;
    }
    // from_vm first: a record must exist before anything can be acknowledged.
    for (hook, flags) in
        [(Hook::FromVm, libbpf_sys::BPF_F_BEFORE), (Hook::ToVm, libbpf_sys::BPF_F_AFTER)]
    {
        let program = seat.entry(hook)?;
        let path = dir.join(pins::LINKS[hook as usize]);
        link::attach(&program, hook, spec.ifindex, flags)
            .map_err(Error::bpf(format!("attach {hook:?} to {}", spec.ifname)))?
            .pin(&path)
            .map_err(Error::bpf(format!("pin {}", path.display())))?;
    }
    Ok(())
}

/// The settings, and which slot and which port this is: the kernel's number of a map is another
/// for each.
fn set_up(map: &impl MapCore, slot: u32, spec: &AttachSpec) -> Result<()> {
    let id = MapInfo::new(map.as_fd()).map_err(Error::bpf("ask about a port's map"))?.info.id;
    write(map, types::port { policy: spec.policy, slot, id, ..Default::default() }.as_bytes())
}

/// Of a map with one value.
fn write(map: &impl MapCore, value: &[u8]) -> Result<()> {
    let name = map.name().to_string_lossy();
    map.update(&[0; 4], value, MapFlags::ANY).map_err(Error::bpf(format!("write map {name}")))
}

fn set_sizes(open: &mut OpenObject, spec: &AttachSpec) -> libbpf_rs::Result<()> {
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            "flows" => map.set_max_entries(spec.limits.max_flows)?,
            "embryos" => map.set_max_entries(spec.limits.max_embryos)?,
            "doorbell" => map.set_max_entries(spec.doorbell_bytes())?,
            "port_list" | "prefix_list" => {
                map.set_autocreate(programs::is_wanted(&spec.config(), &name))?;
            }
            name if INCAST_MAPS.contains(&name) => map.set_autocreate(spec.uplink != 0)?,
            _ => {}
        }
    }
    Ok(())
}

fn fill_lists(object: &Object, spec: &AttachSpec) -> Result<()> {
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        let update = |key: &[u8], value: &[u8]| {
            map.update(key, value, MapFlags::ANY).map_err(Error::bpf(format!("write map {name}")))
        };
        match name.as_str() {
            "port_list" => {
                for (number, allowed) in &spec.port_rules {
                    update(&u32::from(*number).to_ne_bytes(), &u32::from(*allowed).to_ne_bytes())?;
                }
            }
            "prefix_list" => {
                for (addr, bits, allowed) in &spec.prefix_rules {
                    let (addr, bits) = match addr {
                        IpAddr::V4(v4) => (v4.to_ipv6_mapped(), u32::from(*bits) + 96),
                        IpAddr::V6(v6) => (*v6, u32::from(*bits)),
                    };
                    let mut key = bits.to_ne_bytes().to_vec();
                    key.extend(addr.octets());
                    update(&key, &u32::from(*allowed).to_ne_bytes())?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// libbpf-rs has no tcx links yet; libbpf has. A fresh link that the caller owns.
pub(crate) fn tcx_link(
    object: &Object,
    name: &str,
    ifindex: u32,
    ifname: &str,
    flags: u32,
) -> Result<NonNull<libbpf_sys::bpf_link>> {
    let program = object.progs().find(|p| p.name() == name);
    let what = format!("attach {name} to {ifname}");
    let program = program.ok_or_else(|| Error::Bpf {
        what: what.clone(),
        source: libbpf_rs::Error::from_raw_os_error(libc::ENOENT),
    })?;
    let opts = libbpf_sys::bpf_tcx_opts {
        sz: size_of::<libbpf_sys::bpf_tcx_opts>() as _,
        flags,
        ..Default::default()
    };
    // SAFETY: the program is loaded and alive, the options are complete; the
    // result is checked before use.
    let link = unsafe {
        libbpf_sys::bpf_program__attach_tcx(
            program.as_libbpf_object().as_ptr(),
            ifindex as i32,
            &opts,
        )
    };
    NonNull::new(link)
        .ok_or_else(|| Error::bpf(what)(libbpf_rs::Error::from(std::io::Error::last_os_error())))
}

/// Of a pinned map with one value.
pub(crate) fn read_only_value<T: Record>(path: &Path) -> Result<T> {
    let what = || format!("read {}", path.display());
    let map = MapHandle::from_pinned_path(path).map_err(Error::bpf(what()))?;
    let bytes = map.lookup(&[0; 4], MapFlags::ANY).map_err(Error::bpf(what()))?;
    bytes
        .and_then(|bytes| T::from_bytes(&bytes))
        .ok_or_else(|| Error::Damaged { path: path.to_owned(), reason: "it cannot be read".into() })
}

/// Opens a pinned map and checks that its values are of type `T`.
pub(crate) fn open_map<T: Record>(path: &Path) -> std::result::Result<MapHandle, String> {
    let map = MapHandle::from_pinned_path(path)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    if map.value_size() as usize != size_of::<T>() {
        return Err(format!(
            "{} has records of {} bytes, this version's have {}",
            path.display(),
            map.value_size(),
            size_of::<T>()
        ));
    }
    Ok(map)
}
