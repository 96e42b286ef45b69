//! The kernel's own accounting of programs.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::descriptor::owned;
use crate::error::Result;
use crate::text::c_string;

/// A loaded program, for the record (tests and docs quote it).
#[derive(Debug, Clone)]
pub struct ProgramInfo {
    /// `to_vm`, `from_vm`, `inject` or `reclaim`.
    pub name: String,
    /// Instructions that the verifier processed.
    pub verified_instructions: u32,
    /// Size of the program, translated, bytes.
    pub translated_bytes: u32,
    /// Size of the machine code, bytes.
    pub jited_bytes: u32,
    /// Number of runs; 0 unless kernel.bpf_stats_enabled is set.
    pub run_count: u64,
    /// Their total time, ns; 0 likewise.
    pub run_time_ns: u64,
}

/// Lets the kernel account the run time of BPF programs while the value lives.
pub fn account_run_time() -> Result<OwnedFd> {
    // SAFETY: takes no pointers.
    owned("account run time to BPF programs", unsafe {
        libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME)
    })
}

pub(crate) fn program_info(program: BorrowedFd) -> libbpf_rs::Result<ProgramInfo> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: an open program, and a zeroed record with its true length.
    let rc = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            program.as_raw_fd(),
            std::ptr::from_mut(&mut info).cast(),
            &mut len,
        )
    };
    if rc != 0 {
        return Err(libbpf_rs::Error::from_raw_os_error(-rc));
    }
    Ok(ProgramInfo {
        name: c_string(&info.name),
        verified_instructions: info.verified_insns,
        translated_bytes: info.xlated_prog_len,
        jited_bytes: info.jited_prog_len,
        run_count: info.run_cnt,
        run_time_ns: info.run_time_ns,
    })
}
