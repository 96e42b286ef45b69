//! Runs a pinned or attached program on a frame of user space (BPF_PROG_TEST_RUN).
//!
//! The `inject` program clones its frame to the tap, either to the VM or, as if the VM had sent it,
//! to the sender; the hooks recognise its mark and pass it. It also sends frames out of, or in by,
//! another interface. Running a hook itself shows its result for a packet, and its cost.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::ptr;

use libbpf_rs::ProgramHandle;
use vsnoop_flow::types::{self, inject_way, port};

use crate::error::{Error, Result};
use crate::map::read_only_value;
use crate::maps::{PortMap, SharedProgram};
use crate::program_slot::program_of;

/// Offsets in struct __sk_buff, which the hooks' C compiler checks (accel/bpf/vsnoop.bpf.c).
const MARK: usize = types::CONTEXT_MARK as usize;
const INGRESS_IFINDEX: usize = types::CONTEXT_INGRESS_IFINDEX as usize;
const IFINDEX: usize = types::CONTEXT_IFINDEX as usize;
const CB0: usize = types::CONTEXT_CB as usize;
const CONTEXT: usize = types::CONTEXT_BYTES as usize;
/// Room for the whole struct, of kernels to come too.
const CONTEXT_OUT: usize = 512;

/// The return code of a program, and the frame after it.
pub(crate) struct Run {
    pub verdict: i32,
    pub frame: Vec<u8>,
}

/// A hook that can be run repeatedly, with one system call each.
pub struct OpenHook {
    program: ProgramHandle,
    /// Outgoing and incoming interface of frames; 0: none.
    ifindex: u32,
    ingress_ifindex: u32,
}

impl OpenHook {
    /// The hook's program, by its id.
    pub(crate) fn open(id: u32, ifindex: u32, ingress_ifindex: u32) -> Result<Self> {
        let program = ProgramHandle::from_prog_id(id).map_err(Error::bpf("open a hook"))?;
        Ok(Self { program, ifindex, ingress_ifindex })
    }

    /// Runs it `repeat` times on a frame that is not sent. Returns the verdict (-1: pass, 2: drop)
    /// and the frame as the hook left it. The calling thread must be in the network namespace of
    /// its interface.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<(i32, Vec<u8>)> {
        let run = run_from(&self.program, self.ifindex, self.ingress_ifindex, frame, repeat);
        let run = run.map_err(Error::bpf("run a hook on a frame"))?;
        Ok((run.verdict, run.frame))
    }

    /// Runs the hook once, as [`OpenHook::run`] does, on a packet with this mark (`skb->mark`).
    pub fn run_marked(&self, frame: &[u8], mark: u32) -> Result<MarkedRun> {
        let words =
            [(MARK, mark), (INGRESS_IFINDEX, self.ingress_ifindex), (IFINDEX, self.ifindex)];
        let mut after = [0; CONTEXT_OUT];
        let run = run_with(&self.program, &words, frame, 1, &mut after);
        let Run { verdict, frame } = run.map_err(Error::bpf("run a hook on a frame"))?;
        let mut mark = [0; 4];
        mark.copy_from_slice(&after[MARK..MARK + 4]);
        Ok(MarkedRun { verdict, frame, mark: u32::from_ne_bytes(mark) })
    }
}

/// The result of a hook for a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkedRun {
    pub verdict: i32,
    pub frame: Vec<u8>,
    pub mark: u32,
}

/// The calling thread must be in the network namespace of `ifindex`.
pub(crate) fn run(
    program: &impl AsFd,
    ifindex: u32,
    cb0: u32,
    frame: &[u8],
    repeat: u32,
) -> libbpf_rs::Result<Run> {
    run_in(program, &[(IFINDEX, ifindex), (CB0, cb0)], frame, repeat)
}

/// Runs a program as [`run`] does, on a frame that came in by another interface.
fn run_from(
    program: &impl AsFd,
    ifindex: u32,
    ingress_ifindex: u32,
    frame: &[u8],
    repeat: u32,
) -> libbpf_rs::Result<Run> {
    let words = [(INGRESS_IFINDEX, ingress_ifindex), (IFINDEX, ifindex)];
    run_in(program, &words, frame, repeat)
}

/// A shared program, to be run for this port. If the port is gone it does nothing, even if another
/// port has its slot.
pub(crate) struct Runner {
    program: ProgramHandle,
    slot: u32,
    id: u32,
}

impl Runner {
    /// Opens the runner of the port with these pins.
    pub(crate) fn open(dir: &Path, program: SharedProgram) -> Result<Self> {
        let port: port = read_only_value(&dir.join(PortMap::Ports.pin()))?;
        Ok(Self { program: program_of(dir, program)?, slot: port.slot, id: port.id })
    }

    /// `cb`: the first words of the packet's control block.
    pub(crate) fn run(&self, ifindex: u32, cb: [u32; 2], frame: &[u8]) -> libbpf_rs::Result<Run> {
        let words = [
            (IFINDEX, ifindex),
            (CB0, cb[0]),
            (CB0 + 4, cb[1]),
            (CB0 + 4 * types::CB_ID as usize, self.id),
            (CB0 + 4 * types::CB_SLOT as usize, self.slot),
        ];
        run_in(&self.program, &words, frame, 1)
    }
}

/// `words`: words of the context that are not 0, by offset.
fn run_in(
    program: &impl AsFd,
    words: &[(usize, u32)],
    frame: &[u8],
    repeat: u32,
) -> libbpf_rs::Result<Run> {
    run_with(program, words, frame, repeat, &mut [])
}

/// `after`: for the context as the program left it, all of it or none.
fn run_with(
    program: &impl AsFd,
    words: &[(usize, u32)],
    frame: &[u8],
    repeat: u32,
    after: &mut [u8],
) -> libbpf_rs::Result<Run> {
    let mut context = [0u8; CONTEXT];
    for (at, word) in words {
        context[*at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    let mut out = vec![0u8; frame.len() + 256];
    let mut opts = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: CONTEXT as u32,
        ctx_out: if after.is_empty() { ptr::null_mut() } else { after.as_mut_ptr().cast() },
        ctx_size_out: after.len() as u32,
        repeat: repeat as i32,
        ..Default::default()
    };
    // SAFETY: both frames and both contexts outlive the call, with their true
    // lengths.
    let rc = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_fd().as_raw_fd(), &mut opts) };
    if rc != 0 {
        return Err(libbpf_rs::Error::from_raw_os_error(-rc));
    }
    out.truncate(opts.data_size_out as usize);
    Ok(Run { verdict: opts.retval as i32, frame: out })
}

/// Sends a frame; the calling thread must be in the tap's network namespace.
pub(crate) fn inject(
    program: &ProgramHandle,
    ifindex: u32,
    frame: &[u8],
    way: inject_way::Type,
) -> Result<()> {
    let what = || format!("inject a frame into interface {ifindex}");
    let run = run(program, ifindex, way, frame, 1).map_err(Error::bpf(what()))?;
    if run.verdict != 0 {
        let errno = run.verdict.saturating_abs();
        return Err(Error::bpf(what())(libbpf_rs::Error::from_raw_os_error(errno)));
    }
    Ok(())
}
