//! A process of its own drops its privileges, and tries what must fail.

use std::fs;
use std::process::Command;

use nix::errno::Errno;
use nix::unistd::geteuid;
use vsnoop_privileges::testing::{
    Status, assert_nothing_of_never, assert_refused, assert_threads_inherit, call, in_children,
};

use super::*;

const NET_ADMIN: u64 = 1 << 12;

/// In the child: nothing that is tried here may succeed.
fn drop_and_try(user: &str) {
    let account = (!user.is_empty()).then(|| UserAccount::find(user).expect("a user"));
    let plan = Plan { account, needs: Needs { diverts: false, binds_low_port: false } };
    plan.drop().expect("dropped");
    let status = Status::of_thread();
    for name in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(status.bits(name) & !NET_ADMIN, 0, "{name}");
    }
    assert_eq!((status.bits("CapInh"), status.bits("CapAmb")), (0, 0));
    assert_eq!((status.field("NoNewPrivs"), status.field("Seccomp")), ("1", "2"));
    assert_nothing_of_never();
    assert_refused(&[libc::SYS_execve, libc::SYS_setns, libc::SYS_pidfd_getfd, libc::SYS_bpf]);
    assert!(Command::new("/bin/true").status().is_err(), "a program runs");
    // Capabilities, not the filter: a packet socket, and files of others.
    let packet = [libc::AF_PACKET as usize, libc::SOCK_RAW as usize, 0, 0, 0];
    assert_eq!(call(libc::SYS_socket, packet), Err(Errno::EPERM));
    if !user.is_empty() {
        assert!(!geteuid().is_root());
        let shadow = fs::read("/etc/shadow").map_err(|error| error.kind());
        assert_eq!(shadow, Err(std::io::ErrorKind::PermissionDenied));
    }
    assert_threads_inherit();
}

#[test]
fn what_must_fail_fails_when_privileges_are_dropped() {
    let users: &[&str] = if geteuid().is_root() { &["", "nobody"] } else { &[""] };
    let name = "privileges::tests::what_must_fail_fails_when_privileges_are_dropped";
    in_children(name, users, drop_and_try);
}

#[test]
fn a_user_that_is_missing_is_named() {
    let error = UserAccount::find("no-such-user-here").expect_err("no user").to_string();
    assert!(error.contains("useradd") && error.contains("no-such-user-here"), "{error}");
}
