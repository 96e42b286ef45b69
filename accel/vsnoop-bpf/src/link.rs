//! A hook's pinned link to its tap: information on it, and its detachment.
//!
//! Uses plain system calls: libbpf prints an error for a missing pin, and another process may
//! remove it at any time.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use libbpf_rs::{AsRawLibbpf, Object};

use crate::error::{Error, Result};
use crate::objects::{self, Named};

/// The kernel's information on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkInfo {
    /// ID of the program behind the link.
    pub program_id: u32,
    /// Index of its interface; 0: deleted.
    pub ifindex: u32,
}

/// An open link, which pins nothing by itself.
#[derive(Debug)]
pub(crate) struct PinnedLink(OwnedFd);

impl PinnedLink {
    pub fn open(path: &Path) -> libbpf_rs::Result<Self> {
        open_pin(path).map(Self)
    }

    /// An error also when it is no tcx link.
    pub fn info(&self) -> libbpf_rs::Result<LinkInfo> {
        let mut info = libbpf_sys::bpf_link_info::default();
        let mut len = size_of::<libbpf_sys::bpf_link_info>() as u32;
        // SAFETY: an open descriptor, and a zeroed record with its true length.
        check(unsafe {
            libbpf_sys::bpf_obj_get_info_by_fd(
                self.0.as_raw_fd(),
                std::ptr::from_mut(&mut info).cast(),
                &mut len,
            )
        })?;
        if info.type_ != libbpf_sys::BPF_LINK_TYPE_TCX {
            return Err(libbpf_rs::Error::from_raw_os_error(libc::EINVAL));
        }
        // SAFETY: the type says that the kernel filled in this member of the union.
        let tcx = unsafe { info.__bindgen_anon_1.tcx };
        Ok(LinkInfo { program_id: info.prog_id, ifindex: tcx.ifindex })
    }

    /// Detaches the program. When this returns, no packet passes it. No error if it was detached
    /// before.
    pub fn detach(&self) -> libbpf_rs::Result<()> {
        // SAFETY: takes no pointers.
        check(unsafe { libbpf_sys::bpf_link_detach(self.0.as_raw_fd()) }).map(drop)
    }
}

/// A link that is not pinned yet: it ends with its descriptor.
#[derive(Debug)]
pub(crate) struct FreshLink(OwnedFd);

/// Attaches a program to interface `ifindex` of the calling thread's network namespace. `flags`: at
/// a tcx hook its position among the others, `BPF_F_BEFORE` or `BPF_F_AFTER`; of an XDP program its
/// mode.
pub(crate) fn attach(
    program: &OwnedFd,
    kind: libbpf_sys::bpf_attach_type,
    ifindex: u32,
    flags: u32,
) -> libbpf_rs::Result<FreshLink> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        flags,
        ..Default::default()
    };
    // SAFETY: plain numbers, and options that outlive the call.
    let fd = check(unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, kind, &options)
    })?;
    // SAFETY: a new descriptor, owned by this value alone.
    Ok(FreshLink(unsafe { OwnedFd::from_raw_fd(fd) }))
}

impl FreshLink {
    pub(crate) fn pin(self, path: &Path) -> libbpf_rs::Result<()> {
        let path = c_path(path)?;
        // SAFETY: an open descriptor, and a C string that outlives the call.
        check(unsafe { libbpf_sys::bpf_obj_pin(self.0.as_raw_fd(), path.as_ptr()) }).map(drop)
    }
}

/// libbpf-rs has no tcx links yet; libbpf has. A fresh link that the caller owns.
pub(crate) fn tcx_link(
    object: &Object,
    program: impl Named,
    ifindex: u32,
    ifname: &str,
    flags: u32,
) -> Result<NonNull<libbpf_sys::bpf_link>> {
    let what = format!("attach {} to {ifname}", program.name());
    let program = objects::program(object, program);
    let opts = libbpf_sys::bpf_tcx_opts {
        sz: size_of::<libbpf_sys::bpf_tcx_opts>() as _,
        flags,
        ..Default::default()
    };
    // SAFETY: the program is loaded and alive, the options are complete; the
    // result is checked before use.
    let link = unsafe {
        libbpf_sys::bpf_program__attach_tcx(
            program.as_libbpf_object().as_ptr(),
            ifindex as i32,
            &opts,
        )
    };
    NonNull::new(link)
        .ok_or_else(|| Error::bpf(what)(libbpf_rs::Error::from(std::io::Error::last_os_error())))
}

fn c_path(path: &Path) -> libbpf_rs::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| libbpf_rs::Error::from_raw_os_error(libc::EINVAL))
}

/// Opens a pin of any kind.
pub(crate) fn open_pin(path: &Path) -> libbpf_rs::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: a C string that outlives the call.
    let fd = check(unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) })?;
    // SAFETY: a new descriptor, owned by this value alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// libbpf returns the negative errno.
fn check(result: i32) -> libbpf_rs::Result<i32> {
    if result < 0 { Err(libbpf_rs::Error::from_raw_os_error(-result)) } else { Ok(result) }
}
