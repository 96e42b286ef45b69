//! The programs on a tap. Each port has its own; they call the port's shared programs.
//!
//! bpf/entry.bpf.c is compiled once, and loaded for each port with the port's maps and slot in
//! place of what its instructions refer to. That takes no libbpf, and the kernel keeps no types
//! (BTF) for each port.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::{MapHandle, Object};
use vsnoop_flow::types::CB_SLOT;

use crate::descriptor::owned;
use crate::error::Result;
use crate::hook::Hook;
use crate::maps::PortMap;
use crate::objects;
use crate::objects::entry::{INSTRUCTIONS, REFERENCES, Reference};

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

/// Loads the program for packets to the VM. `maps`: the port's own; `shared`: the array with the
/// shared program; `slot`: the port's.
pub(crate) fn to_vm(maps: &Object, shared: &MapHandle, slot: u32) -> Result<OwnedFd> {
    let (instructions, []) = INSTRUCTIONS.as_chunks() else {
        unreachable!("instructions have eight bytes each")
    };
    let mut instructions = instructions.to_vec();
    for (at, reference) in REFERENCES {
        let instruction = &mut instructions[*at];
        match reference {
            Reference::Flows => set_map(instruction, &objects::map(maps, PortMap::Flows)),
            Reference::Stats => set_map(instruction, &objects::map(maps, PortMap::Stats)),
            Reference::Program => set_map(instruction, shared),
            Reference::Slot => set_immediate(instruction, slot),
        }
    }
    load(Hook::ToVm, &instructions)
}

/// Offset of `cb[CB_SLOT]` in struct __sk_buff (linux/bpf.h).
const SLOT_OFFSET: u16 = 48 + 4 * CB_SLOT as u16;

/// Loads the program for packets of the VM: it writes the port's slot into the packet's control
/// block and tail-calls the only program of `shared`. If that is gone, the packet passes.
pub(crate) fn from_vm(shared: &MapHandle, slot: u32) -> Result<OwnedFd> {
    let instruction = |code: u8, registers: u8, offset: u16, immediate: u32| {
        let [o0, o1] = offset.to_ne_bytes();
        let [i0, i1, i2, i3] = immediate.to_ne_bytes();
        [code, registers, o0, o1, i0, i1, i2, i3]
    };
    // Codes: linux/bpf.h and linux/bpf_common.h. r1 is the packet.
    let instructions = [
        // *(u32 *)(r1 + SLOT_OFFSET) = slot
        instruction(0x62, 0x01, SLOT_OFFSET, slot),
        // r2 = array, by its descriptor
        instruction(0x18, 0x12, 0, shared.as_fd().as_raw_fd() as u32),
        [0; 8],
        // r3 = 0; bpf_tail_call(r1, r2, r3)
        instruction(0xb7, 0x03, 0, 0),
        instruction(0x85, 0x00, 0, libbpf_sys::BPF_FUNC_tail_call),
        // return TCX_NEXT
        instruction(0xb7, 0x00, 0, -1i32 as u32),
        instruction(0x95, 0x00, 0, 0),
    ];
    load(Hook::FromVm, &instructions)
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
