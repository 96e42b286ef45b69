//! The declarations of native/kernel.h.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

#[repr(C)]
pub struct Frame {
    pub bytes: *mut u8,
    pub len: u32,
    pub linear: u32,
    pub room: u32,
    pub mark: u32,
    pub gso_size: u32,
    pub gso_segs: u32,
    pub gso_type: u32,
    pub vlan_present: u32,
    pub vlan_tci: u32,
    pub vlan_proto: u32,
    pub protocol: u32,
    pub ifindex: u32,
    pub ingress_ifindex: u32,
    pub cb: [u32; 5],
    pub ip_summed: u32,
    pub csum_start: u32,
    pub csum: u32,
    pub redirect_ifindex: u32,
    pub redirect_flags: u32,
}

/// Properties of a port's device, which decide whether the stack hands a super-packet over whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Device {
    /// A queue discipline that queues.
    pub has_qdisc: u32,
    /// Several queues, each with a queue discipline of its own.
    pub is_multiqueue: u32,
    /// NETIF_F_*.
    pub features: u64,
    pub gso_max_size: u32,
    pub gso_ipv4_max_size: u32,
    pub gso_max_segs: u32,
}

#[repr(C)]
pub struct Map {
    pub map: *const c_void,
    pub name: *const c_char,
    pub kind: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
    pub inner: i32,
}

#[repr(C)]
pub struct Global {
    pub start: *mut c_void,
    pub name: *const c_char,
    pub size: u32,
}

// SAFETY: both are constants of the C code.
unsafe impl Sync for Map {}
// SAFETY: what it points to is used under `kernel::GLOBALS` only.
unsafe impl Sync for Global {}

/// The program to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Program {
    /// On the egress of the tap.
    ToVm,
    /// On its ingress.
    FromVm,
    /// Sends a packet that user space made.
    Inject,
    /// Grants the next waiting flow a window.
    Grant,
    /// Reclaims the memory of a hold for the engine.
    Reclaim,
    /// On the uplink.
    Uplink,
    /// Serves split connections on the egress of the tap, before the others.
    SplitToVm,
    /// On its ingress.
    SplitFromVm,
    /// On the ingress of the device behind which the sockets are.
    SplitFromSocket,
    /// Changes the state of a connection; the bytes of its frame are its argument.
    ChangeSplit,
}

/// The programs, with maps and global variables.
#[repr(C)]
pub struct Programs {
    pub run:
        unsafe extern "C-unwind" fn(Program, frame: *mut Frame, device: *const Device) -> c_int,
    maps: *const Map,
    globals: *const Global,
    map_count: u32,
    global_count: u32,
}

// SAFETY: constants of the C code.
unsafe impl Sync for Programs {}

unsafe extern "C" {
    static world_programs_0: Programs;
    static world_programs_1: Programs;
    static world_programs_2: Programs;
    static world_programs_3: Programs;
}

/// Copies of the programs.
pub const COPIES: usize = 4;

/// All copies: the same programs, each with global variables of its own.
pub fn copies() -> [&'static Programs; COPIES] {
    // SAFETY: constants of the C code.
    unsafe { [&world_programs_0, &world_programs_1, &world_programs_2, &world_programs_3] }
}

/// Number of the copy that this thread runs.
pub fn own_copy() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = THREADS.fetch_add(1, Ordering::Relaxed) % COPIES;
    }
    OWN.with(|own| *own)
}

/// The copy that this thread runs.
pub fn programs() -> &'static Programs {
    copies()[own_copy()]
}

impl Programs {
    /// The maps' definitions; inner maps last.
    pub fn maps(&self) -> &'static [Map] {
        // SAFETY: constants, of this length.
        unsafe { std::slice::from_raw_parts(self.maps, self.map_count as usize) }
    }

    /// The programs' variables.
    pub fn globals(&self) -> &'static [Global] {
        // SAFETY: constants, of this length.
        unsafe { std::slice::from_raw_parts(self.globals, self.global_count as usize) }
    }
}

pub type Long = c_long;
