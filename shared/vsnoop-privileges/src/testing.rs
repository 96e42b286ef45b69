//! Helpers of the tests of privileges: a child that drops them and tries what must fail.

use std::process::Command;

use nix::errno::Errno;

/// Set in the child.
const CHILD: &str = "VSNOOP_TEST_PRIVILEGES";

/// Runs `body` in a process of its own for each of `ways`, since what is dropped does not come
/// back. `test`: the name of the calling test, which the process runs again.
pub fn in_children(test: &str, ways: &[&str], body: impl FnOnce(&str)) {
    if let Some(way) = std::env::var_os(CHILD) {
        return body(way.to_str().expect("a word"));
    }
    for way in ways {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, way)
            .output()
            .expect("a child");
        let said = String::from_utf8_lossy(&child.stdout);
        let errors = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("1 passed"), "{way}: {said}{errors}");
    }
}

/// /proc/PID/status (proc(5)).
pub struct Status(String);

impl Status {
    pub fn from_text(text: String) -> Self {
        Self(text)
    }

    /// The status of the calling thread.
    pub fn of_thread() -> Self {
        Self(std::fs::read_to_string("/proc/thread-self/status").expect("a status"))
    }

    pub fn field(&self, name: &str) -> &str {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {}", self.0)).trim()
    }

    /// A set of capabilities.
    pub fn bits(&self, name: &str) -> u64 {
        u64::from_str_radix(self.field(name), 16).expect("a mask")
    }
}

/// A system call with numbers or null pointers.
pub fn call(number: libc::c_long, arguments: [usize; 5]) -> Result<(), Errno> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: arguments are numbers or null pointers, which the kernel refuses where it would use
    // them.
    Errno::result(unsafe { libc::syscall(number, a, b, c, d, e) }).map(drop)
}

/// Every one of these fails without arguments, and does nothing where it is not refused.
pub fn assert_refused(calls: &[libc::c_long]) {
    for number in calls {
        assert_eq!(call(*number, [0; 5]), Err(Errno::EPERM), "system call {number}");
    }
}

/// No process of vsnoop may make namespaces, become another user, or change the kernel or other
/// processes.
pub fn assert_nothing_of_never() {
    assert_refused(&[
        libc::SYS_execveat,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_mount,
        libc::SYS_chroot,
        libc::SYS_finit_module,
        libc::SYS_kexec_load,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_keyctl,
        libc::SYS_io_uring_setup,
        // To become root again.
        libc::SYS_setresuid,
    ]);
    for namespace in [libc::CLONE_NEWNET, libc::CLONE_NEWUSER] {
        assert_eq!(call(libc::SYS_unshare, [namespace as usize, 0, 0, 0, 0]), Err(Errno::EPERM));
        let flags = (namespace | libc::SIGCHLD) as usize;
        assert_eq!(call(libc::SYS_clone, [flags, 0, 0, 0, 0]), Err(Errno::EPERM));
    }
    assert_eq!(call(libc::SYS_clone3, [0; 5]), Err(Errno::ENOSYS));
    #[cfg(target_arch = "x86_64")]
    assert_eq!(call(0x4000_0000 + libc::SYS_getpid, [0; 5]), Err(Errno::ENOSYS));
}

/// A new thread has the privileges of this one.
pub fn assert_threads_inherit() {
    let own = Status::of_thread();
    let inherited = std::thread::spawn(Status::of_thread).join().expect("a thread");
    for name in ["CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Uid"] {
        assert_eq!(inherited.field(name), own.field(name));
    }
}
