//! A process of its own drops its privileges, and tries what must fail.

use std::fs;
use std::process::Command;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

use super::*;

/// Set in the child; its value is the user.
const CHILD: &str = "VSNOOP_TEST_PRIVILEGES";
const NET_ADMIN: u64 = 1 << 12;

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
}

fn bits(status: &str, name: &str) -> u64 {
    u64::from_str_radix(&field(status, name), 16).expect("a mask")
}

fn call(number: libc::c_long, arguments: [usize; 5]) -> Result<(), Errno> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: arguments are numbers or null pointers, which the kernel refuses where it would use
    // them.
    Errno::result(unsafe { libc::syscall(number, a, b, c, d, e) }).map(drop)
}

/// In the child: nothing that is tried here may succeed.
fn drop_and_try(user: &str) {
    let account = (!user.is_empty()).then(|| UserAccount::find(user).expect("a user"));
    let plan = Plan { account, needs: Needs { diverts: false, binds_low_port: false } };
    plan.drop().expect("dropped");
    let status = fs::read_to_string("/proc/thread-self/status").expect("a status");
    for name in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(bits(&status, name) & !NET_ADMIN, 0, "{status}");
    }
    assert_eq!((bits(&status, "CapInh"), bits(&status, "CapAmb")), (0, 0));
    assert_eq!((field(&status, "NoNewPrivs"), field(&status, "Seccomp")), ("1".into(), "2".into()));
    let refused = [
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_mount,
        libc::SYS_chroot,
        libc::SYS_setns,
        libc::SYS_finit_module,
        libc::SYS_kexec_load,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_keyctl,
        libc::SYS_io_uring_setup,
        // To become root again.
        libc::SYS_setresuid,
    ];
    for number in refused {
        assert_eq!(call(number, [0; 5]), Err(Errno::EPERM), "system call {number}");
    }
    assert_eq!(unshare(CloneFlags::CLONE_NEWNET), Err(Errno::EPERM));
    assert_eq!(unshare(CloneFlags::CLONE_NEWUSER), Err(Errno::EPERM));
    let new_namespace = (libc::CLONE_NEWUSER | libc::SIGCHLD) as usize;
    assert_eq!(call(libc::SYS_clone, [new_namespace, 0, 0, 0, 0]), Err(Errno::EPERM));
    assert_eq!(call(libc::SYS_clone3, [0; 5]), Err(Errno::ENOSYS));
    let x32_getpid = 0x4000_0000 + libc::SYS_getpid;
    assert_eq!(call(x32_getpid, [0; 5]), Err(Errno::ENOSYS));
    assert!(Command::new("/bin/true").status().is_err(), "a program runs");
    // Capabilities, not the filter: a packet socket, and files of others.
    let packet = [libc::AF_PACKET as usize, libc::SOCK_RAW as usize, 0, 0, 0];
    assert_eq!(call(libc::SYS_socket, packet), Err(Errno::EPERM));
    if !user.is_empty() {
        assert!(!geteuid().is_root());
        let shadow = fs::read("/etc/shadow").map_err(|error| error.kind());
        assert_eq!(shadow, Err(std::io::ErrorKind::PermissionDenied));
    }
    // New threads are allowed, and inherit the privileges.
    let inherited = std::thread::spawn(|| fs::read_to_string("/proc/thread-self/status"));
    let inherited = inherited.join().expect("a thread").expect("a status");
    for name in ["CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Uid"] {
        assert_eq!(field(&inherited, name), field(&status, name));
    }
}

#[test]
fn what_must_fail_fails_when_privileges_are_dropped() {
    if let Some(user) = std::env::var_os(CHILD) {
        return drop_and_try(user.to_str().expect("a name"));
    }
    let users: &[&str] = if geteuid().is_root() { &["", "nobody"] } else { &[""] };
    for user in users {
        let name = "privileges::tests::what_must_fail_fails_when_privileges_are_dropped";
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, user)
            .output()
            .expect("a child");
        let said = String::from_utf8_lossy(&child.stdout);
        let errors = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("1 passed"), "{user}: {said}{errors}");
    }
}

#[test]
fn a_user_that_is_missing_is_named() {
    let error = UserAccount::find("no-such-user-here").expect_err("no user").to_string();
    assert!(error.contains("useradd") && error.contains("no-such-user-here"), "{error}");
}
