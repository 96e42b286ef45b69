//! VMs that share a core in slices of 30 ms, as under Xen's credit scheduler in the vSnoop report.
//!
//! A thread on the host's core looks at the vCPU threads each millisecond and gives the VM whose
//! turn it is ([`Turns`]) the higher real-time priority. So a vCPU keeps its turn while it waits
//! for a lock of its emulator (QEMU's main loop on the other core has it for some microseconds):
//! the others run meanwhile, and leave the core at once when it has the lock. Under SCHED_RR it
//! would queue behind their slices. A vCPU that is halted gives its turn up.
//!
//! /proc/PID/task/TID/syscall tells the two apart. A halted vCPU waits for a condition (TCG: futex
//! with a bit set, as pthread_cond_wait calls it) or is in KVM_RUN (ioctl); one that waits for a
//! lock has called futex without a bit set (pthread_mutex_lock).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::unistd::Pid;

use super::sched;
use super::turns::{Begin, Turns};

const TICK: Duration = Duration::from_millis(1);
const WAITING: i32 = 1;
const TURN: i32 = 2;
/// The priority of a VM that runs whenever it has work.
const FAVOURED: i32 = 3;
/// The priority of the thread that gives turns.
const OWN: i32 = 10;
const NOBODY: usize = usize::MAX;

const FUTEX: &str = "202";
const IOCTL: &str = "16";
/// FUTEX_WAIT_BITSET without its flags.
const WAIT_BITSET: u64 = 9;
const FUTEX_COMMAND: u64 = 0x7f;

/// The machines take turns until this is dropped; then they share their core as other threads do.
#[derive(Debug)]
pub struct Slices {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<()>>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    favoured: AtomicUsize,
    begun: Mutex<Vec<Begin>>,
    /// Each machine has waited this long.
    waited: Mutex<Vec<Duration>>,
}

/// A vCPU thread.
#[derive(Debug)]
struct Vcpu {
    thread: Pid,
    syscall: File,
}

impl Slices {
    /// `vcpus` are the vCPU threads of each machine, on the guests' core.
    pub fn start(vcpus: &[Vec<Pid>]) -> Result<Self> {
        let open = |&thread: &Pid| {
            let path = format!("/proc/{thread}/syscall");
            let syscall = File::open(&path).with_context(|| {
                format!("open {path}: without it slices cannot tell a halted vCPU from a busy one")
            })?;
            Ok(Vcpu { thread, syscall })
        };
        let machine = |threads: &Vec<Pid>| threads.iter().map(open).collect();
        let machines = vcpus.iter().map(machine).collect::<Result<Vec<Vec<Vcpu>>>>()?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            favoured: AtomicUsize::new(NOBODY),
            begun: Mutex::default(),
            waited: Mutex::new(vec![Duration::ZERO; machines.len()]),
        });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("slices".into())
            .spawn(move || {
                let result = give_turns(&machines, &theirs);
                // Or a machine that is killed could not end beside one that has the last turn, and
                // does not sleep.
                for vcpu in machines.iter().flatten() {
                    let _ = sched::favour(&[vcpu.thread], false);
                }
                if let Err(error) = &result {
                    eprintln!("slices: {error:#}");
                }
                result
            })
            .context("start the thread that gives turns")?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// From now on this machine runs whenever it has work; `None`: turns decide.
    pub fn favour(&self, machine: Option<usize>) {
        self.shared.favoured.store(machine.unwrap_or(NOBODY), Ordering::Relaxed);
        // It is done when the thread has looked.
        thread::sleep(2 * TICK);
    }

    /// The turns that have begun since the last call.
    pub fn take_turns(&self) -> Vec<Begin> {
        let mut begun = self.shared.begun.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *begun)
    }

    /// How long a machine has waited for its turns while it had work, to about a millisecond.
    pub fn waited(&self, machine: usize) -> Duration {
        self.shared.waited.lock().unwrap_or_else(PoisonError::into_inner)[machine]
    }
}

impl Drop for Slices {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread has logged its own errors.
            let _ = thread.join();
        }
    }
}

fn give_turns(machines: &[Vec<Vcpu>], shared: &Shared) -> Result<()> {
    sched::pin_self()?;
    sched::first_in(Pid::from_raw(0), OWN)?;
    let mut priorities = vec![0; machines.len()];
    let mut turns = Turns::new(machines.len());
    let begin = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let works: Vec<bool> = machines.iter().map(|vcpus| vcpus.iter().any(works)).collect();
        if let Some(begun) = turns.tick(begin.elapsed(), &works) {
            shared.begun.lock().unwrap_or_else(PoisonError::into_inner).push(begun);
        }
        let favoured = shared.favoured.load(Ordering::Relaxed);
        let mut waited = shared.waited.lock().unwrap_or_else(PoisonError::into_inner);
        for (machine, more) in turns.take_waited().into_iter().enumerate() {
            // The favoured one runs in the turns of others.
            waited[machine] += if machine == favoured { Duration::ZERO } else { more };
        }
        drop(waited);
        for (machine, vcpus) in machines.iter().enumerate() {
            let wanted = match machine {
                _ if machine == favoured => FAVOURED,
                _ if machine == turns.current() => TURN,
                _ => WAITING,
            };
            if priorities[machine] != wanted {
                // A machine that has ended has nothing to run.
                let set = |vcpu: &Vcpu| sched::first_in(vcpu.thread, wanted);
                if vcpus.iter().try_for_each(set).is_err() && vcpus.iter().all(is_there) {
                    vcpus.iter().try_for_each(set)?;
                }
                priorities[machine] = wanted;
            }
        }
        thread::sleep(TICK);
    }
    Ok(())
}

/// Whether a vCPU runs, or would if it had its core or a lock.
fn works(vcpu: &Vcpu) -> bool {
    let mut text = [0; 256];
    match vcpu.syscall.read_at(&mut text, 0) {
        Ok(length) => !is_halted(&String::from_utf8_lossy(&text[..length])),
        // It is just now going to sleep, or waking up (EAGAIN); or it is gone.
        Err(_) => is_there(vcpu),
    }
}

fn is_there(vcpu: &Vcpu) -> bool {
    nix::sys::signal::kill(vcpu.thread, None).is_ok()
}

/// Reads the line of /proc/PID/syscall: the number of the system call in which the thread sleeps,
/// and its arguments; `running` if it does not sleep.
fn is_halted(line: &str) -> bool {
    let mut words = line.split_whitespace();
    match words.next() {
        Some(FUTEX) => {
            let operation = words.nth(1).and_then(|word| word.strip_prefix("0x"));
            let operation = operation.and_then(|word| u64::from_str_radix(word, 16).ok());
            operation.is_some_and(|operation| operation & FUTEX_COMMAND == WAIT_BITSET)
        }
        Some(IOCTL) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Busy(Child);

    impl Busy {
        fn start() -> Self {
            let script = "while :; do :; done";
            let busy = Self(Command::new("sh").args(["-c", script]).spawn().expect("sh"));
            sched::pin(busy.thread(), sched::GUEST_CORE).expect("the guests' core");
            busy
        }

        fn thread(&self) -> Pid {
            Pid::from_raw(self.0.id() as i32)
        }

        fn policy(&self) -> libc::c_int {
            // SAFETY: a plain system call.
            unsafe { libc::sched_getscheduler(self.thread().as_raw()) }
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn after_the_last_turn_no_thread_keeps_others_from_the_core() {
        let busy = [Busy::start(), Busy::start()];
        let before = busy.each_ref().map(Busy::policy);
        let slices = Slices::start(&busy.each_ref().map(|busy| vec![busy.thread()]))
            .expect("a thread gives turns");
        while slices.take_turns().is_empty() {
            let ended = slices.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!ended, "no turn was given: standard error says why");
            thread::sleep(TICK);
        }
        assert_eq!(busy.each_ref().map(Busy::policy), [libc::SCHED_FIFO; 2]);
        drop(slices);
        assert_eq!(busy.each_ref().map(Busy::policy), before);
    }

    #[test]
    fn a_vcpu_that_waits_for_a_lock_works_and_a_halted_one_does_not() {
        // The kernel prints these lines for pthread_mutex_lock, pthread_cond_wait and KVM_RUN.
        assert!(!is_halted("running\n"));
        assert!(!is_halted("202 0x55d0c0de1000 0x80 0x2 0x0 0x0 0x0 0x7ffe 0x7f00\n"));
        assert!(is_halted("202 0x55d0c0de1000 0x189 0x0 0x0 0x0 0xffffffff 0x7ffe 0x7f00\n"));
        assert!(is_halted("202 0x55d0c0de1000 0x89 0x0 0x0 0x0 0xffffffff 0x7ffe 0x7f00\n"));
        assert!(is_halted("16 0xd 0xae80 0x0 0x0 0x0 0x0 0x7ffe 0x7f00\n"));
        assert!(!is_halted("-1 0x7ffe 0x7f00\n"));
    }
}
