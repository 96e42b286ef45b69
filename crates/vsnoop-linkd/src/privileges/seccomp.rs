//! System calls that a link never makes, and is refused from now on (seccomp(2)).
//!
//! A list of what is refused, not of what is allowed: docs/decisions/0026-link-privileges.md says
//! why.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter, sock_filter,
};

use super::error::PrivilegeError;
use super::needs::Needs;

/// They run other programs, reach other processes, change mounts, namespaces, users, the kernel or
/// the clock, or are large parts of the kernel that a link does not use.
const NEVER: &[libc::c_long] = &[
    // Programs and other processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Mounts, roots and devices.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_mknodat,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    // Namespaces and users.
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_personality,
    // The kernel, its clock and its names.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Parts of the kernel.
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_vhangup,
];

#[cfg(target_arch = "x86_64")]
const NEVER_HERE: &[libc::c_long] = &[
    libc::SYS_mknod,
    libc::SYS_kexec_file_load,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
];
#[cfg(not(target_arch = "x86_64"))]
const NEVER_HERE: &[libc::c_long] = &[libc::SYS_kexec_file_load];

/// `clone` makes threads only: not with one of these.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// System calls of the x32 ABI have this bit (arch/x86/include/uapi/asm/unistd.h).
#[cfg(target_arch = "x86_64")]
const OTHER_ABI: u32 = 0x4000_0000;
/// No system call has such a number.
#[cfg(not(target_arch = "x86_64"))]
const OTHER_ABI: u32 = u32::MAX;

/// From now on these calls fail with EPERM, or ENOSYS. no_new_privs must be set. A call of another
/// architecture ends the process.
pub fn install(needs: Needs) -> Result<(), PrivilegeError> {
    let mut refused: BTreeMap<_, _> =
        NEVER.iter().chain(NEVER_HERE).map(|call| (*call, Vec::new())).collect();
    if !needs.diverts {
        refused.insert(libc::SYS_bpf, Vec::new());
    }
    refused.insert(libc::SYS_clone, new_namespaces()?);
    let filter = SeccompFilter::new(
        refused,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into()?,
    )?;
    apply_filter(&BpfProgram::try_from(filter)?)?;
    Ok(apply_filter(&unknown_calls())?)
}

/// `clone` with the flag of any namespace.
fn new_namespaces() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let flags = (0..i32::BITS).map(|bit| 1 << bit).filter(|flag| NAMESPACES & flag != 0);
    let rule = |flag: i32| {
        let flag = u64::from(flag as u32);
        let is_set = SeccompCmpOp::MaskedEq(flag);
        SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Qword, is_set, flag)?])
    };
    flags.map(rule).collect()
}

/// Calls that do not exist (ENOSYS): `clone3`, whose flags stand in memory where no filter sees
/// them, so that libc calls `clone`; and all of x32, which has other numbers.
fn unknown_calls() -> [sock_filter; 5] {
    let code = |parts: u32| parts as u16;
    let load_number = code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS);
    let at_least = code(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K);
    let equal = code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    let answer = code(libc::BPF_RET | libc::BPF_K);
    let statement = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    [
        // The number stands first in struct seccomp_data.
        statement(load_number, 0, 0, 0),
        statement(at_least, 2, 0, OTHER_ABI),
        statement(equal, 1, 0, libc::SYS_clone3 as u32),
        statement(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
        statement(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    ]
}
