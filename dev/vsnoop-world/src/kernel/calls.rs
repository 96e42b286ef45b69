//! Functions that kernel.c calls. The pointers come from the programs, for maps whose sizes are
//! those of their own definitions.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

use super::{
    Fate, INGRESS, INNER, NET_XMIT_DROP, SOCKETS, clone_of, context, copy, map_at, name_of, port,
    slice,
};
use crate::maps::{CPUS, Entries};
use crate::native::{self, Long};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn world_lookup(map: *const c_void, key: *const c_void) -> *mut c_void {
    let (port, cpu) = (port(), context().cpu);
    let map = &mut port.maps[map_at(map)];
    // SAFETY: see above.
    let key = unsafe { slice(key, map.shape.key_size) };
    if let Entries::Maps { .. } = map.entries {
        let address = |number: u32| (&raw const INNER[number as usize]).cast_mut().cast();
        return map.inner(key).map_or(null_mut(), address);
    }
    map.lookup(key, cpu).map_or(null_mut(), |value| value.cast())
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn world_update(
    map: *const c_void,
    key: *const c_void,
    value: *const c_void,
    flags: u64,
) -> Long {
    let port = port();
    let map = &mut port.maps[map_at(map)];
    // SAFETY: see above.
    let key = unsafe { slice(key, map.shape.key_size) };
    // SAFETY: see above.
    let value = unsafe { slice(value, map.shape.value_size) };
    map.update(key, value, flags, &mut port.grave)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn world_delete(map: *const c_void, key: *const c_void) -> Long {
    let port = port();
    let map = &mut port.maps[map_at(map)];
    // SAFETY: see above.
    let key = unsafe { slice(key, map.shape.key_size) };
    map.delete(key, &mut port.grave)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn world_push(
    map: *const c_void,
    value: *const c_void,
    _flags: u64,
) -> Long {
    let map = &mut port().maps[map_at(map)];
    // SAFETY: see above.
    map.push(unsafe { slice(value, map.shape.value_size) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn world_pop(
    map: *const c_void,
    value: *mut c_void,
    remove: bool,
) -> Long {
    let map = &mut port().maps[map_at(map)];
    let Some(found) = map.pop(remove) else { return -2 };
    // SAFETY: see above.
    unsafe { copy(found.as_ptr(), value.cast(), found.len() as u32) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn world_ring(
    ring: *const c_void,
    data: *const c_void,
    size: u64,
    flags: u64,
) -> Long {
    let map = &mut port().maps[map_at(ring)];
    // SAFETY: see above.
    map.ring(unsafe { slice(data, size as usize) }, flags)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn world_ring_reserve(ring: *const c_void, size: u64) -> bool {
    port().maps[map_at(ring)].reserve(size as usize)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn world_ring_submit(
    ring: *const c_void,
    data: *const c_void,
    size: u64,
    flags: u64,
) {
    let map = &mut port().maps[map_at(ring)];
    // SAFETY: see above.
    map.submit(unsafe { slice(data, size as usize) }, flags);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn world_ring_bytes(ring: *const c_void) -> u64 {
    port().maps[map_at(ring)].ring_bytes()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn world_now() -> u64 {
    port().now
}

#[unsafe(no_mangle)]
extern "C-unwind" fn world_random() -> u32 {
    let port = port();
    port.random = port.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (port.random >> 32) as u32
}

#[unsafe(no_mangle)]
extern "C-unwind" fn world_cpu() -> u32 {
    context().cpu as u32
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn world_transmit(
    skb: *const native::Frame,
    ifindex: u32,
    flags: u64,
) -> Long {
    let context = context();
    let port = port();
    // SAFETY: the packet of the program that is running.
    let frame = clone_of(unsafe { &*skb });
    if ifindex == SOCKETS {
        port.to_sockets.push_back(frame);
        return 0;
    }
    assert_eq!(ifindex, port.ifindex, "a clone is sent to another interface");
    if flags & INGRESS != 0 {
        port.backlog.push_back(frame);
        return 0;
    }
    // SAFETY: the gap of the program that is running; it is not in it.
    let gap = unsafe { &mut *context.gap };
    port.save_variables();
    let fate = port.egress(frame, gap);
    port.fill_variables();
    if fate == Fate::Refused { NET_XMIT_DROP } else { 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn world_gap(helper: *const c_char) {
    let context = context();
    let port = port();
    if !port.racing || context.cpu + 1 >= CPUS {
        return;
    }
    port.save_variables();
    // SAFETY: as in world_transmit(); what it does on another CPU has gaps with a higher number.
    let gap = unsafe { &mut *context.gap };
    context.cpu += 1;
    gap(port, name_of(helper));
    context.cpu -= 1;
    port.fill_variables();
}

#[unsafe(no_mangle)]
extern "C-unwind" fn world_lock(_lock: *const c_void) {}

#[unsafe(no_mangle)]
extern "C-unwind" fn world_unlock(_lock: *const c_void) {}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn world_bug(what: *const c_char) -> ! {
    panic!("the verifier would not accept this: {}", name_of(what))
}
