//! Sends a frame that user space made, through the pinned `inject` program:
//! BPF_PROG_TEST_RUN gives it to the program, which clones it to the tap, either
//! to the VM or, as if the VM had sent it, to the sender. The hooks know it by
//! its mark and let it pass.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use libbpf_rs::ProgramHandle;

use crate::error::{Error, Result};

/// Offsets in struct __sk_buff (linux/bpf.h); the kernel takes a shorter
/// context for one whose rest is zero.
const IFINDEX: usize = 40;
const CB0: usize = 48;
const CONTEXT: usize = 68;

/// The calling thread must be in the tap's network namespace.
pub(crate) fn inject(pin: &Path, ifindex: u32, frame: &[u8], to_sender: bool) -> Result<()> {
    let what = || format!("inject a frame into interface {ifindex}");
    let program = ProgramHandle::from_pinned_path(pin).map_err(Error::bpf(what()))?;
    let mut context = [0u8; CONTEXT];
    context[IFINDEX..IFINDEX + 4].copy_from_slice(&ifindex.to_ne_bytes());
    context[CB0..CB0 + 4].copy_from_slice(&u32::from(to_sender).to_ne_bytes());
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: CONTEXT as u32,
        repeat: 1,
        ..Default::default()
    };
    // SAFETY: data and context outlive the call, with their true lengths.
    let rc =
        unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_fd().as_raw_fd(), &mut opts) };
    if rc != 0 {
        return Err(Error::bpf(what())(libbpf_rs::Error::from_raw_os_error(-rc)));
    }
    if opts.retval != 0 {
        let errno = (opts.retval as i32).unsigned_abs() as i32;
        return Err(Error::bpf(what())(libbpf_rs::Error::from_raw_os_error(errno)));
    }
    Ok(())
}
