//! The programs on a tap. Each port has its own; they call the port's shared programs.
//!
//! bpf/entry.bpf.c is compiled once, and loaded for each port with the port's maps and slot in
//! place of what its instructions refer to. That takes no libbpf, and the kernel keeps no types
//! (BTF) for each port.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::{MapHandle, Object};

use crate::descriptor::owned;
use crate::error::Result;
use crate::hook::Hook;
use crate::maps::PortMap;
use crate::objects;
use crate::objects::entry::{FROM_VM, Reference, TO_VM};

type Instruction = [u8; 8];

/// `imm` of an instruction.
fn set_immediate(instruction: &mut Instruction, value: u32) {
    instruction[4..].copy_from_slice(&value.to_ne_bytes());
}

/// Has a load of 64 bits load the map of a descriptor (BPF_PSEUDO_MAP_FD).
fn set_map(instruction: &mut Instruction, map: &impl AsFd) {
    let destination = instruction[1] & 0x0f;
    instruction[1] = destination | (libbpf_sys::BPF_PSEUDO_MAP_FD as u8) << 4;
    set_immediate(instruction, map.as_fd().as_raw_fd() as u32);
}

/// Loads the program on a tap for one of its hooks. `maps`: the port's own; `shared`: the array
/// with the shared program; `slot`: the port's.
pub(crate) fn of_port(hook: Hook, maps: &Object, shared: &MapHandle, slot: u32) -> Result<OwnedFd> {
    let entry = match hook {
        Hook::ToVm => &TO_VM,
        Hook::FromVm => &FROM_VM,
    };
    let (instructions, []) = entry.instructions.as_chunks() else {
        unreachable!("instructions have eight bytes each")
    };
    let mut instructions = instructions.to_vec();
    for (at, reference) in entry.references {
        let instruction = &mut instructions[*at];
        match reference {
            Reference::Flows => set_map(instruction, &objects::map(maps, PortMap::Flows)),
            Reference::Stats => set_map(instruction, &objects::map(maps, PortMap::Stats)),
            Reference::Program => set_map(instruction, shared),
            Reference::Slot => set_immediate(instruction, slot),
        }
    }
    load(hook, &instructions)
}

fn load(hook: Hook, instructions: &[Instruction]) -> Result<OwnedFd> {
    let name = match hook {
        Hook::ToVm => c"vsnoop_to_vm",
        Hook::FromVm => c"vsnoop_from_vm",
    };
    let mut options = libbpf_sys::bpf_prog_load_opts {
        sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as _,
        // The same as of the programs that it tail-calls.
        expected_attach_type: hook.attach_type(),
        ..Default::default()
    };
    // SAFETY: instructions, C strings and options outlive the call.
    owned("load the program of a hook", unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            name.as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            instructions.as_ptr().cast(),
            instructions.len() as u64,
            &mut options,
        )
    })
}
