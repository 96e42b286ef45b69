//! Ports that share programs: nothing of one port is found in another, also when ports come and
//! go.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use vsnoop_bpf::types::{PORT_SLOTS, SLAB_CHUNKS, SLAB_HOLDS, port_run};
use vsnoop_bpf::{
    AttachSpec, HoldMaps, Hook, PIN_ROOT, Port, Reclaimed, Reserve, Uplink, UplinkSettings,
};

use crate::scene::{Attached, DROP, NEXT, ahead, holding, of_vm, taps};

/// Begins the addresses for documentation (RFC 5737).
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 0));

fn attach(spec: &AttachSpec) -> Attached {
    Attached(Some(Port::attach(spec).unwrap_or_else(|error| panic!("{error}"))))
}

/// Tests run at the same time: this one's ports have constants that no other's have, and so slots
/// for themselves.
fn alone(specs: Vec<AttachSpec>, ports: Option<bool>, prefixes: Option<bool>) -> Vec<AttachSpec> {
    let alone = |spec: AttachSpec| AttachSpec {
        port_rules: ports.map(|allows| (7, allows)).into_iter().collect(),
        prefix_rules: prefixes.map(|allows| (NOBODY, 24, allows)).into_iter().collect(),
        ..spec
    };
    specs.into_iter().map(alone).collect()
}

fn attach_with_hold(spec: &AttachSpec) -> Attached {
    let mut spec = spec.clone();
    spec.policy.run = port_run::PORT_ACCELERATE;
    spec.policy.hold_chunks = 64;
    attach(&spec)
}

/// Which programs a port has.
fn programs(port: &Port) -> PathBuf {
    fs::read_link(port.dir().join("programs")).expect("a link to the port's programs")
}

/// Directories of programs, of ports in all network namespaces.
fn all_programs() -> Vec<PathBuf> {
    let entries = fs::read_dir(PIN_ROOT).into_iter().flatten();
    let name =
        |entry: std::io::Result<fs::DirEntry>| PathBuf::from(entry.expect("entry").file_name());
    entries.map(name).filter(|name| name.to_string_lossy().starts_with("programs-")).collect()
}

fn is_there(programs: &Path) -> bool {
    all_programs().iter().any(|name| programs.ends_with(name))
}

pub fn a_ports_records_are_not_visible_to_another_port() {
    let specs = taps(2);
    let (one, other) = (attach_with_hold(&specs[0]), attach_with_hold(&specs[1]));
    assert_eq!(programs(&one), programs(&other));
    ahead(&one);
    let ack = of_vm(500, 2000, 9000, &[], &[]);
    assert_eq!(other.run_hook(Hook::FromVm, &ack, 1).expect("run").0, NEXT);
    assert_eq!(one.run_hook(Hook::FromVm, &ack, 1).expect("run").0, DROP);
    // The other one learns of this connection for itself.
    assert_eq!(other.flows().expect("flows").len(), 1);
    assert_eq!(one.stats().expect("stats").from_vm_packets, 1);
    assert_eq!(other.stats().expect("stats").from_vm_packets, 1);
    one.set_run(port_run::PORT_PAUSED).expect("pause");
    assert_eq!(other.policy().expect("policy").run, port_run::PORT_ACCELERATE);
}

/// The number of a port's slot, as its directory has it.
fn slot(port: &Port) -> u32 {
    let slot = fs::read_link(port.dir().join("slot")).expect("read the slot");
    slot.to_str().and_then(|number| number.parse().ok()).expect("a number")
}

pub fn a_ports_copies_are_not_changed_by_another_port() {
    let specs = alone(taps(3), Some(false), None);
    let one = attach_with_hold(&specs[0]);
    let gone = attach_with_hold(&specs[1]);
    let memory_of_gone = HoldMaps::open(&gone).expect("open the memory").expect("there is a hold");
    drop(gone);
    // It has the slot of the one that went.
    let next = attach_with_hold(&specs[2]);
    assert_eq!(slot(&next), 1);
    let (_, record) = holding(&next);
    holding(&one);
    // An engine that has not heard of it.
    assert_eq!(memory_of_gone.reclaim(record.hold.into(), true).expect("reclaim"), Reclaimed::Free);
    let memory = HoldMaps::open(&next).expect("open the memory").expect("there is a hold");
    assert_eq!(memory.reclaim(record.hold.into(), true).expect("reclaim"), Reclaimed::Used);
    assert_eq!(next.state().expect("state").chunks_used, 1);
    assert_eq!(one.state().expect("state").chunks_used, 1);
}

/// The engine's view of a port's memory, as large as it may be.
fn grown(port: &Port) -> HoldMaps {
    let mut memory = HoldMaps::open(port).expect("open the memory").expect("there is a hold");
    memory.adopt(&Reserve::default()).expect("adopt");
    port.set_bounds(Some(SLABS * SLAB_CHUNKS), None).expect("ask for memory");
    memory.grow().expect("grow");
    while port.state().expect("state").slabs < SLABS {
        memory.settle().expect("settle");
    }
    memory
}

const SLABS: u32 = 4;

/// An engine that has not heard of the detach changes nothing of the next port in the slot.
pub fn memory_of_a_detached_port_is_not_changed() {
    let specs = alone(taps(2), None, Some(false));
    let gone = attach_with_hold(&specs[0]);
    let mut memory_of_gone = grown(&gone);
    drop(gone);
    let next = attach_with_hold(&specs[1]);
    assert_eq!(slot(&next), 0);
    let _memory = grown(&next);
    memory_of_gone.shrink().expect("shrink");
    assert!(!memory_of_gone.settle().expect("settle"), "a change was made");
    memory_of_gone.adopt(&Reserve::default()).expect("adopt");
    // What is mapped stays: an engine hands it over where only the pins were removed.
    assert_eq!(memory_of_gone.hold_count(), SLABS * SLAB_HOLDS);
    let still = HoldMaps::open(&next).expect("open the memory").expect("there is a hold");
    assert_eq!(still.hold_count(), SLABS * SLAB_HOLDS);
}

/// The kernel frees what the engine takes away only when no process has it mapped.
pub fn a_reader_maps_slabs_only_while_it_reads() {
    let specs = alone(taps(1), Some(false), Some(true));
    let port = attach_with_hold(&specs[0]);
    let _memory = grown(&port);
    let reader = HoldMaps::open_without_slabs(&port).expect("open the memory");
    let mut reader = reader.expect("there is a hold");
    for _ in 0..2 {
        assert_eq!(reader.hold_count(), 0);
        reader.refresh().expect("refresh");
        assert_eq!(reader.hold_count(), SLABS * SLAB_HOLDS);
        reader.unmap_slabs();
    }
    assert_eq!(reader.hold_count(), 0);
}

pub fn programs_go_with_their_last_port() {
    let specs = alone(taps(2), Some(true), Some(false));
    let one = attach(&specs[0]);
    let shared = programs(&one);
    let other = attach(&specs[1]);
    assert_eq!(programs(&other), shared);
    drop(one);
    assert!(is_there(&shared));
    drop(other);
    assert!(!is_there(&shared));
}

pub fn more_ports_than_programs_have_slots_have_programs_of_their_own() {
    let specs = alone(taps(PORT_SLOTS as usize + 1), None, Some(true));
    let ports: Vec<Attached> = specs.iter().map(attach).collect();
    let mut all: Vec<PathBuf> = ports.iter().map(|port| programs(port)).collect();
    assert!(all[..PORT_SLOTS as usize].iter().all(|programs| *programs == all[0]));
    assert_ne!(all[0], all[PORT_SLOTS as usize]);
    drop(ports);
    all.dedup();
    assert!(!all.iter().any(|programs| is_there(programs)));
}

/// Its programs have the most to do.
pub fn the_verifier_accepts_incast_control() {
    let mut specs = taps(2);
    let uplink = specs.remove(1);
    let settings = UplinkSettings { bits_per_second: 1_000_000_000, buffer_bytes: 65_536 };
    let uplink = Uplink::attach(uplink.netns, uplink.ifindex, &uplink.ifname, &settings)
        .map(|attached| (attached, uplink.ifindex));
    let (uplink, ifindex) = uplink.expect("an uplink");
    specs[0].uplink = ifindex;
    let port = attach_with_hold(&specs[0]);
    for program in port.programs().expect("programs") {
        println!("{}: {} instructions verified", program.name, program.verified_instructions);
    }
    drop(port);
    uplink.remove().expect("remove");
}
