//! Processes of their own drop privileges, and try what must fail.

use std::process::Command;

use nix::errno::Errno;

use super::refusals::{BPF, BPF_PROGRAMS, NEVER, OTHER_NAMESPACES, PROGRAMS};
use super::testing::{Status, assert_nothing_of_never, assert_threads_inherit, call, in_children};
use super::*;

/// Commands of bpf(2): of a map, and of a program.
const MAP_CREATE: usize = 0;
const PROG_LOAD: usize = 5;

fn refused_beside(more: &[Refusal]) -> Vec<Refusal> {
    NEVER.iter().chain(more).copied().collect()
}

fn filters() -> u32 {
    Status::of_thread().field("Seccomp_filters").parse().expect("a number")
}

#[test]
fn what_is_dropped_is_gone_for_threads_and_programs_too() {
    in_children("tests::what_is_dropped_is_gone_for_threads_and_programs_too", &[""], |_| {
        let given = Status::of_thread();
        let net_raw = 1 << Capability::CAP_NET_RAW.index();
        let capabilities = vec![Capability::CAP_NET_RAW];
        let kept = Privileges { capabilities, refused: refused_beside(&[]) };
        kept.drop_others().expect("dropped");
        let status = Status::of_thread();
        for name in ["CapEff", "CapPrm"] {
            assert_eq!(status.bits(name), given.bits("CapPrm") & net_raw, "{name}");
        }
        assert_eq!((status.bits("CapInh"), status.bits("CapAmb")), (0, 0));
        assert_eq!((status.field("NoNewPrivs"), status.field("Seccomp")), ("1", "2"));
        assert_nothing_of_never();
        assert_threads_inherit();
        // The program of another user's, root's too, gets what this process has.
        let program = Command::new("cat").arg("/proc/self/status").output().expect("a program");
        let program = Status::from_text(String::from_utf8(program.stdout).expect("text"));
        for name in ["CapEff", "CapPrm", "NoNewPrivs", "Seccomp"] {
            assert_eq!(program.field(name), status.field(name), "{name}");
        }
    });
}

#[test]
fn a_call_is_refused_in_the_forms_that_are_listed_and_in_no_other() {
    in_children(
        "tests::a_call_is_refused_in_the_forms_that_are_listed_and_in_no_other",
        &[""],
        |_| {
            refuse(&[&[OTHER_NAMESPACES], BPF_PROGRAMS].concat()).expect("refused");
            let enter =
                |kind: libc::c_int| call(libc::SYS_setns, [usize::MAX, kind as usize, 0, 0, 0]);
            for kind in [0, libc::CLONE_NEWNS, libc::CLONE_NEWUSER, libc::CLONE_NEWNET | 1] {
                assert_eq!(enter(kind), Err(Errno::EPERM), "{kind:x}");
            }
            assert_eq!(enter(libc::CLONE_NEWNET), Err(Errno::EBADF));
            // The kernel refuses a record without a length in its own way.
            assert_eq!(call(libc::SYS_bpf, [PROG_LOAD, 0, 0, 0, 0]), Err(Errno::EPERM));
            assert_ne!(call(libc::SYS_bpf, [MAP_CREATE, 1, usize::MAX, 0, 0]), Err(Errno::EPERM));
            assert!(Command::new("true").status().is_ok_and(|status| status.success()));
            // Beside a form the whole call.
            refuse(&[&[BPF, PROGRAMS], BPF_PROGRAMS].concat()).expect("refused");
            assert_eq!(call(libc::SYS_bpf, [MAP_CREATE, 1, usize::MAX, 0, 0]), Err(Errno::EPERM));
            assert!(Command::new("true").status().is_err(), "a program runs");
        },
    );
}

#[test]
fn filters_that_are_inherited_are_not_installed_again() {
    in_children("tests::filters_that_are_inherited_are_not_installed_again", &[""], |_| {
        let before = filters();
        let one = refused_beside(&[OTHER_NAMESPACES]);
        for _ in 0..3 {
            refuse(&one).expect("refused");
            assert_eq!(filters(), before + 2);
        }
        refuse(&refused_beside(BPF_PROGRAMS)).expect("refused");
        refuse(&one).expect("refused");
        assert_eq!(filters(), before + 4, "others are");
        let in_thread = std::thread::spawn(move || refuse(&one).map(|()| filters()));
        assert_eq!(in_thread.join().expect("a thread").expect("refused"), before + 4);
        assert_eq!(call(libc::SYS_getppid, [0; 5]), Ok(()));
    });
}
