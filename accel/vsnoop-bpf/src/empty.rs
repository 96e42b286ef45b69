//! A program that returns at once.
//!
//! The kernel's accounting of it is the cost of the accounting and of a call: the minimum of any
//! hook. It is also used to probe for tcx; it and one that hides all packets from later
//! programs are other tools' programs in tests.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use crate::account::{ProgramInfo, program_info};
use crate::descriptor::owned;
use crate::error::{Error, Result};
use crate::hook::Hook;
use crate::inject;
use crate::link::{self, FreshLink};

/// An instruction, as the kernel takes it (linux/bpf.h).
pub(crate) type Instruction = [u8; 8];
pub(crate) const EXIT: Instruction = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// Loads a program for a hook.
pub(crate) fn load(name: &CStr, instructions: &[Instruction]) -> Result<OwnedFd> {
    load_as(libbpf_sys::BPF_PROG_TYPE_SCHED_CLS, name, instructions)
}

fn load_as(
    kind: libbpf_sys::bpf_prog_type,
    name: &CStr,
    instructions: &[Instruction],
) -> Result<OwnedFd> {
    // SAFETY: instructions that outlive the call, C strings, no options.
    owned("load a small program", unsafe {
        libbpf_sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            c"GPL".as_ptr(),
            instructions.as_ptr().cast(),
            instructions.len() as u64,
            std::ptr::null_mut(),
        )
    })
}

/// Attached as long as it lives.
#[derive(Debug)]
pub struct EmptyProgram {
    program: OwnedFd,
    _link: FreshLink,
}

impl EmptyProgram {
    /// After all programs of that hook. The calling thread must be in the device's network
    /// namespace.
    pub fn attach(ifindex: u32, hook: Hook) -> Result<Self> {
        // r0 = -1 (TCX_NEXT); exit
        let program = load(c"empty", &[[0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], EXIT])?;
        Self::attach_at(program, ifindex, hook, 0)
    }

    /// Before all programs of that hook. These see no packet: it has each of them passed on.
    pub fn attach_hiding(ifindex: u32, hook: Hook) -> Result<Self> {
        // r0 = 0 (TCX_PASS); exit
        let program = load(c"hide", &[[0xb7, 0, 0, 0, 0, 0, 0, 0], EXIT])?;
        Self::attach_at(program, ifindex, hook, libbpf_sys::BPF_F_BEFORE)
    }

    /// Attaches the device's XDP program, in generic mode. It passes all packets on.
    pub fn attach_xdp(ifindex: u32) -> Result<Self> {
        // r0 = 2 (XDP_PASS); exit
        let pass = [[0xb7, 0, 0, 0, 2, 0, 0, 0], EXIT];
        let program = load_as(libbpf_sys::BPF_PROG_TYPE_XDP, c"pass", &pass)?;
        Self::attach_as(program, ifindex, libbpf_sys::BPF_XDP, libbpf_sys::XDP_FLAGS_SKB_MODE)
    }

    fn attach_at(program: OwnedFd, ifindex: u32, hook: Hook, flags: u32) -> Result<Self> {
        Self::attach_as(program, ifindex, hook.attach_type(), flags)
    }

    fn attach_as(
        program: OwnedFd,
        ifindex: u32,
        kind: libbpf_sys::bpf_attach_type,
        flags: u32,
    ) -> Result<Self> {
        let link = link::attach(&program, kind, ifindex, flags)
            .map_err(Error::bpf("attach an empty program"))?;
        Ok(Self { program, _link: link })
    }

    /// Runs it on a frame that is not sent.
    pub fn run(&self, frame: &[u8]) -> Result<()> {
        let run = inject::run(&self.program, 0, 0, frame, 1);
        run.map(drop).map_err(Error::bpf("run an empty program"))
    }

    /// With the kernel's own accounting.
    pub fn info(&self) -> Result<ProgramInfo> {
        program_info(self.program.as_fd()).map_err(Error::bpf("read an empty program"))
    }
}
