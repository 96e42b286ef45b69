//! From an empty initramfs to a machine with a network.

use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::mount::{MsFlags, mount};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use vsnoop_guest::control;

/// Lists the modules to load, one file name per line, dependencies first.
const MODULE_LIST: &str = "/modules/order";
/// An interface answers for its own address only: those of one guest share a bridge.
const ARP_IGNORE: &str = "/proc/sys/net/ipv4/conf/all/arp_ignore";

pub fn mount_all() -> Result<()> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        fs::create_dir_all(target).with_context(|| format!("create {target}"))?;
        mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
            .or_else(|error| if error == nix::Error::EBUSY { Ok(()) } else { Err(error) })
            .with_context(|| format!("mount {kind} on {target}"))?;
    }
    Ok(())
}

pub fn load_modules() -> Result<()> {
    let order = fs::read_to_string(MODULE_LIST).with_context(|| format!("read {MODULE_LIST}"))?;
    for name in order.lines() {
        let path = Path::new("/modules").join(name);
        let file = fs::File::open(&path).with_context(|| format!("open {}", path.display()))?;
        match finit_module(&file, c"", ModuleInitFlags::empty()) {
            Ok(()) | Err(nix::Error::EEXIST) => (),
            Err(error) => bail!("load module {}: {error}", path.display()),
        }
    }
    Ok(())
}

/// A guest that is given no address has no network (the probe for KVM boots one).
pub fn configure_network() -> Result<()> {
    let command_line = fs::read_to_string("/proc/cmdline").context("read /proc/cmdline")?;
    let Some(given) = command_line
        .split_whitespace()
        .find_map(|word| word.strip_prefix(control::ADDRESS_PARAMETER)?.strip_prefix('='))
    else {
        return interface_up("lo");
    };
    fs::write(ARP_IGNORE, "1").with_context(|| format!("write {ARP_IGNORE}"))?;
    interface_up("lo")?;
    for (number, address) in given.split(',').enumerate() {
        match address.split_once(':') {
            Some((interface, address)) => configure(interface, address)?,
            None => configure(&format!("eth{number}"), address)?,
        }
    }
    Ok(())
}

fn configure(interface: &str, given: &str) -> Result<()> {
    let (address, prefix) = given.split_once('/').context("an address needs a /PREFIX")?;
    let address: Ipv4Addr = address.parse().context("an address of the guest")?;
    let prefix: u32 = prefix.parse().context("the prefix of an address of the guest")?;

    wait_for(interface)?;
    let mask = Ipv4Addr::from(u32::MAX.checked_shl(32 - prefix).unwrap_or(0));
    set_address(interface, libc::SIOCSIFADDR, address)?;
    set_address(interface, libc::SIOCSIFNETMASK, mask)?;
    interface_up(interface)
}

fn wait_for(interface: &str) -> Result<()> {
    let path = Path::new("/sys/class/net").join(interface);
    for _ in 0..500 {
        if path.exists() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("{interface} has not appeared: is there a virtio network device?")
}

fn request(interface: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain data, for which all bits zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *slot = byte as libc::c_char;
    }
    request
}

fn ioctl(code: libc::c_ulong, request: &mut libc::ifreq) -> Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .context("open a socket")?;
    // SAFETY: the interface requests used here read and write one ifreq, which lives on.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), code as _, request) };
    nix::Error::result(result).with_context(|| format!("interface request {code:#x}"))?;
    Ok(())
}

fn set_address(interface: &str, code: libc::c_ulong, address: Ipv4Addr) -> Result<()> {
    let mut request = request(interface);
    let [a, b, c, d] = address.octets();
    let mut data = [0 as libc::c_char; 14];
    for (slot, byte) in data[2..].iter_mut().zip([a, b, c, d]) {
        *slot = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_addr =
        libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data };
    ioctl(code, &mut request).with_context(|| format!("set {address} on {interface}"))
}

fn interface_up(interface: &str) -> Result<()> {
    let mut request = request(interface);
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    ioctl(libc::SIOCSIFFLAGS, &mut request).with_context(|| format!("bring {interface} up"))
}
