//! A program that hands a clone of each packet to the VM and drops the packet itself: the part of
//! an early acknowledgement that no host can spare, to compare the hooks with.

use std::os::fd::{AsFd, OwnedFd};

use crate::account::{ProgramInfo, program_info};
use crate::empty::{EXIT, Instruction, load};
use crate::error::{Error, Result};
use crate::hook::Hook;
use crate::link::{self, FreshLink};

/// Offset of the mark in struct __sk_buff (linux/bpf.h).
const MARK: u8 = 8;
/// The mark of clones, which pass the hook again.
const CLONE: u8 = 0x5e;

/// Attached to packets for the VM, as long as it lives.
#[derive(Debug)]
pub struct PlainHandOver {
    program: OwnedFd,
    _link: FreshLink,
}

impl PlainHandOver {
    /// The calling thread must be in the tap's network namespace.
    pub fn attach(ifindex: u32) -> Result<Self> {
        let [i0, i1, i2, i3] = ifindex.to_ne_bytes();
        let instructions: [Instruction; 12] = [
            // r2 = skb->mark; if r2 == CLONE go to the end
            [0x61, 0x12, MARK, 0, 0, 0, 0, 0],
            [0x15, 0x02, 7, 0, CLONE, 0, 0, 0],
            // skb->mark = CLONE
            [0xb7, 0x02, 0, 0, CLONE, 0, 0, 0],
            [0x63, 0x21, MARK, 0, 0, 0, 0, 0],
            // bpf_clone_redirect(skb, ifindex, 0); return TCX_DROP
            [0xb7, 0x02, 0, 0, i0, i1, i2, i3],
            [0xb7, 0x03, 0, 0, 0, 0, 0, 0],
            [0x85, 0, 0, 0, libbpf_sys::BPF_FUNC_clone_redirect as u8, 0, 0, 0],
            [0xb7, 0x00, 0, 0, 2, 0, 0, 0],
            EXIT,
            // skb->mark = 0; return TCX_NEXT
            [0x62, 0x01, MARK, 0, 0, 0, 0, 0],
            [0xb7, 0x00, 0, 0, 0xff, 0xff, 0xff, 0xff],
            EXIT,
        ];
        let program = load(c"hand_over", &instructions)?;
        let link = link::attach(&program, Hook::ToVm.attach_type(), ifindex, 0)
            .map_err(Error::bpf("attach a program that hands over"))?;
        Ok(Self { program, _link: link })
    }

    /// With the kernel's own accounting: two runs for each packet.
    pub fn info(&self) -> Result<ProgramInfo> {
        program_info(self.program.as_fd()).map_err(Error::bpf("read a program that hands over"))
    }
}
