//! A simulated host for ns-3: the ports of its VMs with the programs of bpf/, the engine and the
//! helper, as vsnoop-world runs them. include/vsnoop_sim.h declares the functions here.
//!
//! The caller has the clock, the network and the TCPs. It hands frames over and asks after each
//! call for the frames that leave, and for the time at which the host has to run again.

mod host;
mod incoming;
mod no_guest;

use std::slice;

use host::{CCounts, Early, Host, Settings, Stops};
use vsnoop_world::schedule::Turn;

/// `struct vsnoop_sim_settings`.
#[repr(C)]
pub struct CSettings {
    ports: u32,
    attached: u32,
    incast: u32,
    early: u32,
    buffer_bytes: u32,
    rate_bps: u64,
    hold_bytes: u64,
    stop_ms: u32,
    period_ms: u32,
    waits_us: *const u32,
    waits: u32,
    ring_frames: u32,
    seed: u32,
}

/// `struct vsnoop_sim_frame`.
#[repr(C)]
pub struct CFrame {
    bytes: *const u8,
    len: u32,
    port: u32,
    to_vm: u32,
}

/// A host whose ports are attached.
///
/// # Safety
/// `settings` must be valid, and its `waits_us` have `waits` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vsnoop_sim_new(settings: *const CSettings) -> *mut Host {
    // SAFETY: as above.
    let c = unsafe { &*settings };
    let stops = if c.waits > 0 {
        // SAFETY: as above.
        let waits = unsafe { slice::from_raw_parts(c.waits_us, c.waits as usize) };
        let turn = |pair: &[u32; 2]| Turn { run_us: pair[0].into(), stop_us: pair[1].into() };
        Stops::Recorded(waits.as_chunks().0.iter().map(turn).collect())
    } else if c.stop_ms > 0 {
        Stops::Periodic(c.stop_ms.into(), c.period_ms.into())
    } else {
        Stops::Never
    };
    let settings = Settings {
        ports: c.ports,
        attached: c.attached != 0,
        incast: (c.incast != 0).then_some((c.rate_bps, c.buffer_bytes)),
        early: match c.early {
            0 => Early::Never,
            1 => Early::Held,
            _ => Early::Split,
        },
        hold_bytes: c.hold_bytes,
        stops,
        ring_frames: c.ring_frames as usize,
        seed: c.seed.into(),
    };
    Box::into_raw(Box::new(Host::new(&settings)))
}

/// # Safety
/// `host` must come from [`vsnoop_sim_new`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vsnoop_sim_free(host: *mut Host) {
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(host) });
}

/// A frame came in by the uplink for the VM of a port.
///
/// # Safety
/// `host` must come from [`vsnoop_sim_new`], and `bytes` have `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vsnoop_sim_to_vm(
    host: *mut Host,
    port: u32,
    bytes: *const u8,
    len: u32,
    now_ns: u64,
) {
    // SAFETY: as above.
    let (host, bytes) = unsafe { (&mut *host, slice::from_raw_parts(bytes, len as usize)) };
    host.to_vm(port as usize, bytes, now_ns);
}

/// The VM of a port sends a frame.
///
/// # Safety
/// `host` must come from [`vsnoop_sim_new`], and `bytes` have `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vsnoop_sim_from_vm(
    host: *mut Host,
    port: u32,
    bytes: *const u8,
    len: u32,
    now_ns: u64,
) {
    // SAFETY: as above.
    let (host, bytes) = unsafe { (&mut *host, slice::from_raw_parts(bytes, len as usize)) };
    host.from_vm(port as usize, bytes, now_ns);
}

/// Engine, helper and VMs do what is due.
///
/// # Safety
/// `host` must come from [`vsnoop_sim_new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vsnoop_sim_run(host: *mut Host, now_ns: u64) {
    // SAFETY: as above.
    unsafe { &mut *host }.run(now_ns);
}

/// When the host has to run next, after `now_ns`; `u64::MAX`: never.
///
/// # Safety
/// `host` must come from [`vsnoop_sim_new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vsnoop_sim_next(host: *const Host, now_ns: u64) -> u64 {
    // SAFETY: as above.
    unsafe { &*host }.next(now_ns)
}

/// Takes the next frame that leaves; 0: there is none. Its bytes are valid until the next call.
///
/// # Safety
/// `host` must come from [`vsnoop_sim_new`], and `frame` be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vsnoop_sim_take(host: *mut Host, frame: *mut CFrame) -> u32 {
    // SAFETY: as above.
    let (host, frame) = unsafe { (&mut *host, &mut *frame) };
    let Some(taken) = host.take() else { return 0 };
    *frame = CFrame {
        bytes: taken.bytes.as_ptr(),
        len: taken.bytes.len() as u32,
        port: taken.port as u32,
        to_vm: taken.to_vm.into(),
    };
    1
}

/// Sums over the host's ports.
///
/// # Safety
/// `host` must come from [`vsnoop_sim_new`], and `counts` be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vsnoop_sim_count(host: *mut Host, counts: *mut CCounts) {
    // SAFETY: as above.
    unsafe { *counts = (*host).counts() };
}
