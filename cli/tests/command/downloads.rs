//! Downloads in the commands: the option, its devices and their namespace, the splitter, and what
//! killed commands leave.

use std::fs;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vsnoop_host::split::TapId;
use vsnoop_host::system::netns::Netns;
use vsnoop_testbed::net::TapOptions;
use vsnoop_testbed::topology::{self, Topology, TopologyOptions};

use crate::hold::ConfigFile;
use crate::interrupted::killed_everywhere;
use crate::sandbox::{
    PORT, PREFIX, Ran, TapHost, is_running, pid_of, program, running, vsnoop, vsnoop_in, wait_until,
};
use crate::service::{Service, until_port};

const ON: [&str; 4] = ["attach", PORT, "--downloads", "on"];
const SET_ON: [&str; 4] = ["set", PORT, "--downloads", "on"];
const SET_OFF: [&str; 4] = ["set", PORT, "--downloads", "off"];

/// Exit code of a host that lacks something.
const KERNEL: i32 = 35;

pub fn trials() -> Vec<Trial> {
    trials![
        downloads_are_off_unless_they_are_asked_for,
        downloads_are_said_shown_and_leave_nothing,
        set_switches_the_downloads_of_an_attached_port,
        wrong_downloads_are_refused,
        a_congestion_control_is_kept_shown_and_refused_if_the_host_lacks_it,
        a_port_under_incast_control_gets_no_downloads,
        a_host_that_cannot_have_downloads_says_why_and_attaches_the_port,
        ports_of_several_namespaces_share_the_namespace_of_the_sockets,
        a_socket_of_any_address_reaches_the_end_beside_the_tap_and_hears_from_it,
        the_devices_follow_the_mtu_of_the_tap,
        attach_with_downloads_that_is_killed_is_whole_or_leaves_nothing,
        a_name_of_which_a_killed_command_made_no_namespace_is_removed,
        set_that_is_killed_leaves_downloads_on_or_off,
        detach_that_is_killed_leaves_no_device,
        a_deleted_tap_takes_its_devices_along,
        a_port_whose_devices_are_deleted_has_no_downloads_any_more,
        a_tap_that_is_moved_to_another_namespace_has_no_downloads_any_more,
        off_all_leaves_neither_devices_nor_their_namespace,
        the_splitter_runs_while_a_port_has_downloads_and_not_longer,
        the_helper_replaces_a_killed_splitter,
        pause_waits_until_no_connection_is_split,
        a_port_of_the_service_has_the_downloads_of_its_table,
        a_port_of_the_service_has_the_congestion_control_of_its_table,
        a_service_that_cannot_make_the_namespace_says_so_and_attaches_the_port,
        doctor_says_whether_downloads_are_possible,
    ]
}

fn namespace() -> PathBuf {
    Path::new("/run/netns").join(vsnoop_host::split::namespace::NAME)
}

fn tap_id(host: &TapHost) -> Result<TapId> {
    let ifindex = host.netns.run(|| Ok(nix::net::if_::if_nametoindex(PORT)?))?;
    Ok(TapId { netns: host.netns.inode()?, ifindex })
}

/// The names of the veth devices beside the tap.
fn near(host: &TapHost) -> Result<Vec<String>> {
    let output = host.netns.command("ip").args(["-o", "link", "show", "type", "veth"]).output()?;
    Ok(names(&String::from_utf8_lossy(&output.stdout)))
}

/// The names of the devices in the namespace of the sockets, but the loopback device.
fn far() -> Result<Vec<String>> {
    if !namespace().exists() {
        return Ok(Vec::new());
    }
    let name = vsnoop_host::split::namespace::NAME;
    let output = Command::new("ip").args(["-n", name, "-o", "link"]).output()?;
    let mut found = names(&String::from_utf8_lossy(&output.stdout));
    found.retain(|name| name != "lo");
    Ok(found)
}

/// Names of devices in the output of `ip -o link`: `2: NAME@PEER: ...`.
fn names(text: &str) -> Vec<String> {
    let name = |line: &str| Some(line.split(": ").nth(1)?.split('@').next()?.to_owned());
    text.lines().filter_map(name).collect()
}

/// The port's part of `status`; null if it is not attached.
fn port(host: &TapHost) -> Result<Value> {
    crate::service::port(&host.netns)
}

/// Downloads are on and complete, or off with nothing of them left.
fn is_whole(host: &TapHost) -> Result<bool> {
    let port = port(host)?;
    let tap = tap_id(host)?;
    let split = host.pins()?.join("split");
    let (near, far) = (near(host)?, far()?);
    Ok(match port["downloads"] == true {
        true => {
            near == [tap.near_name()]
                && far.contains(&tap.far_name())
                && split.join("link_from_socket").exists()
                && host.programs()? == (2, 2)
        }
        false => {
            let hooks = if port.is_null() { (0, 0) } else { (1, 1) };
            near.is_empty()
                && !far.contains(&tap.far_name())
                && !split.exists()
                && host.programs()? == hooks
        }
    })
}

/// One of an earlier test ends by itself.
fn until_no_splitter() -> Result<()> {
    wait_until("no splitter runs", || Ok(pid_of("splitter")?.is_none()))
}

fn until_whole(host: &TapHost) -> Result<()> {
    wait_until("downloads are on or off, and nothing in between", || is_whole(host))
        .with_context(|| format!("{:?}, {:?}, {:?}", port(host), near(host), far()))
}

fn downloads_are_off_unless_they_are_asked_for() -> Result<()> {
    let host = TapHost::new("dflt")?;
    for arguments in
        [&["attach", PORT, "--json"][..], &["attach", PORT, "--downloads", "off", "--json"]]
    {
        let json = host.vsnoop(arguments)?.json()?;
        ensure!(json["ports"][0]["downloads"] == false, "{json}");
        ensure!(port(&host)?["downloads"] == false && is_whole(&host)?, "{}", port(&host)?);
        ensure!(!namespace().exists(), "the namespace was made");
        until_no_splitter()?;
        host.vsnoop(["detach", PORT])?.ok()?;
    }
    let json = host.vsnoop(["attach", PORT, "--observe", "--json"])?.json()?;
    ensure!(json["ports"][0]["downloads"].is_null(), "{json}");
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn downloads_are_said_shown_and_leave_nothing() -> Result<()> {
    let host = TapHost::new("down")?;
    let before = host.state()?;
    let said = host.vsnoop(ON)?.ok()?;
    ensure!(said.unfolded().contains(", splits downloads; its default qdisc"), "{said:?}");
    ensure!(!said.err.contains("downloads"), "{said:?}");
    ensure!(port(&host)?["downloads"] == true && is_whole(&host)?, "{}", port(&host)?);
    // The programs are vsnoop's own: the helper suspends the port for none of them.
    let looks = host.vsnoop(["status", "--json"])?.json()?;
    ensure!(looks["ports"][0]["foreign_programs"] == serde_json::json!([]), "{looks}");
    ensure!(looks["splitter"]["running"] == true, "{looks}");
    host.vsnoop(["detach", PORT])?.ok()?;
    ensure!(near(&host)?.is_empty() && !namespace().exists(), "{:?}", near(&host)?);
    ensure!(host.state()? == before, "something was left: {:?}", host.state()?);
    let json = host.vsnoop(["attach", PORT, "--downloads", "on", "--json"])?.json()?;
    ensure!(json["ports"][0]["downloads"] == true, "{json}");
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn set_switches_the_downloads_of_an_attached_port() -> Result<()> {
    let host = TapHost::new("setd")?;
    host.vsnoop(["attach", PORT, "--hold", "1M"])?.ok()?;
    let attached = host.state()?;
    let said = host.vsnoop(SET_ON)?.ok()?.unfolded();
    ensure!(said.contains("holds at most 1 MiB, splits downloads"), "{said}");
    ensure!(port(&host)?["downloads"] == true && is_whole(&host)?, "{}", port(&host)?);
    let index = || {
        let near = tap_id(&host)?.near_name();
        host.netns.run(|| Ok(nix::net::if_::if_nametoindex(near.as_str())?))
    };
    let first = index()?;
    let json = host.vsnoop(["set", PORT, "--downloads", "on", "--json"])?.json()?;
    ensure!(json["ports"][0]["downloads"] == true && index()? == first, "made anew: {json}");
    // Other settings leave it as it is.
    let json = host.vsnoop(["set", PORT, "--hold", "2M", "--json"])?.json()?;
    ensure!(json["ports"][0]["downloads"] == true && is_whole(&host)?, "{json}");
    for _ in 0..2 {
        let json = host.vsnoop(["set", PORT, "--downloads", "off", "--json"])?.json()?;
        ensure!(json["ports"][0]["downloads"] == false && is_whole(&host)?, "{json}");
        ensure!(!namespace().exists(), "the namespace is left");
    }
    ensure!(host.state()? == attached, "{:?}, before: {attached:?}", host.state()?);
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_congestion_control_is_kept_shown_and_refused_if_the_host_lacks_it() -> Result<()> {
    let host = TapHost::new("congestion")?;
    let wrong = ["attach", PORT, "--downloads", "on", "--congestion-control", "nonesuch"];
    let words = ["no congestion control nonesuch", "reno"];
    host.vsnoop(wrong)?.failed(KERNEL, &words)?;
    ensure!(port(&host)?.is_null(), "it is attached");

    host.vsnoop(["attach", PORT, "--congestion-control", "reno"])?.ok()?;
    ensure!(port(&host)?["congestion_control"] == "reno", "{}", port(&host)?);
    let text = host.vsnoop(SET_ON)?.ok()?.unfolded();
    ensure!(text.contains("splits downloads (reno)"), "{text}");
    host.vsnoop(["set", PORT, "--congestion-control", "nonesuch"])?.failed(KERNEL, &words)?;
    ensure!(port(&host)?["congestion_control"] == "reno", "a refused one is kept");
    host.vsnoop(["set", PORT, "--congestion-control", "default"])?.ok()?;
    ensure!(port(&host)?["congestion_control"].is_null(), "{}", port(&host)?);
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_port_of_the_service_has_the_congestion_control_of_its_table() -> Result<()> {
    let host = TapHost::new("table4")?;
    let text = |name| {
        format!("[[port]]\nhold = \"1M\"\ndownloads = true\ncongestion_control = \"{name}\"\n")
    };
    let config = ConfigFile::new(&host, &text("reno"))?;
    let service = Service::start(&host.netns, Some(&config))?;
    let until = |name: Option<&str>| {
        until_port(&host.netns, "as its table", |it| it["congestion_control"].as_str() == name)
    };
    let first = until(Some("reno"))?;
    config.write(&text("default"))?;
    vsnoop(["reload"])?.ok()?;
    let now = until(None)?;
    ensure!(now["attached_at"] == first["attached_at"], "it was attached anew: {now}");
    // Its other work needs none.
    config.write(&text("nonesuch"))?;
    vsnoop(["reload"])?.ok()?;
    service.until_logged("downloads stay off: this host has no congestion control nonesuch")?;
    let now = until_port(&host.netns, "downloads are off", |it| it["downloads"] == false)?;
    ensure!(now["state"] == "active" && now["attached_at"] == first["attached_at"], "{now}");
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn wrong_downloads_are_refused() -> Result<()> {
    let host = TapHost::new("wrong")?;
    let before = host.state()?;
    for (arguments, words) in [
        (&["attach", PORT, "--downloads"][..], ["--downloads <on|off>", "value"]),
        (&["attach", PORT, "--downloads", "yes"], ["--downloads <on|off>", "on, off"]),
        (&["attach", PORT, "--downloads", "on", "--observe"], ["--downloads", "--observe"]),
        (&["attach", PORT, "--downloads", "on", "--incast", "1G"], ["--incast", "not supported"]),
        (&["set", PORT, "--downloads", "1"], ["--downloads <on|off>", "on, off"]),
        (&["observe", PORT, "--downloads", "on"], ["--downloads", "unexpected"]),
    ] {
        let ran = host.vsnoop(arguments)?;
        ensure!(ran.code == 2, "{arguments:?}: exit code {}: {}", ran.code, ran.err);
        for word in words {
            ensure!(ran.err.contains(word), "{word:?} is not in: {}", ran.err);
        }
    }
    ensure!(host.state()? == before, "something changed");
    host.vsnoop(SET_ON)?.failed(39, &[PORT])?;
    host.vsnoop(["attach", PORT, "--observe"])?.ok()?;
    host.vsnoop(SET_ON)?.failed(3, &[PORT, "only being observed"])?;
    host.vsnoop(["detach", PORT])?.ok()?;
    ensure!(!namespace().exists(), "the namespace is left");
    Ok(())
}

fn a_port_under_incast_control_gets_no_downloads() -> Result<()> {
    let prefix = format!("{PREFIX}both-");
    let topology = Topology::build(&TopologyOptions { prefix, ..TopologyOptions::default() })?;
    let name = topology.host.name();
    let incast = ["--incast", "1G", "--uplink", topology::UPLINK];
    vsnoop_in(name, [&["attach", topology::PORT][..], &incast].concat())?.ok()?;
    let on = ["set", topology::PORT, "--downloads", "on"];
    vsnoop_in(name, on)?.failed(3, &[topology::PORT, "incast control", "not supported yet"])?;
    let status = vsnoop_in(name, ["status", "--json"])?.json()?;
    ensure!(status["ports"][0]["downloads"] == false, "{status}");
    vsnoop_in(name, ["detach", topology::PORT])?.ok().map(drop)
}

/// Another device has the name.
fn a_host_that_cannot_have_downloads_says_why_and_attaches_the_port() -> Result<()> {
    let host = TapHost::new("cannot")?;
    let taken = tap_id(&host)?.near_name();
    let other = host.netns.tap(&taken, &TapOptions::default())?;
    let said = host.vsnoop(ON)?.ok()?;
    let words =
        format!("port {PORT}: downloads stay off: make a pair of veth devices: File exists");
    ensure!(said.err.contains(&words), "{said:?}");
    let shown = port(&host)?;
    ensure!(shown["state"] == "active" && shown["downloads"] == false, "{shown}");
    ensure!(!host.pins()?.join("split").exists() && !namespace().exists(), "something is left");
    let said = host.vsnoop(SET_ON)?.ok()?;
    ensure!(said.err.contains(&words), "{said:?}");
    drop(other);
    host.vsnoop(SET_ON)?.ok()?;
    ensure!(port(&host)?["downloads"] == true && is_whole(&host)?, "{}", port(&host)?);
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn ports_of_several_namespaces_share_the_namespace_of_the_sockets() -> Result<()> {
    let (one, two) = (TapHost::new("many1")?, TapHost::new("many2")?);
    one.vsnoop(ON)?.ok()?;
    two.vsnoop(ON)?.ok()?;
    ensure!(tap_id(&one)?.ifindex == tap_id(&two)?.ifindex, "both have the same index");
    ensure!(is_whole(&one)? && is_whole(&two)? && far()?.len() == 2, "{:?}", far()?);
    one.vsnoop(["detach", PORT])?.ok()?;
    ensure!(is_whole(&one)? && is_whole(&two)? && far()?.len() == 1, "{:?}", far()?);
    two.vsnoop(["detach", PORT])?.ok()?;
    ensure!(!namespace().exists(), "the namespace is left");
    Ok(())
}

/// A socket with another's address, bound to a device, in the namespace of the calling thread.
fn socket_at(address: &str, device: &str) -> Result<UdpSocket> {
    let (family, level, transparent) = match address.starts_with('[') {
        true => (libc::AF_INET6, libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
        false => (libc::AF_INET, libc::SOL_IP, libc::IP_TRANSPARENT),
    };
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    ensure!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor, owned by this value alone.
    let socket = UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) });
    set(&socket, level, transparent, &1_i32.to_ne_bytes())?;
    set(&socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, device.as_bytes())?;
    // No checksums: the test answers by exchanging addresses.
    set(&socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, &1_i32.to_ne_bytes())?;
    for option in [libc::UDP_NO_CHECK6_TX, libc::UDP_NO_CHECK6_RX] {
        set(&socket, libc::SOL_UDP, option, &1_i32.to_ne_bytes())?;
    }
    bind(&socket, address)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(socket)
}

fn set(socket: &UdpSocket, level: i32, option: i32, value: &[u8]) -> Result<()> {
    // SAFETY: an open descriptor, and bytes that outlive the call, with their length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    ensure!(result == 0, "option {option}: {}", std::io::Error::last_os_error());
    Ok(())
}

fn bind(socket: &UdpSocket, address: &str) -> Result<()> {
    use nix::sys::socket::{SockaddrStorage, bind};
    let address: std::net::SocketAddr = address.parse()?;
    Ok(bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?)
}

/// Frames of a device, of the calling thread's namespace.
fn packet_socket(device: &str) -> Result<OwnedFd> {
    use nix::sys::socket::{
        AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, bind, socket,
    };
    let protocol = SockProtocol::EthAll;
    let found = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    let index = nix::net::if_::if_nametoindex(device)?;
    // SAFETY: plain old data for which all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as i32;
    // SAFETY: an address of this family, with its true length.
    let address = unsafe {
        <LinkAddr as nix::sys::socket::SockaddrLike>::from_raw(
            (&raw const address).cast(),
            Some(size_of::<libc::sockaddr_ll>() as libc::socklen_t),
        )
    };
    bind(found.as_raw_fd(), &address.context("a link address")?)?;
    Ok(found)
}

/// Exchanges the halves of `bytes`.
fn exchange(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    let (first, second) = bytes.split_at_mut(middle);
    first.swap_with_slice(second);
}

fn a_socket_of_any_address_reaches_the_end_beside_the_tap_and_hears_from_it() -> Result<()> {
    const WORDS: &[u8] = b"as the VM has it";
    let host = TapHost::new("path")?;
    host.vsnoop(ON)?.ok()?;
    let tap = tap_id(&host)?;
    let sockets = Netns::open(vsnoop_host::split::namespace::NAME)?;
    // Where the addresses begin, and where the ports do.
    for (vm, peer, addresses, ports) in [
        ("192.0.2.7:4711", "198.51.100.1:80", 26..34, 34..38),
        ("[2001:db8::7]:4711", "[2001:db8:1::1]:80", 22..54, 54..58),
    ] {
        let frames = host.netns.run(|| packet_socket(&tap.near_name()))?;
        let socket = sockets.run(|| Ok::<_, Failed>(socket_at(vm, &tap.far_name())?))?;
        socket.send_to(WORDS, peer).context(vm)?;
        let mut frame = vec![0; 2000];
        loop {
            let length = nix::unistd::read(&frames, &mut frame)?;
            if frame[..length].ends_with(WORDS) {
                frame.truncate(length);
                break;
            }
            frame.resize(2000, 0);
        }
        exchange(&mut frame[addresses]);
        exchange(&mut frame[ports]);
        frame[..6].copy_from_slice(&[0x02, 0x76, 0x73, 0x6e, 0x6f, 0x70]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        nix::unistd::write(frames.as_fd(), &frame)?;
        let mut answer = [0; 100];
        let (length, from) = socket.recv_from(&mut answer).context(vm)?;
        ensure!(&answer[..length] == WORDS && from.to_string() == peer, "{from}");
    }
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

/// An error of work within a namespace.
struct Failed(anyhow::Error);

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Self(error)
    }
}

impl From<vsnoop_host::error::Error> for Failed {
    fn from(error: vsnoop_host::error::Error) -> Self {
        Self(error.into())
    }
}

impl From<Failed> for anyhow::Error {
    fn from(failed: Failed) -> Self {
        failed.0
    }
}

fn the_devices_follow_the_mtu_of_the_tap() -> Result<()> {
    let host = TapHost::new("mtu")?;
    host.netns.ip(&format!("link set {PORT} mtu 1400"))?;
    host.vsnoop(ON)?.ok()?;
    let tap = tap_id(&host)?;
    let sockets = Netns::open(vsnoop_host::split::namespace::NAME)?;
    let mtu = |name: &str| vsnoop_host::system::netdev::find(name).map(|it| it.map(|it| it.mtu));
    let both = || -> Result<[Option<u32>; 2]> {
        let near = host.netns.run(|| Ok(mtu(&tap.near_name())?))?;
        Ok([near, sockets.run(|| mtu(&tap.far_name()))?])
    };
    ensure!(both()? == [Some(1400); 2], "{:?}", both()?);
    for mtu in [9000, 1280] {
        host.netns.ip(&format!("link set {PORT} mtu {mtu}"))?;
        wait_until("both devices have its MTU", || Ok(both()? == [Some(mtu); 2]))?;
    }
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn attach_with_downloads_that_is_killed_is_whole_or_leaves_nothing() -> Result<()> {
    let host = TapHost::new("kill4")?;
    killed_everywhere(&host, &ON, Signal::SIGKILL, |_| {
        // Detaching finds it whole, or cleans up.
        let ran = host.vsnoop(["detach", PORT])?;
        ensure!([0, 39].contains(&ran.code), "{ran:?}");
        until_whole(&host)?;
        ensure!(!namespace().exists(), "the namespace is left");
        Ok(())
    })?;
    // Without a command that cleans up: the helper, if one was started, or the next attach.
    for step in 0..8 {
        let mut child = command(&host, &ON)?;
        thread::sleep(Duration::from_millis(40 * step));
        // It may have ended by itself.
        let _ = child.kill();
        child.wait()?;
        let again = host.vsnoop(ON)?;
        ensure!([0, 33].contains(&again.code), "{again:?}");
        until_whole(&host)?;
        host.vsnoop(["detach", PORT])?.ok()?;
        until_whole(&host)?;
    }
    Ok(())
}

fn a_name_of_which_a_killed_command_made_no_namespace_is_removed() -> Result<()> {
    let host = TapHost::new("name")?;
    let detach = || host.vsnoop(["detach", PORT]);
    let off = || vsnoop(["off", "--all"]);
    for (remove, code) in [(&detach as &dyn Fn() -> Result<Ran>, 39), (&off, 0)] {
        fs::write(namespace(), "")?;
        let ran = remove()?;
        ensure!(ran.code == code && !namespace().exists(), "{ran:?}");
    }
    Ok(())
}

fn command(host: &TapHost, arguments: &[&str]) -> Result<std::process::Child> {
    let mut command = Command::new(program());
    command.args(["--netns", host.netns.name()]).args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start the command")
}

fn set_that_is_killed_leaves_downloads_on_or_off() -> Result<()> {
    let host = TapHost::new("kill5")?;
    host.vsnoop(["attach", PORT, "--hold", "1M"])?.ok()?;
    for step in 0..24_u64 {
        let arguments = if step % 2 == 0 { &SET_ON } else { &SET_OFF };
        let mut child = command(&host, arguments)?;
        thread::sleep(Duration::from_millis(5 * step));
        // It may have ended by itself.
        let _ = child.kill();
        child.wait()?;
        until_whole(&host).with_context(|| format!("{arguments:?} killed in step {step}"))?;
    }
    host.vsnoop(SET_ON)?.ok()?;
    until_whole(&host)?;
    host.vsnoop(["detach", PORT])?.ok()?;
    ensure!(is_whole(&host)? && !namespace().exists(), "something is left");
    Ok(())
}

fn detach_that_is_killed_leaves_no_device() -> Result<()> {
    let host = TapHost::new("kill6")?;
    for step in 0..12_u64 {
        host.vsnoop(ON)?.ok()?;
        let mut child = command(&host, &["detach", PORT])?;
        thread::sleep(Duration::from_millis(5 * step));
        // It may have ended by itself.
        let _ = child.kill();
        child.wait()?;
        until_whole(&host).with_context(|| format!("killed in step {step}"))?;
        ensure!([0, 39].contains(&host.vsnoop(["detach", PORT])?.code), "step {step}");
        until_whole(&host)?;
    }
    Ok(())
}

fn a_deleted_tap_takes_its_devices_along() -> Result<()> {
    let host = TapHost::new("gone")?;
    host.vsnoop(ON)?.ok()?;
    let pins = host.pins()?;
    host.netns.ip(&format!("link del {PORT}"))?;
    wait_until("pins and devices have vanished", || {
        Ok(!pins.exists() && near(&host)?.is_empty() && far()?.is_empty())
    })?;
    // The helper may not remove it; the next command does.
    vsnoop(["detach", "--all"])?.ok()?;
    ensure!(!namespace().exists(), "the namespace is left");
    Ok(())
}

fn a_port_whose_devices_are_deleted_has_no_downloads_any_more() -> Result<()> {
    let host = TapHost::new("taken")?;
    host.vsnoop(ON)?.ok()?;
    host.netns.ip(&format!("link del {}", tap_id(&host)?.near_name()))?;
    wait_until("its programs are off", || {
        Ok(port(&host)?["downloads"] == false && is_whole(&host)?)
    })?;
    host.vsnoop(SET_ON)?.ok()?;
    ensure!(port(&host)?["downloads"] == true && is_whole(&host)?, "{}", port(&host)?);
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_tap_that_is_moved_to_another_namespace_has_no_downloads_any_more() -> Result<()> {
    let (host, other) = (TapHost::new("here")?, TapHost::new("there")?);
    other.netns.ip(&format!("link set {PORT} name taken"))?;
    host.vsnoop(ON)?.ok()?;
    let split = host.pins()?.join("split");
    host.netns.ip(&format!("link set {PORT} netns {}", other.netns.name()))?;
    wait_until("programs and devices have vanished", || {
        Ok(!split.exists() && near(&host)?.is_empty() && far()?.is_empty())
    })?;
    vsnoop(["off", "--all"])?.ok()?;
    ensure!(!namespace().exists(), "the namespace is left");
    Ok(())
}

fn off_all_leaves_neither_devices_nor_their_namespace() -> Result<()> {
    let (one, two) = (TapHost::new("off1")?, TapHost::new("off2")?);
    one.vsnoop(ON)?.ok()?;
    two.vsnoop(ON)?.ok()?;
    vsnoop(["off", "--all"])?.ok()?;
    for host in [&one, &two] {
        ensure!(port(host)?.is_null() && is_whole(host)?, "{:?}", near(host)?);
    }
    ensure!(!namespace().exists(), "the namespace is left");
    Ok(())
}

fn the_splitter_runs_while_a_port_has_downloads_and_not_longer() -> Result<()> {
    let host = TapHost::new("role")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    until_no_splitter()?;
    host.vsnoop(SET_ON)?.ok()?;
    let first = running("splitter")?;
    host.vsnoop(SET_OFF)?.ok()?;
    wait_until("the splitter has ended", || Ok(!is_running(first)))?;
    host.vsnoop(SET_ON)?.ok()?;
    let second = running("splitter")?;
    host.vsnoop(["detach", PORT])?.ok()?;
    wait_until("the splitter has ended", || Ok(!is_running(second)))
}

fn the_helper_replaces_a_killed_splitter() -> Result<()> {
    let host = TapHost::new("again2")?;
    host.vsnoop(ON)?.ok()?;
    for _ in 0..3 {
        let pid = running("splitter")?;
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
        wait_until("another splitter runs", || {
            Ok(pid_of("splitter")?.is_some_and(|now| now != pid))
        })?;
    }
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn pause_waits_until_no_connection_is_split() -> Result<()> {
    let host = TapHost::new("joined")?;
    host.vsnoop(ON)?.ok()?;
    // A splitter would not know the connection that this test makes up.
    let splitter = running("splitter")?;
    kill(Pid::from_raw(splitter), Signal::SIGSTOP)?;
    let flows = MapHandle::from_pinned_path(host.pins()?.join("split/flows"))?;
    let (key, value) = (vec![7; flows.key_size() as usize], vec![0; flows.value_size() as usize]);
    flows.update(&key, &value, MapFlags::ANY)?;
    let ran = host.vsnoop(["pause", PORT, "--timeout", "0.5"])?;
    ensure!(ran.err.contains("1 split connection could not be joined"), "{ran:?}");
    host.vsnoop(["resume", PORT])?.ok()?;
    let mut command = Command::new(program());
    command.args(["--netns", host.netns.name(), "pause", PORT, "--timeout", "600"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    wait_until("it is paused", || Ok(port(&host)?["state"] == "paused"))?;
    ensure!(child.try_wait()?.is_none(), "it does not wait");
    flows.delete(&key)?;
    ensure!(child.wait()?.success());
    kill(Pid::from_raw(splitter), Signal::SIGCONT)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn a_port_of_the_service_has_the_downloads_of_its_table() -> Result<()> {
    let host = TapHost::new("table2")?;
    let text = |downloads| format!("[[port]]\nhold = \"1M\"\ndownloads = {downloads}\n");
    let config = ConfigFile::new(&host, &text(true))?;
    let service = Service::start(&host.netns, Some(&config))?;
    let until =
        |is_on: bool| until_port(&host.netns, "as its table", |it| it["downloads"] == is_on);
    let first = until(true)?;
    until_whole(&host)?;
    running("splitter")?;
    for is_on in [false, true, false] {
        config.write(&text(is_on))?;
        vsnoop(["reload"])?.ok()?;
        let now = until(is_on)?;
        ensure!(now["attached_at"] == first["attached_at"], "it was attached anew: {now}");
        until_whole(&host)?;
        ensure!(namespace().exists(), "the service could not make it again");
    }
    let log = service.log()?;
    ensure!(!log.contains("stay off") && log.contains("downloads are on"), "{log}");
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok()?;
    ensure!(!namespace().exists(), "the namespace is left");
    Ok(())
}

fn a_service_that_cannot_make_the_namespace_says_so_and_attaches_the_port() -> Result<()> {
    let host = TapHost::new("table3")?;
    let config = ConfigFile::new(&host, "[[port]]\nhold = \"1M\"\n")?;
    let service = Service::start(&host.netns, Some(&config))?;
    until_port(&host.netns, "it is attached", |port| port["state"] == "active")?;
    config.write("[[port]]\nhold = \"1M\"\ndownloads = true\n")?;
    vsnoop(["reload"])?.ok()?;
    service.until_logged(&format!("port {PORT}: downloads stay off: its network namespace"))?;
    ensure!(port(&host)?["downloads"] == false && is_whole(&host)?, "{}", port(&host)?);
    ensure!(fs::symlink_metadata(namespace()).is_err(), "a file is left");
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn doctor_says_whether_downloads_are_possible() -> Result<()> {
    let host = TapHost::new("able")?;
    let json = host.vsnoop(["doctor", "--json"])?.json()?;
    let checks = json["host"].as_array().context("no checks")?;
    let found = checks.iter().find(|check| check["name"] == "downloads").context("no check")?;
    ensure!(found["level"] == "ok", "{found}");
    Ok(())
}
