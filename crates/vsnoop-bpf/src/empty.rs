//! A program that returns at once.
//!
//! The kernel's accounting of it is the cost of the accounting and of a call: the minimum of any
//! hook. It is also used to probe for tcx, and as another tool's program in tests.

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
    // SAFETY: instructions that outlive the call, C strings, no options.
    owned("load a small program", unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            name.as_ptr(),
            c"GPL".as_ptr(),
            instructions.as_ptr().cast(),
            instructions.len() as u64,
            std::ptr::null_mut(),
        )
    })
}

/// Attached after all programs of that hook, as long as it lives.
#[derive(Debug)]
pub struct EmptyProgram {
    program: OwnedFd,
    _link: FreshLink,
}

impl EmptyProgram {
    /// The calling thread must be in the device's network namespace.
    pub fn attach(ifindex: u32, hook: Hook) -> Result<Self> {
        // r0 = -1 (TCX_NEXT); exit
        let program = load(c"empty", &[[0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], EXIT])?;
        let link = link::attach(&program, hook, ifindex, 0)
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
