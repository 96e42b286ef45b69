//! Network namespaces, each with one tun device.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread::JoinHandle;

const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
pub const DEVICE: &str = "tun0";

/// A network namespace, and what its device sends.
pub struct Namespace {
    namespace: File,
    pub tun: File,
}

impl Namespace {
    /// Makes a namespace, and runs commands (`ip`, `sysctl`) in it.
    pub fn new(commands: &[String]) -> Self {
        let commands = commands.to_vec();
        let made = std::thread::spawn(move || {
            // SAFETY: a plain system call.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "make a namespace");
            let tun = tun();
            run("ip link set lo up");
            run(&format!("ip link set {DEVICE} up txqueuelen 10000"));
            commands.iter().for_each(|command| run(command));
            let namespace = File::open("/proc/thread-self/ns/net").expect("a namespace");
            Self { namespace, tun }
        });
        made.join().expect("a namespace")
    }

    /// A namespace of an end.
    pub fn of_end(v4: &str, v6: &str, sysctls: &[&str]) -> Self {
        let mut commands = vec![
            format!("ip address add {v4}/24 dev {DEVICE}"),
            format!("ip address add {v6}/64 dev {DEVICE} nodad"),
        ];
        commands.extend(sysctls.iter().map(|sysctl| format!("sysctl -qw {sysctl}")));
        Self::new(&commands)
    }

    /// A namespace whose sockets may have any address.
    pub fn of_sockets() -> Self {
        let mut commands = vec![
            "sysctl -qw net.ipv4.conf.all.rp_filter=0".to_owned(),
            // A socket in TIME-WAIT would refuse the next connection of the same ports.
            "sysctl -qw net.ipv4.tcp_max_tw_buckets=0".to_owned(),
            // Who answers nothing is given up after a second or two.
            "sysctl -qw net.ipv4.tcp_retries2=3".to_owned(),
            format!("sysctl -qw net.ipv4.conf.{DEVICE}.rp_filter=0"),
            format!("sysctl -qw net.ipv4.conf.{DEVICE}.accept_local=1"),
        ];
        for family in ["-4", "-6"] {
            commands.push(format!("ip {family} rule add iif {DEVICE} lookup 100"));
            commands.push(format!("ip {family} route add local default dev lo table 100"));
            commands.push(format!("ip {family} route add default dev {DEVICE}"));
        }
        Self::new(&commands)
    }

    /// Runs something on a thread in the namespace.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let namespace = self.namespace.try_clone().expect("a namespace");
        std::thread::spawn(move || {
            // SAFETY: the descriptor is open.
            let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(entered, 0, "enter a namespace");
            work()
        })
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().expect("a command")).args(words).status();
    assert!(status.expect("run").success(), "{command}");
}

fn tun() -> File {
    let tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun").expect("open a tun");
    // SAFETY: all fields are plain integers, for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(DEVICE.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the descriptor is open, the request is live.
    let made = unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFF, &raw mut request) };
    assert_eq!(made, 0, "make a tun: {}", std::io::Error::last_os_error());
    tun
}
