//! The kernel around the programs: a port with its tap, its maps and its programs.
//!
//! Each [`SimulatedPort`] has a state of its own, which can be copied, compared by
//! [`SimulatedPort::digest`] and restored; there may be any number of ports. The programs' global
//! variables exist once in each of the few copies of the programs that this process has: they are
//! set when a program of a port runs, and saved afterwards, by one thread at a time.
//!
//! Concurrency: whenever a program calls a helper, the caller's function [`Gap`] runs and may do
//! what another CPU would do at that moment.

mod calls;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, Once, OnceLock};

use vsnoop_flow::types;

use crate::bytes::bytes_of;
use crate::frame::{FEATURE_SHIFT, Frame, GSO_TCPV4, GSO_TCPV6, Summed};
use crate::layout;
use crate::maps::{CPUS, Entries, Map, Shape, Value};
use crate::native::{self, COPIES, Device, Long, Program, Programs};

const HOOK_NEXT: i32 = -1;
const HOOK_DROP: i32 = 2;
const REDIRECT: i32 = 7;
const INGRESS: u64 = 1;
/// Result of a device that did not take the packet.
const NET_XMIT_DROP: Long = 1;

/// Bytes of a packet with headers and tags, and room to grow.
const ROOM: usize = 1 << 17;
/// Most packets in use at the same time: one for each CPU, and a clone of it.
const PACKETS: usize = 2 * CPUS + 2;

/// Held while the variables of a copy of the programs are in use.
static GLOBALS: [Mutex<()>; COPIES] = [const { Mutex::new(()) }; COPIES];
/// Addresses of inner maps, as the programs see them.
static INNER: [u8; 1 << 16] = [0; 1 << 16];

/// The port's slot: not 0, so that a wrong index does not hit it by chance.
const SLOT: u32 = 1;
const ID: u32 = 0x1234;
/// The device behind which the sockets of split connections are: above the taps of any host.
pub const SOCKETS: u32 = 1 << 20;
const SLABS: &str = "slabs";
const FIRST_SLAB: u32 = SLOT * types::SLABS;

/// Called whenever a program is in a helper.
pub type Gap<'a> = dyn FnMut(&mut SimulatedPort, &'static str) + 'a;

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It passed.
    Passed,
    /// A program dropped it.
    Dropped,
    /// A program sent it elsewhere.
    Redirected,
    /// It is in the ring.
    Taken,
    /// The ring was full.
    Refused,
}

/// A tap with vsnoop's programs on it.
#[derive(Clone, Debug)]
pub struct SimulatedPort {
    pub ifindex: u32,
    pub device: Device,
    /// CLOCK_MONOTONIC, ns.
    pub now: u64,
    /// The programs are attached; else packets pass as in any kernel.
    pub attached: bool,
    /// Other CPUs act in the gaps.
    pub racing: bool,
    /// The programs of split connections are attached, too.
    pub has_downloads: bool,
    /// Packets for the sockets of split connections.
    pub to_sockets: VecDeque<Frame>,
    /// The uplink, if it has a program: packets for the VM come in by it.
    pub uplink_ifindex: Option<u32>,
    /// Shapes of all maps of the source, inner maps included.
    shapes: Vec<Shape>,
    maps: Vec<Map>,
    variables: Vec<Value>,
    grave: Vec<Value>,
    /// The VM's ring.
    pub ring: VecDeque<Frame>,
    pub ring_slots: usize,
    /// Packets that programs sent in through the tap's ingress; processed next.
    backlog: VecDeque<Frame>,
    /// Packets that have left the tap towards the senders.
    pub to_host: VecDeque<Frame>,
    /// Packets that programs dropped.
    pub dropped: u64,
    /// Packets that the ring refused.
    pub refused: u64,
    random: u64,
}

struct Context {
    port: *mut SimulatedPort,
    gap: *mut Gap<'static>,
    cpu: usize,
    packets: usize,
}

thread_local! {
    static CONTEXT: Cell<*mut Context> = const { Cell::new(null_mut()) };
    static BUFFERS: RefCell<Option<*mut u8>> = const { RefCell::new(None) };
}

/// Buffers for packets below 4 GiB.
fn buffer(number: usize) -> *mut u8 {
    assert!(number < PACKETS, "more packets at a time than expected");
    BUFFERS.with_borrow_mut(|buffers| {
        let start = *buffers.get_or_insert_with(|| {
            // SAFETY: asks for new memory, which is never given back.
            let start = unsafe {
                libc::mmap(
                    null_mut(),
                    PACKETS * ROOM,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
                    -1,
                    0,
                )
            };
            assert_ne!(start, libc::MAP_FAILED, "no memory in the first 4 GiB");
            start.cast()
        });
        // SAFETY: within the mapping.
        unsafe { start.add(number * ROOM) }
    })
}

/// Makes the programs' constants writable, since each port has values of its own.
fn make_constants_writable() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        for global in native::copies().into_iter().flat_map(Programs::globals) {
            let start = global.start as usize & !(page - 1);
            let len = global.start as usize + global.size as usize - start;
            // SAFETY: whole pages of this program's data, which stay readable.
            let done = unsafe {
                libc::mprotect(start as *mut c_void, len, libc::PROT_READ | libc::PROT_WRITE)
            };
            assert_eq!(done, 0, "the programs' constants cannot be written");
        }
    });
}

fn name_of(name: *const c_char) -> &'static str {
    // SAFETY: a string constant of the C code.
    unsafe { CStr::from_ptr(name) }.to_str().expect("names are ASCII")
}

fn shape_of(map: &native::Map) -> Shape {
    Shape {
        kind: map.kind,
        key_size: map.key_size as usize,
        value_size: map.value_size as usize,
        max_entries: map.max_entries,
    }
}

impl SimulatedPort {
    /// A port whose programs were just attached. `resize` may change the size of maps, by name, as
    /// the loader does.
    pub fn new(ifindex: u32, ring_slots: usize, resize: impl Fn(&str, &mut Shape)) -> Self {
        make_constants_writable();
        let shapes = native::programs().maps().iter().map(|map| {
            let mut shape = shape_of(map);
            resize(name_of(map.name), &mut shape);
            shape
        });
        let all = GSO_TCPV4 | GSO_TCPV6;
        let device = Device {
            has_qdisc: 0,
            is_multiqueue: 0,
            features: u64::from(all) << FEATURE_SHIFT,
            gso_max_size: 65_536,
            gso_ipv4_max_size: 65_536,
            gso_max_segs: 65_535,
        };
        let mut port = Self {
            ifindex,
            device,
            now: 1,
            attached: true,
            racing: false,
            has_downloads: false,
            to_sockets: VecDeque::new(),
            uplink_ifindex: None,
            shapes: shapes.collect(),
            maps: Vec::new(),
            variables: Vec::new(),
            grave: Vec::new(),
            ring: VecDeque::new(),
            ring_slots,
            backlog: VecDeque::new(),
            to_host: VecDeque::new(),
            dropped: 0,
            refused: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        };
        port.load();
        port
    }

    /// Loads the programs again, with empty maps of the same sizes.
    pub fn load(&mut self) {
        self.variables = initial().to_vec();
        let inner = |at: usize| native::programs().maps().iter().any(|map| map.inner == at as i32);
        // A definition of inner maps alone needs no memory.
        let shape = |(at, shape): (usize, &Shape)| Shape {
            max_entries: if inner(at) { 0 } else { shape.max_entries },
            ..*shape
        };
        self.maps = self.shapes.iter().enumerate().map(shape).map(Map::new).collect();
        for map in native::programs().maps().iter().filter(|map| map.inner >= 0) {
            let name = name_of(map.name);
            if name != SLABS {
                self.put_in(name, SLOT);
            }
        }
        let shared = self.shared();
        (shared.slot, shared.id) = (SLOT, ID);
    }

    /// The record that the programs share with user space.
    pub fn shared(&mut self) -> &mut types::port {
        self.inner("ports", SLOT).expect("a port has it")
    }

    /// Number of one of the port's own maps, or of its programs' maps.
    fn own(&self, name: &str) -> usize {
        let found = map(name);
        self.maps[found].inner(&SLOT.to_le_bytes()).map_or(found, |inner| inner as usize)
    }

    /// The record of the uplink, which incast control uses.
    pub fn uplink(&mut self) -> &mut types::uplink {
        static AT: OnceLock<usize> = OnceLock::new();
        let at = *AT.get_or_init(|| {
            let is_it = |global: &native::Global| name_of(global.name) == "uplink";
            native::programs().globals().iter().position(is_it).expect("the programs have it")
        });
        let value = &mut self.variables[at];
        assert_eq!(value.bytes().len(), size_of::<types::uplink>());
        // SAFETY: a whole record, aligned; types of C may have any value.
        unsafe { &mut *value.as_mut_ptr().cast() }
    }

    /// A copy of it.
    pub fn shared_now(&self) -> types::port {
        let Entries::Array { values, .. } = &self.map("ports").entries else {
            panic!("ports has no arrays inside")
        };
        // SAFETY: a whole value, aligned; types of C may have any value.
        unsafe { *values.bytes().as_ptr().cast() }
    }

    pub fn map(&self, name: &str) -> &Map {
        &self.maps[self.own(name)]
    }

    pub fn map_mut(&mut self, name: &str) -> &mut Map {
        let own = self.own(name);
        &mut self.maps[own]
    }

    /// The value of `key`, by the system call.
    pub fn value<T: Copy>(&mut self, name: &str, key: &[u8]) -> Option<&mut T> {
        let map = self.map_mut(name);
        assert_eq!(map.shape.value_size, size_of::<T>(), "{name} has another type");
        // SAFETY: a value of the map, which stays while the map is borrowed.
        map.lookup(key, 0).map(|value| unsafe { &mut *value.cast() })
    }

    /// All keys and values of a hash.
    pub fn entries<K: Copy, V: Copy>(&self, name: &str) -> Vec<(K, V)> {
        let Entries::Hash { values, .. } = &self.map(name).entries else {
            panic!("{name} is no hash")
        };
        let read = |(key, value): (&Vec<u8>, &Value)| {
            assert_eq!((key.len(), value.bytes().len()), (size_of::<K>(), size_of::<V>()));
            // SAFETY: as many bytes as the types have; they may have any value.
            unsafe { (key.as_ptr().cast::<K>().read_unaligned(), *value.bytes().as_ptr().cast()) }
        };
        values.iter().map(read).collect()
    }

    /// Writes the value of `key`, by the system call; false if it fails. `flags`: as of
    /// bpf_map_update_elem().
    pub fn update(&mut self, name: &str, key: &[u8], value: &[u8], flags: u64) -> bool {
        let own = self.own(name);
        let result = self.maps[own].update(key, value, flags, &mut self.grave);
        self.grave.clear();
        result == 0
    }

    pub fn delete(&mut self, name: &str, key: &[u8]) -> bool {
        let own = self.own(name);
        let result = self.maps[own].delete(key, &mut self.grave);
        self.grave.clear();
        result == 0
    }

    /// The engine adds a slab.
    pub fn add_slab(&mut self, index: u32) {
        self.put_in(SLABS, FIRST_SLAB + index);
    }

    pub fn remove_slab(&mut self, index: u32) {
        self.inner_maps(SLABS).remove(&(FIRST_SLAB + index));
    }

    /// A slab of the port; `T` is its type.
    pub fn slab<T>(&mut self, index: u32) -> Option<&mut T> {
        self.inner(SLABS, FIRST_SLAB + index)
    }

    /// Creates an inner map.
    fn put_in(&mut self, outer: &str, index: u32) {
        let shape = self.shapes[native::programs().maps()[map(outer)].inner as usize];
        let gone = |number: &usize| !self.is_inner(*number as u32);
        let first = native::programs().maps().len();
        let free = (first..self.maps.len()).find(gone).unwrap_or(self.maps.len());
        if free == self.maps.len() {
            self.maps.push(Map::new(shape));
        } else {
            self.maps[free] = Map::new(shape);
        }
        assert!(index < self.shapes[map(outer)].max_entries, "{outer} has no place for another");
        self.inner_maps(outer).insert(index, free as u32);
    }

    fn inner_maps(&mut self, outer: &str) -> &mut BTreeMap<u32, u32> {
        let Entries::Maps { numbers } = &mut self.maps[map(outer)].entries else {
            panic!("{outer} has no maps inside")
        };
        numbers
    }

    fn is_inner(&self, number: u32) -> bool {
        self.maps.iter().any(|map| match &map.entries {
            Entries::Maps { numbers } => numbers.values().any(|inner| *inner == number),
            _ => false,
        })
    }

    /// The only value of a map inside another; `T` is its type.
    fn inner<T>(&mut self, outer: &str, index: u32) -> Option<&mut T> {
        let number = self.maps[map(outer)].inner(&index.to_le_bytes())?;
        let inner = &mut self.maps[number as usize];
        assert_eq!(inner.shape.value_size, size_of::<T>(), "what is in {outer} has another type");
        // SAFETY: a value of the map, which stays while the map is borrowed.
        inner.lookup(&[0; 4], 0).map(|value| unsafe { &mut *value.cast() })
    }

    /// A packet comes in by the uplink, whose program counts it.
    pub fn comes_in(&mut self, frame: &mut Frame) {
        let Some(ifindex) = self.uplink_ifindex.filter(|_| self.attached) else { return };
        self.run(Program::Uplink, frame, &mut |_, _| {});
        frame.ingress_ifindex = ifindex;
    }

    /// A packet leaves the host for the VM.
    pub fn to_vm(&mut self, frame: Frame, gap: &mut Gap) -> Fate {
        let fate = self.egress(frame, gap);
        self.work_off(gap);
        fate
    }

    /// The VM sends a packet.
    pub fn from_vm(&mut self, frame: Frame, gap: &mut Gap) -> Fate {
        let fate = self.ingress(frame, gap);
        self.work_off(gap);
        fate
    }

    /// A socket of a split connection sends a packet.
    pub fn from_socket(&mut self, mut frame: Frame, gap: &mut Gap) -> Fate {
        frame.ingress_ifindex = SOCKETS;
        let (result, to) = self.run(Program::SplitFromSocket, &mut frame, gap);
        let fate = match result {
            HOOK_DROP => self.drop_frame(),
            REDIRECT => self.redirect(frame, to, gap),
            other => panic!("split_from_socket returned {other}"),
        };
        self.work_off(gap);
        fate
    }

    /// Runs the program that changes the state of a split connection.
    pub fn change_split(&mut self, change: &mut types::split_change) {
        let mut frame = Frame::new(bytes_of(change).to_vec());
        self.run(Program::ChangeSplit, &mut frame, &mut |_, _| {});
        // SAFETY: the program has left the value there.
        *change = unsafe { frame.bytes.as_ptr().cast::<types::split_change>().read_unaligned() };
    }

    /// The record that hooks and splitter share.
    pub fn split_port(&mut self) -> &mut types::split_port {
        self.value("split_port", &[0; 4]).expect("an array has it")
    }

    /// A copy of the record of split connections.
    pub fn split_port_now(&self) -> types::split_port {
        let Entries::Array { values, .. } = &self.map("split_port").entries else {
            panic!("split_port is no array")
        };
        // SAFETY: a whole value, aligned; types of C may have any value.
        unsafe { *values.bytes().as_ptr().cast() }
    }

    /// Runs a program as BPF_PROG_TEST_RUN does, and returns its result.
    pub fn test_run(&mut self, program: Program, frame: &mut Frame, gap: &mut Gap) -> i32 {
        let result = self.run(program, frame, gap).0;
        self.work_off(gap);
        result
    }

    fn work_off(&mut self, gap: &mut Gap) {
        while let Some(frame) = self.backlog.pop_front() {
            self.ingress(frame, gap);
        }
    }

    fn egress(&mut self, mut frame: Frame, gap: &mut Gap) -> Fate {
        if !self.attached {
            return self.transmit(frame);
        }
        if let Some(fate) = self.split(Program::SplitToVm, &mut frame, gap) {
            return fate;
        }
        match self.run(Program::ToVm, &mut frame, gap) {
            (HOOK_NEXT, _) => self.transmit(frame),
            (HOOK_DROP, _) => self.drop_frame(),
            (REDIRECT, to) => self.redirect(frame, to, gap),
            (other, _) => panic!("to_vm returned {other}"),
        }
    }

    fn ingress(&mut self, mut frame: Frame, gap: &mut Gap) -> Fate {
        if !self.attached {
            self.to_host.push_back(frame);
            return Fate::Passed;
        }
        if let Some(fate) = self.split(Program::SplitFromVm, &mut frame, gap) {
            return fate;
        }
        match self.run(Program::FromVm, &mut frame, gap) {
            (HOOK_NEXT, _) => {
                self.to_host.push_back(frame);
                Fate::Passed
            }
            (HOOK_DROP, _) => self.drop_frame(),
            (REDIRECT, to) => self.redirect(frame, to, gap),
            (other, _) => panic!("from_vm returned {other}"),
        }
    }

    /// The program of split connections, if there is one. `None`: the packet goes on.
    fn split(&mut self, program: Program, frame: &mut Frame, gap: &mut Gap) -> Option<Fate> {
        if !self.has_downloads {
            return None;
        }
        match self.run(program, frame, gap) {
            (HOOK_NEXT, _) => None,
            (HOOK_DROP, _) => Some(self.drop_frame()),
            (REDIRECT, to) => Some(self.redirect(frame.clone(), to, gap)),
            (other, _) => panic!("{program:?} returned {other}"),
        }
    }

    fn drop_frame(&mut self) -> Fate {
        self.dropped += 1;
        Fate::Dropped
    }

    fn redirect(&mut self, frame: Frame, (ifindex, flags): (u32, u32), gap: &mut Gap) -> Fate {
        if ifindex == SOCKETS {
            assert_eq!(flags, 0, "a packet for the sockets enters at their device");
            self.to_sockets.push_back(frame);
            return Fate::Redirected;
        }
        assert_eq!(ifindex, self.ifindex, "a packet is redirected to another interface");
        if u64::from(flags) & INGRESS != 0 {
            self.backlog.push_back(frame);
        } else {
            self.egress(frame, gap);
        }
        Fate::Redirected
    }

    /// Hands a packet to the device, whose ring takes it or not. With a queue discipline the result
    /// is always success.
    fn transmit(&mut self, mut frame: Frame) -> Fate {
        let is_full = self.ring.len() >= self.ring_slots;
        if is_full {
            self.refused += 1;
        } else {
            frame.mark = 0;
            self.ring.push_back(frame);
        }
        if is_full && self.device.has_qdisc == 0 { Fate::Refused } else { Fate::Taken }
    }

    /// Runs a program on a packet.
    fn run(&mut self, program: Program, frame: &mut Frame, gap: &mut Gap) -> (i32, (u32, u32)) {
        let outer = CONTEXT.get();
        if !outer.is_null() {
            // SAFETY: the context of a call further up this stack, which waits for this one, and
            // has saved the variables.
            let outer = unsafe { &*outer };
            self.fill_variables();
            let result = self.run_on(program, frame, gap, outer.cpu, outer.packets);
            self.save_variables();
            return result;
        }
        let guard =
            GLOBALS[native::own_copy()].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.fill_variables();
        let result = self.run_on(program, frame, gap, 0, 0);
        self.save_variables();
        self.grave.clear();
        drop(guard);
        result
    }

    fn fill_variables(&self) {
        for (global, value) in native::programs().globals().iter().zip(&self.variables) {
            // SAFETY: both have the length of the variable; the lock is held.
            unsafe { copy(value.bytes().as_ptr(), global.start.cast(), global.size) };
        }
    }

    fn save_variables(&mut self) {
        for (global, value) in native::programs().globals().iter().zip(&mut self.variables) {
            // SAFETY: both have the length of the variable; the lock is held.
            unsafe { copy(global.start.cast(), value.as_mut_ptr(), global.size) };
        }
    }

    fn run_on(
        &mut self,
        program: Program,
        frame: &mut Frame,
        gap: &mut Gap,
        cpu: usize,
        packets: usize,
    ) -> (i32, (u32, u32)) {
        // Set by the program on the tap, or by user space
        // (accel/vsnoop-bpf/src/{program_slot,inject}.rs).
        frame.cb[types::CB_SLOT as usize] = SLOT;
        frame.cb[types::CB_ID as usize] = ID;
        let mut skb = describe(frame, buffer(packets), self.ifindex);
        let outer = CONTEXT.get();
        // SAFETY: the lifetime is that of this call, during which alone the pointer is used.
        let gap = unsafe { std::mem::transmute::<*mut Gap, *mut Gap<'static>>(gap) };
        let mut context = Context { port: self, gap, cpu, packets: packets + 1 };
        let restore = Restore(outer);
        CONTEXT.set(&mut context);
        // SAFETY: all pointers are valid during the call; the callbacks below find the port by the
        // context, and `self` is not used until the call returns.
        let result =
            unsafe { (native::programs().run)(program, &mut skb, &(*context.port).device) };
        drop(restore);
        accept(frame, &skb);
        if let Summed::Complete(sum) = frame.summed {
            let right = layout::sum(&frame.bytes[14..]);
            assert_eq!(fold(sum), fold(right), "{program:?} left skb->csum wrong");
        }
        (result, (skb.redirect_ifindex, skb.redirect_flags))
    }

    /// The present jiffy.
    pub fn jiffy(&self) -> u64 {
        // bpf_jiffies64() in native/kernel.c has the same one.
        const JIFFY_NS: u64 = 4_000_000;
        self.now / JIFFY_NS
    }

    /// Appends all state, except the clock and some maps, for comparison.
    pub fn digest(&self, without: &[&str], into: &mut Vec<u8>) {
        self.variables.iter().for_each(|value| into.extend(value.bytes()));
        let without: Vec<usize> = without.iter().map(|name| self.own(name)).collect();
        for (number, map) in self.maps.iter().enumerate() {
            if !without.contains(&number) {
                map.digest(into);
            }
        }
        for frame in self.ring.iter().chain(&self.to_host) {
            into.extend((frame.bytes.len() as u32).to_le_bytes());
            into.extend(&frame.bytes);
        }
    }
}

/// Initial values of the variables.
fn initial() -> &'static [Value] {
    static INITIAL: OnceLock<Vec<Value>> = OnceLock::new();
    INITIAL.get_or_init(|| {
        let _guard =
            GLOBALS[native::own_copy()].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let read = |global: &native::Global| {
            let mut value = Value::new(global.size as usize);
            // SAFETY: both have the length of the variable; the lock is held.
            unsafe { copy(global.start.cast(), value.as_mut_ptr(), global.size) };
            value
        };
        native::programs().globals().iter().map(read).collect()
    })
}

/// Restores the outer context, also if a check panics.
struct Restore(*mut Context);

impl Drop for Restore {
    fn drop(&mut self) {
        CONTEXT.set(self.0);
    }
}

/// # Safety
/// Both must have `len` bytes, and not overlap.
unsafe fn copy(from: *const u8, to: *mut u8, len: u32) {
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len as usize) }
}

fn map(name: &str) -> usize {
    static NAMES: OnceLock<Vec<&str>> = OnceLock::new();
    let names = NAMES
        .get_or_init(|| native::programs().maps().iter().map(|map| name_of(map.name)).collect());
    let found = names.iter().position(|map| *map == name);
    found.unwrap_or_else(|| panic!("the programs have no map {name}"))
}

fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
    // One's complement has two zeros.
    if sum == 0xffff { 0 } else { sum }
}

fn describe(frame: &Frame, bytes: *mut u8, ifindex: u32) -> native::Frame {
    assert!(frame.bytes.len() <= ROOM);
    // SAFETY: the buffer has that much room.
    unsafe { copy(frame.bytes.as_ptr(), bytes, frame.bytes.len() as u32) };
    let (ip_summed, csum) = match frame.summed {
        Summed::None => (0, 0),
        Summed::Unnecessary => (1, 0),
        Summed::Complete(sum) => (2, sum),
        Summed::Partial => (3, 0),
    };
    let protocol = layout::ether_type(&frame.bytes).map_or(0, |p| u32::from(p.to_be()));
    native::Frame {
        bytes,
        len: frame.bytes.len() as u32,
        linear: frame.linear.min(frame.bytes.len() as u32),
        room: ROOM as u32,
        mark: frame.mark,
        gso_size: frame.gso_size,
        gso_segs: frame.segments(),
        gso_type: frame.gso_type(),
        vlan_present: frame.tag.is_some().into(),
        vlan_tci: frame.tag.map_or(0, |tag| tag.0.into()),
        vlan_proto: frame.tag.map_or(0, |tag| u32::from(tag.1.to_be())),
        protocol: frame.tag.map_or(protocol, |tag| u32::from(tag.1.to_be())),
        ifindex,
        ingress_ifindex: frame.ingress_ifindex,
        cb: frame.cb,
        ip_summed,
        csum_start: layout::tcp_offset(&frame.bytes).unwrap_or(0) as u32,
        csum,
        redirect_ifindex: 0,
        redirect_flags: 0,
    }
}

fn accept(frame: &mut Frame, skb: &native::Frame) {
    // SAFETY: the program left that many bytes in the buffer.
    let bytes = unsafe { std::slice::from_raw_parts(skb.bytes, skb.len as usize) };
    if frame.bytes != bytes {
        frame.bytes.clear();
        frame.bytes.extend_from_slice(bytes);
    }
    frame.linear = skb.linear;
    frame.mark = skb.mark;
    frame.gso_size = skb.gso_size;
    frame.cb = skb.cb;
    if let Summed::Complete(sum) = &mut frame.summed {
        *sum = skb.csum;
    }
}

fn clone_of(skb: &native::Frame) -> Frame {
    let mut frame = Frame::new(Vec::new());
    frame.summed = match skb.ip_summed {
        0 => Summed::None,
        1 => Summed::Unnecessary,
        2 => Summed::Complete(skb.csum),
        _ => Summed::Partial,
    };
    let tag = (skb.vlan_tci as u16, u16::from_be(skb.vlan_proto as u16));
    frame.tag = (skb.vlan_present != 0).then_some(tag);
    frame.ingress_ifindex = skb.ingress_ifindex;
    accept(&mut frame, skb);
    frame.cb = [0; 5];
    frame
}

fn context() -> &'static mut Context {
    // SAFETY: only called by programs, which run_on() runs with a context that outlives them; each
    // callback has it for itself.
    unsafe { CONTEXT.get().as_mut() }.expect("a program runs")
}

fn port() -> &'static mut SimulatedPort {
    // SAFETY: as in context(); run_on() does not use its `self` meanwhile.
    unsafe { &mut *context().port }
}

/// The map at this address of the programs.
fn map_at(address: *const c_void) -> usize {
    let inner = (address as usize).wrapping_sub(INNER.as_ptr() as usize);
    if inner < INNER.len() {
        return inner;
    }
    let found =
        native::programs().maps().iter().position(|map| map.map == address && !address.is_null());
    found.expect("a program uses a map that is none")
}

/// # Safety
/// `bytes` must have `len`.
unsafe fn slice<'a>(bytes: *const c_void, len: usize) -> &'a [u8] {
    // SAFETY: as above.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(bytes.cast(), len) } }
}
