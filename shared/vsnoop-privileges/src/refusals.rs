//! System calls that are refused, by subject: lists of what is refused, not of what is allowed
//! (docs/decisions/0026-link-privileges.md says why).

use libc::c_long;

/// A system call that is refused, or some of its forms. Arguments count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// In every form.
    Call(c_long),
    /// Where the argument, an `int`, has this value.
    If { call: c_long, argument: u8, value: u32 },
    /// Where the argument, an `int`, has another value.
    Unless { call: c_long, argument: u8, value: u32 },
    /// Where the argument has any of these bits.
    IfAnyBit { call: c_long, argument: u8, bits: u32 },
}

use Refusal::{Call, If, IfAnyBit, Unless};

/// No process of vsnoop makes these once it runs. They reach the memory of other processes, change
/// mounts, namespaces, users, the kernel or the clock, or are large parts of the kernel that vsnoop
/// does not use.
pub const NEVER: &[Refusal] = &[
    // Programs without a path, and other processes.
    Call(libc::SYS_execveat),
    Call(libc::SYS_ptrace),
    Call(libc::SYS_process_vm_readv),
    Call(libc::SYS_process_vm_writev),
    Call(libc::SYS_process_madvise),
    Call(libc::SYS_kcmp),
    // Mounts, roots and devices.
    Call(libc::SYS_mount),
    Call(libc::SYS_umount2),
    Call(libc::SYS_pivot_root),
    Call(libc::SYS_chroot),
    Call(libc::SYS_move_mount),
    Call(libc::SYS_open_tree),
    Call(libc::SYS_fsopen),
    Call(libc::SYS_fsconfig),
    Call(libc::SYS_fsmount),
    Call(libc::SYS_fspick),
    Call(libc::SYS_mount_setattr),
    Call(OPEN_TREE_ATTR),
    Call(libc::SYS_swapon),
    Call(libc::SYS_swapoff),
    Call(libc::SYS_quotactl),
    Call(libc::SYS_mknodat),
    Call(libc::SYS_name_to_handle_at),
    Call(libc::SYS_open_by_handle_at),
    Call(libc::SYS_fanotify_init),
    // New namespaces, and users. `clone` makes threads and children, no namespaces.
    Call(libc::SYS_unshare),
    IfAnyBit { call: libc::SYS_clone, argument: 0, bits: NAMESPACES as u32 },
    Call(libc::SYS_setuid),
    Call(libc::SYS_setgid),
    Call(libc::SYS_setreuid),
    Call(libc::SYS_setregid),
    Call(libc::SYS_setresuid),
    Call(libc::SYS_setresgid),
    Call(libc::SYS_setgroups),
    Call(libc::SYS_setfsuid),
    Call(libc::SYS_setfsgid),
    Call(libc::SYS_personality),
    // The kernel, its clock and its names.
    Call(libc::SYS_init_module),
    Call(libc::SYS_finit_module),
    Call(libc::SYS_delete_module),
    Call(libc::SYS_kexec_load),
    Call(libc::SYS_kexec_file_load),
    Call(libc::SYS_reboot),
    Call(libc::SYS_syslog),
    Call(libc::SYS_acct),
    Call(libc::SYS_settimeofday),
    Call(libc::SYS_clock_settime),
    Call(libc::SYS_adjtimex),
    Call(libc::SYS_clock_adjtime),
    Call(libc::SYS_sethostname),
    Call(libc::SYS_setdomainname),
    // Parts of the kernel.
    Call(libc::SYS_perf_event_open),
    Call(libc::SYS_userfaultfd),
    Call(libc::SYS_add_key),
    Call(libc::SYS_request_key),
    Call(libc::SYS_keyctl),
    Call(libc::SYS_io_uring_setup),
    Call(libc::SYS_io_uring_enter),
    Call(libc::SYS_io_uring_register),
    Call(libc::SYS_vhangup),
    #[cfg(target_arch = "x86_64")]
    Call(libc::SYS_mknod),
    #[cfg(target_arch = "x86_64")]
    Call(libc::SYS_iopl),
    #[cfg(target_arch = "x86_64")]
    Call(libc::SYS_ioperm),
    #[cfg(target_arch = "x86_64")]
    Call(libc::SYS_modify_ldt),
    #[cfg(target_arch = "x86_64")]
    Call(libc::SYS_uselib),
    #[cfg(target_arch = "x86_64")]
    Call(libc::SYS_ustat),
    #[cfg(target_arch = "x86_64")]
    Call(libc::SYS_sysfs),
];

/// open_tree_attr() of Linux 6.15, which libc does not name yet.
const OPEN_TREE_ATTR: c_long = 467;

const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// To run other programs.
pub const PROGRAMS: Refusal = Call(libc::SYS_execve);

/// To copy descriptors of other processes.
pub const DESCRIPTORS: Refusal = Call(libc::SYS_pidfd_getfd);

/// To enter namespaces that exist.
pub const ALL_NAMESPACES: Refusal = Call(libc::SYS_setns);
/// To enter those of mounts, processes and users, or any whose kind is not named.
pub const OTHER_NAMESPACES: Refusal =
    Unless { call: libc::SYS_setns, argument: 1, value: libc::CLONE_NEWNET as u32 };

/// To use maps and programs of BPF.
pub const BPF: Refusal = Call(libc::SYS_bpf);

/// To load programs of BPF, and to attach them: commands of linux/bpf.h.
pub const BPF_PROGRAMS: &[Refusal] = &[
    If { call: libc::SYS_bpf, argument: 0, value: 5 }, // BPF_PROG_LOAD
    If { call: libc::SYS_bpf, argument: 0, value: 8 }, // BPF_PROG_ATTACH
    If { call: libc::SYS_bpf, argument: 0, value: 17 }, // BPF_RAW_TRACEPOINT_OPEN
    If { call: libc::SYS_bpf, argument: 0, value: 28 }, // BPF_LINK_CREATE
    If { call: libc::SYS_bpf, argument: 0, value: 29 }, // BPF_LINK_UPDATE
];
