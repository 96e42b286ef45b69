//! One attached tap.

use std::ffi::CStr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ProgramHandle};
use vsnoop_flow::types::{
    self, flow, flow_key, flow_mode, policy, port_meta, port_state, port_stats,
};

use crate::attach::{self, AttachSpec, open_map};
use crate::batch;
use crate::error::{Error, Result};
use crate::inject;
use crate::pins::{self, Damaged, Listed};
use crate::record::{ProgramInfo, Record};

const ZERO: [u8; 4] = [0; 4];

/// One of the two hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// tcx egress of the tap.
    ToVm = 0,
    /// tcx ingress of the tap.
    FromVm = 1,
}

/// Has the kernel account run time to BPF programs while the value lives.
pub fn account_run_time() -> Result<OwnedFd> {
    // SAFETY: takes no pointers; a non-negative result is a descriptor that
    // nobody else owns.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        let error = libbpf_rs::Error::from_raw_os_error(-fd);
        return Err(Error::bpf("account run time to BPF programs")(error));
    }
    // SAFETY: see above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The pins of one attached tap, open.
#[derive(Debug)]
pub struct Port {
    dir: PathBuf,
    meta: MapHandle,
    policy: MapHandle,
    state: MapHandle,
    stats: MapHandle,
    flows: MapHandle,
}

impl Port {
    /// Attaches the hooks. The calling thread must be in the tap's network
    /// namespace. On error nothing is left behind.
    pub fn attach(spec: &AttachSpec) -> Result<Port> {
        attach::attach(spec)
    }

    /// The attachment of interface `ifindex` in network namespace `netns`
    /// (inode). [`Error::NotAttached`] when there is none.
    pub fn open(netns: u64, ifindex: u32) -> Result<Port> {
        let dir = pins::directory(netns, ifindex);
        if !dir.exists() {
            return Err(Error::NotAttached(format!("with index {ifindex}")));
        }
        Self::open_dir(&dir)
    }

    /// Everything under [`crate::PIN_ROOT`], damaged or not.
    pub fn list() -> Result<Vec<Listed>> {
        let found = pins::entries()?.into_iter().map(|path| match Self::open_dir(&path) {
            Ok(port) => Listed::Port(Box::new(port)),
            Err(Error::Damaged { path, reason }) => Listed::Damaged(Damaged { path, reason }),
            Err(error) => Listed::Damaged(Damaged { path, reason: error.to_string() }),
        });
        Ok(found.collect())
    }

    fn open_dir(dir: &Path) -> Result<Port> {
        let damaged = |reason| Error::Damaged { path: dir.to_owned(), reason };
        let open = |name: &str| dir.join(name);
        let port = Port {
            meta: open_map::<port_meta>(&open("meta")).map_err(damaged)?,
            policy: open_map::<policy>(&open("policy")).map_err(damaged)?,
            state: open_map::<port_state>(&open("port")).map_err(damaged)?,
            stats: open_map::<port_stats>(&open("stats")).map_err(damaged)?,
            flows: open_map::<flow>(&open("flows")).map_err(damaged)?,
            dir: dir.to_owned(),
        };
        let abi = port.meta()?.abi;
        if abi != types::VSNOOP_ABI {
            let reason =
                format!("made by a version with ABI {abi}, this one has {}", types::VSNOOP_ABI);
            return Err(damaged(reason));
        }
        for link in pins::LINKS {
            if !dir.join(link).exists() {
                return Err(damaged(format!("{link} is missing")));
            }
        }
        Ok(port)
    }

    fn read<T: Record>(&self, map: &MapHandle, what: &str) -> Result<T> {
        let bytes = map
            .lookup(&ZERO, MapFlags::ANY)
            .map_err(Error::bpf(format!("read {what} of {}", self.dir.display())))?;
        bytes.and_then(|b| T::from_bytes(&b)).ok_or_else(|| Error::Damaged {
            path: self.dir.clone(),
            reason: format!("{what} cannot be read"),
        })
    }

    fn write<T: Record>(&self, map: &MapHandle, value: &T, what: &str) -> Result<()> {
        map.update(&ZERO, value.as_bytes(), MapFlags::ANY)
            .map_err(Error::bpf(format!("write {what} of {}", self.dir.display())))
    }

    /// The directory of the pins.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// About the attachment.
    pub fn meta(&self) -> Result<port_meta> {
        self.read(&self.meta, "meta")
    }

    /// The tap's name when it was attached.
    pub fn ifname(&self) -> Result<String> {
        Ok(c_string(&self.meta()?.ifname))
    }

    /// The default qdisc that was replaced by noqueue, if one was.
    pub fn qdisc_replaced(&self) -> Result<Option<String>> {
        Ok(Some(c_string(&self.meta()?.qdisc)).filter(|q| !q.is_empty()))
    }

    /// Counts resets made by user space. Only the helper may call it: the
    /// record is read, changed and written without a lock.
    pub fn count_helper_resets(&self, flows: u64, bytes: u64) -> Result<()> {
        let mut meta = self.meta()?;
        meta.helper_resets += flows;
        meta.helper_reset_bytes += bytes;
        self.write(&self.meta, &meta, "meta")
    }

    /// The settings in force.
    pub fn policy(&self) -> Result<policy> {
        self.read(&self.policy, "policy")
    }

    /// Switches between `PORT_OBSERVE`, `PORT_ACTIVE` and `PORT_PAUSED`.
    pub fn set_run(&self, run: types::port_run::Type) -> Result<()> {
        let mut policy = self.policy()?;
        policy.run = run;
        self.write(&self.policy, &policy, "policy")
    }

    /// What the hooks know of the VM.
    pub fn state(&self) -> Result<port_state> {
        self.read(&self.state, "state")
    }

    /// The counters, summed over all CPUs.
    pub fn stats(&self) -> Result<port_stats> {
        let what = || format!("read stats of {}", self.dir.display());
        let per_cpu = self.stats.lookup_percpu(&ZERO, MapFlags::ANY).map_err(Error::bpf(what()))?;
        let mut sum = [0u64; size_of::<port_stats>() / 8];
        for bytes in per_cpu.unwrap_or_default() {
            for (sum, word) in sum.iter_mut().zip(bytes.chunks_exact(8)) {
                let word: [u8; 8] = word.try_into().expect("chunks_exact(8) gives 8 bytes");
                *sum = sum.wrapping_add(u64::from_ne_bytes(word));
            }
        }
        let bytes: Vec<u8> = sum.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(port_stats::from_bytes(&bytes).expect("port_stats is an array of u64"))
    }

    /// Every flow on record. One that comes or goes meanwhile may be missing.
    pub fn flows(&self) -> Result<Vec<(flow_key, flow)>> {
        batch::entries(&self.flows)
            .map_err(Error::bpf(format!("read flows of {}", self.dir.display())))
    }

    /// Puts a flow on record, as known from elsewhere; an error when it exists
    /// or the table is full.
    pub fn insert_flow(&self, key: &flow_key, flow: &flow) -> Result<()> {
        self.flows
            .update(key.as_bytes(), flow.as_bytes(), MapFlags::NO_EXIST)
            .map_err(Error::bpf(format!("insert a flow of {}", self.dir.display())))
    }

    /// How many flows there may be.
    pub fn max_flows(&self) -> u32 {
        self.flows.max_entries()
    }

    /// Connections and bytes that were acknowledged early and not yet by the VM.
    pub fn outstanding(&self) -> Result<(u64, u64)> {
        let behind = self.flows()?.into_iter().filter_map(|(_, f)| {
            let bytes = f.next_seq.diff(f.vm_seq);
            let live = u32::from(f.mode) != flow_mode::FLOW_RESET
                && u32::from(f.flags) & types::FLOW_F_CLOSED == 0;
            (live && bytes > 0).then_some(bytes as u64)
        });
        Ok(behind.fold((0, 0), |(flows, total), bytes| (flows + 1, total + bytes)))
    }

    /// Forgets a flow.
    pub fn delete_flow(&self, key: &flow_key) -> Result<()> {
        match self.flows.delete(key.as_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(Error::bpf(format!("delete a flow of {}", self.dir.display()))(error))
            }
            _ => Ok(()),
        }
    }

    /// Turns a flow into a tombstone: whatever either end sends from now on is
    /// answered with RST. `seen` is the record that the decision rests on;
    /// false when the VM has advanced since, and nothing was done.
    pub fn mark_reset(&self, key: &flow_key, seen: &flow) -> Result<bool> {
        let what = || format!("reset a flow of {}", self.dir.display());
        let found =
            self.flows.lookup(key.as_bytes(), MapFlags::LOCK).map_err(Error::bpf(what()))?;
        let Some(mut now) = found.and_then(|f| flow::from_bytes(&f)) else { return Ok(false) };
        if now.vm_seq != seen.vm_seq || u32::from(now.mode) == flow_mode::FLOW_RESET {
            return Ok(false);
        }
        now.mode = flow_mode::FLOW_RESET as u8;
        now.retired = now.next_seq.diff(now.vm_seq).max(0) as u32;
        self.flows
            .update(key.as_bytes(), now.as_bytes(), MapFlags::LOCK | MapFlags::EXIST)
            .map_err(Error::bpf(what()))?;
        Ok(true)
    }

    /// Sends an Ethernet frame to the VM, or to the sender as if the VM had
    /// sent it. The calling thread must be in the tap's network namespace.
    pub fn inject(&self, frame: &[u8], to_sender: bool) -> Result<()> {
        inject::inject(&self.dir.join("inject"), self.meta()?.ifindex, frame, to_sender)
    }

    /// Sends an Ethernet frame out of another interface of the same network
    /// namespace: the bridge, when the tap itself has gone.
    pub fn send_out_of(&self, ifindex: u32, frame: &[u8]) -> Result<()> {
        inject::inject(&self.dir.join("inject"), ifindex, frame, false)
    }

    /// Runs a hook on a frame that goes nowhere, `repeat` times: the hook's
    /// verdict (-1: pass on, 2: drop) and the frame as it left it. The calling
    /// thread must be in the tap's network namespace.
    pub fn run_hook(&self, hook: Hook, frame: &[u8], repeat: u32) -> Result<(i32, Vec<u8>)> {
        let what = || format!("run {hook:?} on a frame");
        let link = self.dir.join(pins::LINKS[hook as usize]);
        let id = Link::open(link).and_then(|l| l.info()).map_err(Error::bpf(what()))?.prog_id;
        let program = ProgramHandle::from_prog_id(id).map_err(Error::bpf(what()))?;
        let run = inject::run(&program, self.meta()?.ifindex, 0, frame, repeat)
            .map_err(Error::bpf(what()))?;
        Ok((run.verdict, run.frame))
    }

    /// Are both hooks still on the tap? Not after the tap was deleted.
    pub fn links_alive(&self) -> bool {
        pins::LINKS.iter().all(|name| {
            let info = Link::open(self.dir.join(name)).and_then(|link| link.info());
            matches!(info.map(|i| i.info), Ok(LinkTypeInfo::Tcx(tcx)) if tcx.ifindex != 0)
        })
    }

    /// The programs behind the hooks, with the kernel's own accounting.
    pub fn programs(&self) -> Result<Vec<ProgramInfo>> {
        let mut programs = Vec::new();
        for name in pins::LINKS {
            let what = || format!("read {}", self.dir.join(name).display());
            let link = Link::open(self.dir.join(name)).map_err(Error::bpf(what()))?;
            let id = link.info().map_err(Error::bpf(what()))?.prog_id;
            programs.push(program_info(id).map_err(Error::bpf(what()))?);
        }
        Ok(programs)
    }

    /// Takes the hooks off and forgets everything. What was acknowledged and
    /// has not been handed over yet does not exist: strict acknowledges only
    /// what is in the tap's ring.
    pub fn detach(self) -> Result<()> {
        pins::remove(&self.dir)
    }
}

fn program_info(id: u32) -> libbpf_rs::Result<ProgramInfo> {
    use std::os::fd::{AsFd, AsRawFd};

    let program = ProgramHandle::from_prog_id(id)?;
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: an open program, and a zeroed record with its true length.
    let rc = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            program.as_fd().as_raw_fd(),
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

fn c_string(chars: &[std::ffi::c_char; 16]) -> String {
    let bytes = chars.map(|c| c as u8);
    CStr::from_bytes_until_nul(&bytes)
        .map(|s| s.to_string_lossy().into_owned())
        .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned())
}
