//! `vsnoop link`: a link comes up, says how it is, and goes without a trace; each bad thing has one
//! clear line.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vsnoop_testbed::interrupt::restarted;
use vsnoop_testbed::net::{Net, Netns};

use crate::hold::ConfigFile;
use crate::sandbox::{
    PREFIX, Ran, list, program, text, vsnoop, vsnoop_in, vsnoop_under, wait_until,
};
use crate::service::{Service, ports};
use crate::trial;

/// Where the control sockets are.
const SOCKETS: &str = "/run/vsnoop/link";
const DIVERT: &str = "[[divert]]\ninterface = \"tap7\"\nprefix = \"10.2.0.0/16\"\npeer = \"b\"\n\
                      address = \"10.1.0.0/16\"\n";
/// The key of a peer that does not exist.
const KEY_B: &str = "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI=";
const KEY_C: &str = "Y2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2M=";

pub fn trials() -> Vec<Trial> {
    let mut trials = trials![
        a_link_comes_up_says_so_and_goes_without_a_trace,
        a_link_that_is_up_is_not_started_twice,
        a_link_is_not_found_in_another_network_namespace,
        a_link_that_was_killed_is_in_nobodys_way,
        what_others_left_of_a_link_confuses_nobody,
        a_link_in_the_foreground_tells_systemd_and_ends_at_sigterm,
        what_is_set_is_in_force_and_nonsense_is_refused,
        a_running_link_logs_more_and_less_as_it_is_told,
        the_public_key_is_shown_again_and_no_key_is_overwritten,
        a_peer_whose_name_leads_nowhere_is_dialled_all_the_same,
        an_unencrypted_transport_warns,
        a_port_that_is_in_a_bridge_besides_warns,
        a_bridge_that_is_down_is_said_to_be_at_once,
        the_tap_of_a_link_is_not_accelerated,
        a_link_that_is_not_up_is_said_not_to_be,
        links_need_root_and_say_so,
        what_is_no_tap_is_not_diverted_when_it_comes_later_either,
        a_host_that_would_drop_what_is_diverted_to_it_is_told,
        a_diverted_vm_that_is_not_there_is_waited_for,
        a_directory_for_a_configuration_is_refused,
        a_file_that_is_no_configuration_is_said_to_be_none,
        an_address_in_use_is_refused_and_nothing_is_left,
    ];
    trials.extend(refused());
    trials
}

fn a_peer_whose_name_leads_nowhere_is_dialled_all_the_same() -> Result<()> {
    let host = LinkHost::new("name")?;
    host.write(&host.config().replace("192.0.2.2:7757", "host-b.invalid:7757"))?;
    host.up()?.ok()?;
    let peer = host.status()?["peers"][0].clone();
    ensure!(peer["state"] == "dialling" || peer["state"] == "down", "{peer}");
    Ok(())
}

/// Neither by the service, whose table has the bridge's taps, nor by name.
fn the_tap_of_a_link_is_not_accelerated() -> Result<()> {
    const TAP: &str = "vsl-office";
    let host = LinkHost::new("own")?;
    host.up()?.ok()?;
    let config =
        ConfigFile::for_netns(&host.netns, "[[port]]\nname = \"bridged\"\nbridge = \"br0\"\n")?;
    let service = Service::start(&host.netns, Some(&config))?;
    service.until_logged(&format!("tap {TAP}: a link of vsnoop has made it"))?;
    ensure!(ports(&host.netns)?.is_empty(), "the service has attached it");
    config.write(&format!("[[port]]\nname = \"named\"\ninterface = \"{TAP}\"\n"))?;
    vsnoop(["reload"])?.ok()?;
    wait_until("the service has looked again", || {
        let said = vsnoop(["status", "--json"])?.json()?["service"].clone();
        Ok(said["tables"][0] == "named" && said["no_vms"][0]["port"] == TAP)
    })?;
    ensure!(ports(&host.netns)?.is_empty(), "the service has attached it by its name");
    service.end(Signal::SIGTERM)?;
    vsnoop_in(host.netns.name(), ["attach", TAP])?.failed(3, &[TAP, "the tap of a link"])
}

fn an_unencrypted_transport_warns() -> Result<()> {
    let host = LinkHost::new("plain")?;
    host.write(&host.config().replace("[[peer]]", "[[peer]]\ntransport = \"udp-plain\""))?;
    let ran = host.up()?.ok()?;
    ensure!(ran.err.contains("peer b is NOT ENCRYPTED (udp-plain)"), "{}", ran.err);
    let status = host.link(["status"])?.ok()?;
    ensure!(status.unfolded().contains("peer b: NOT ENCRYPTED"), "{}", status.out);
    Ok(())
}

fn a_port_that_is_in_a_bridge_besides_warns() -> Result<()> {
    let host = LinkHost::new("twice-in")?;
    host.netns.ip("link add vm0 type veth peer name other")?;
    host.netns.ip("link set vm0 master br0")?;
    let alone = host.config().replace("bridge = \"br0\"", "interface = \"vm0\"");
    let both = host.config().replace("[[peer]]", "[[port]]\ninterface = \"vm0\"\n[[peer]]");
    for (config, words) in [
        (&alone, ["do not reach each other", "bridge = \"br0\" instead"]),
        (&both, ["goes through the link twice", "leave out the [[port]]"]),
    ] {
        host.write(config)?;
        let said = host.up()?.ok()?.err;
        ensure!(said.contains("port vm0 is in bridge br0"), "{said}");
        ensure!(words.iter().all(|word| said.contains(word)), "{said}");
        ensure!(said.contains("`ip link set vm0 nomaster`"), "{said}");
        host.link(["down", "office"])?.ok()?;
    }
    host.netns.ip("link set vm0 nomaster")?;
    for config in [&alone, &both] {
        host.write(config)?;
        let said = host.up()?.ok()?.err;
        ensure!(said.is_empty(), "{said}");
        host.link(["down", "office"])?.ok()?;
    }
    Ok(())
}

fn a_bridge_that_is_down_is_said_to_be_at_once() -> Result<()> {
    let host = LinkHost::new("down")?;
    host.netns.ip("link set br0 down")?;
    let ran = host.up()?.ok()?;
    let said = "port vsl-office in br0: down (bridge br0 is down: `ip link set br0 up`)";
    ensure!(ran.unfolded().contains(said), "{}", ran.out);
    Ok(())
}

fn a_link_is_not_found_in_another_network_namespace() -> Result<()> {
    let host = LinkHost::new("here")?;
    let there = Net::new(PREFIX).host("there")?;
    host.up()?.ok()?;
    for command in [
        &["status", "office"][..],
        &["set", "office", "--log", "debug"],
        &["reload", "office"],
        &["down", "office"],
    ] {
        let command = [&["link"], command].concat();
        vsnoop_in(there.name(), &command)?.failed(2, &["office", there.name(), "--netns"])?;
        vsnoop_in("nowhere", &command)?.failed(3, &["nowhere"])?;
        ensure!(host.status()?["name"] == "office", "{command:?} had an effect");
        vsnoop_in(host.netns.name(), &command)?.ok()?;
    }
    Ok(())
}

fn a_link_that_is_not_up_is_said_not_to_be() -> Result<()> {
    for command in [&["down", "nowhere"][..], &["status", "nowhere"]] {
        vsnoop([&["link"], command].concat())?.failed(41, &["nowhere", "vsnoop link up"])?;
    }
    vsnoop(["link", "set", "nowhere", "--compress", "lz4"])?.failed(41, &["nowhere"])?;
    let status = vsnoop(["link", "status"])?.ok()?;
    ensure!(status.out.contains("no link is up"), "{}", status.out);
    vsnoop(["link", "up", "nowhere"])?.failed(2, &["/etc/vsnoop/link/nowhere.toml"])
}

fn links_need_root_and_say_so() -> Result<()> {
    let way = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    for command in [&["up", "x.toml"][..], &["down", "x"], &["status"]] {
        vsnoop_under(&way, &[&["link"], command].concat())?.failed(36, &["root"])?;
    }
    Ok(())
}

fn what_is_no_tap_is_not_diverted_when_it_comes_later_either() -> Result<()> {
    let host = LinkHost::new("later")?;
    host.write(&format!("{}{DIVERT}", host.config()))?;
    host.up()?.ok()?;
    host.netns.ip("link add tap7 type veth peer name other")?;
    wait_until("it is refused", || {
        let divert = host.status()?["diverts"][0].clone();
        let reason = divert["reason"].as_str().unwrap_or_default();
        Ok(divert["state"] == "failed" && reason.contains("tap7 is not a tap"))
    })?;
    host.netns.ip("link del tap7")?;
    host.netns.ip("tuntap add tap7 mode tap")?;
    wait_until("it is hooked", || Ok(host.status()?["diverts"][0]["state"] == "peer_down"))
}

fn a_diverted_vm_that_is_not_there_is_waited_for() -> Result<()> {
    let host = LinkHost::new("divert")?;
    host.write(&format!("{}{DIVERT}", host.config()))?;
    let ran = host.up()?.ok()?;
    ensure!(ran.err.contains("tap7 does not exist"), "{}", ran.err);
    let diverts = host.status()?["diverts"].clone();
    ensure!(diverts[0]["state"] == "no_interface", "{diverts}");
    host.netns.ip("tuntap add tap7 mode tap")?;
    wait_until("it is hooked", || {
        let divert = host.status()?["diverts"][0].clone();
        Ok(divert["state"] == "peer_down" && divert["active"] == false)
    })
}

fn a_directory_for_a_configuration_is_refused() -> Result<()> {
    let host = LinkHost::new("directory")?;
    let directory = host.directory.to_str().context("a path")?;
    vsnoop(["link", "up", &format!("{directory}/")])?.failed(2, &["is a directory", "NAME.toml"])
}

fn a_file_that_is_no_configuration_is_said_to_be_none() -> Result<()> {
    let host = LinkHost::new("none")?;
    for content in ["", "root:x:0:0:root:/root:/bin/sh\n", &fs::read_to_string(host.key())?] {
        host.write(content)?;
        host.is_refused(
            2,
            &["office.toml", "no configuration of a link", "docs/guide/links/configuration.md"],
        )?;
    }
    fs::write(host.file(), b"\x7fELF\xff")?;
    host.is_refused(2, &["office.toml is no text in UTF-8"])
}

fn an_address_in_use_is_refused_and_nothing_is_left() -> Result<()> {
    let host = LinkHost::new("use")?;
    let udp = host.netns.run(|| Ok(UdpSocket::bind("[::]:7757")?))?;
    host.is_refused(3, &["UDP port [::]:7757", "in use", "link.listen"])?;
    drop(udp);
    let tcp = host.netns.run(|| Ok(TcpListener::bind("[::]:7757")?))?;
    host.is_refused(3, &["TCP port [::]:7757", "in use", "link.listen"])?;
    drop(tcp);
    host.up()?.ok()?;
    Ok(())
}

/// Each error of a configuration or a host.
fn refused() -> Vec<Trial> {
    vec![
        refusal("an_unknown_field", 2, &["line 2", "mut", "mtu"], |host| {
            host.write(&host.config().replace("[link]", "[link]\nmut = 1500"))
        }),
        refusal("an_mtu_out_of_range", 2, &["line 2", "link.mtu = 65000", "9216"], |host| {
            host.write(&host.config().replace("[link]", "[link]\nmtu = 65000"))
        }),
        refusal("an_unknown_method", 2, &["compress.method", "gzip", "zstd:LEVEL"], |host| {
            host.write(&format!("{}[[compress]]\nmethod = \"gzip\"\n", host.config()))
        }),
        refusal("one_key_for_two_peers", 2, &["same key", "line"], |host| {
            let second = format!("[[peer]]\nname = \"c\"\nkey = \"{KEY_B}\"\n");
            host.write(&format!("{}{second}", host.config()))
        }),
        refusal("a_bridge_that_is_not_there", 31, &["bridge br0", "ip link add"], |host| {
            host.netns.ip("link del br0").map(drop)
        }),
        refusal("a_bridge_that_is_none", 3, &["br0 is no bridge but a veth"], |host| {
            host.netns.ip("link del br0")?;
            host.netns.ip("link add br0 type veth peer name br0-peer").map(drop)
        }),
        refusal("an_interface_that_is_not_there", 31, &["eth7", "ip link"], |host| {
            host.write(&host.config().replace("bridge = \"br0\"", "interface = \"eth7\""))
        }),
        refusal(
            "an_interface_that_leads_to_the_peer",
            3,
            &["eth7", "peer b (192.0.2.2:7757)"],
            |host| {
                host.netns.ip("link add eth7 type veth peer name other")?;
                host.netns.ip("link set other up")?;
                host.netns.ip("address add 192.0.2.1/24 dev eth7")?;
                host.netns.ip("link set eth7 up")?;
                host.write(&host.config().replace("bridge = \"br0\"", "interface = \"eth7\""))
            },
        ),
        refusal("a_tap_that_is_there_already", 3, &["vsl-office exists", "ip link del"], |host| {
            host.netns.ip("link add vsl-office type veth peer name other").map(drop)
        }),
        refusal(
            "a_diverted_interface_that_is_no_tap",
            32,
            &["office.toml, line 11, column 13: divert.interface = \"tap7\"", "a veth, not a tap"],
            |host| {
                host.netns.ip("link add tap7 type veth peer name other")?;
                host.write(&format!("{}{DIVERT}", host.config()))
            },
        ),
        refusal("a_key_that_is_not_there", 3, &["key", "vsnoop link keygen"], |host| {
            Ok(fs::remove_file(host.key())?)
        }),
        refusal("a_key_in_no_directory", 3, &["mkdir -p", "keys", "vsnoop link keygen"], |host| {
            host.write(&host.config().replace("office.key", "keys/office.key"))
        }),
        refusal("a_key_that_others_can_read", 3, &["office.key", "chmod 600"], |host| {
            Ok(fs::set_permissions(host.key(), Permissions::from_mode(0o644))?)
        }),
        refusal("the_own_key_for_a_peer", 3, &["peer b", "key of this host"], |host| {
            let own = vsnoop(["link", "keygen", "--show", host.key().to_str().unwrap()])?.ok()?.out;
            host.write(&host.config().replace(KEY_B, own.trim()))
        }),
        refusal("an_address_of_another_host", 3, &["192.0.2.77:7757", "ip address"], |host| {
            host.write(&host.config().replace("[link]", "[link]\nlisten = \"192.0.2.77:7757\""))
        }),
    ]
}

fn refusal(
    what: &str,
    code: i32,
    words: &'static [&'static str],
    spoil: impl FnOnce(&LinkHost) -> Result<()> + Send + 'static,
) -> Trial {
    trial(&format!("{what}_is_refused_and_nothing_is_left"), move || {
        let host = LinkHost::new("bad")?;
        spoil(&host)?;
        host.is_refused(code, words)
    })
}

/// The commands of docs/guide/links/diversion.md against a reverse path filter.
fn unfiltering() -> Result<&'static str> {
    let blocks = include_str!("../../../docs/guide/links/diversion.md").split("```sh\n").skip(1);
    let mut blocks = blocks.filter_map(|block| block.split("```").next());
    blocks.find(|block| block.contains("rp_filter")).context("the document has no such commands")
}

/// The kernel takes the greater of the filter of `all` and that of an interface.
fn a_host_that_would_drop_what_is_diverted_to_it_is_told() -> Result<()> {
    let filter = |interface: &str| format!("net.ipv4.conf.{interface}.rp_filter");
    for (all, loose, strict) in [("1", "2", "1"), ("2", "2", "2")] {
        let host = LinkHost::new("filter")?;
        let netns = &host.netns;
        // By default, and so new interfaces: not filtered by themselves.
        netns.set_sysctl(&filter("default"), "0")?;
        netns.ip("link add none type veth peer name loose")?;
        netns.ip("link add strict type veth peer name other")?;
        netns.set_sysctl(&filter("loose"), "2")?;
        netns.set_sysctl(&filter("strict"), "1")?;
        netns.set_sysctl(&filter("all"), all)?;
        host.write(&host.config().replace("[link]", "[link]\nlocal = \"10.1.0.0/16\""))?;
        let words = [
            &format!("net.ipv4.conf.all.rp_filter is {all}"),
            &format!("is less than {all}, to {all}"),
            "then set net.ipv4.conf.all.rp_filter to 0",
        ];
        let ran = host.up()?;
        ran.failed(3, &words)?;
        ensure!(netns.ip("link show vsd0").is_err(), "a tap is left");
        let done = netns.command("sh").args(["-ec", unfiltering()?]).output()?;
        ensure!(done.status.success(), "{}", text(&done.stderr));
        host.up()?.ok()?;
        ensure!(host.status()?["entry"]["tap"] == "vsd0", "{}", host.status()?["entry"]);
        // As before, but for the link's tap: not filtered before is filtered by `all`.
        for (interface, wanted) in [
            ("all", "0"),
            ("default", all),
            ("none", all),
            ("loose", loose),
            ("strict", strict),
            ("vsd0", "0"),
        ] {
            let now = netns.sysctl(&filter(interface))?;
            ensure!(now == wanted, "{interface}: {now}, not {wanted}");
        }
    }
    Ok(())
}

fn a_link_comes_up_says_so_and_goes_without_a_trace() -> Result<()> {
    let host = LinkHost::new("up")?;
    let before = host.links()?;
    let ran = host.up()?.ok()?;
    ensure!(ran.err.is_empty(), "{}", ran.err);
    // The first attempt may have failed by now: there is no route.
    let said = "link office is up: port vsl-office in br0; peer b: d";
    ensure!(ran.unfolded().starts_with(said) && ran.out.contains("192.0.2.2:7757"), "{}", ran.out);
    let status = host.status()?;
    ensure!(status["name"] == "office" && status["network"] == "both", "{status}");
    ensure!(status["netns"].as_u64() == Some(host.netns.inode()?), "{status}");
    ensure!(status["ports"][0]["bridge"] == "br0", "{status}");
    ensure!(status["peers"][0]["address"] == "192.0.2.2:7757", "{status}");
    let shown = host.link(["status", "office", "--flows"])?.ok()?.out;
    for word in ["office", "vsl-office", "in br0", "peer", "192.0.2.2:7757", "path MTU"] {
        ensure!(shown.contains(word), "{word} is not in: {shown}");
    }
    let elsewhere = Net::new(PREFIX).host("other")?;
    let other = vsnoop_in(elsewhere.name(), ["link", "status", "--json"])?.json()?;
    ensure!(other["links"].as_array().is_some_and(Vec::is_empty), "{other}");
    let down = host.link(["down", "office"])?.ok()?;
    ensure!(down.out == "link office is down", "{}", down.out);
    ensure!(host.links()? == before, "an interface was left: {}", host.links()?);
    ensure!(files().is_empty(), "a file was left: {:?}", files());
    ensure!(!is_alive(&status), "the process was left");
    Ok(())
}

fn a_link_that_is_up_is_not_started_twice() -> Result<()> {
    let host = LinkHost::new("twice")?;
    host.up()?.ok()?;
    let pid = host.status()?["pid"].clone();
    host.up()?.failed(40, &["office is up already", "vsnoop link down office"])?;
    host.foreground()?.failed(40, &["office is up already"])?;
    ensure!(host.status()?["pid"] == pid, "another process is the link now");
    Ok(())
}

fn a_link_that_was_killed_is_in_nobodys_way() -> Result<()> {
    let host = LinkHost::new("kill")?;
    host.up()?.ok()?;
    let status = host.status()?;
    kill(pid(&status)?, Signal::SIGKILL)?;
    wait_until("the process is gone", || Ok(!is_alive(&status)))?;
    ensure!(files().len() == 2, "nothing stale to be told apart: {:?}", files());
    let list = host.link(["status"])?.ok()?;
    ensure!(list.out.contains("no link is up"), "{}", list.out);
    ensure!(files().is_empty(), "a file was left: {:?}", files());
    host.link(["status", "office"])?.failed(41, &["office is not up"])?;
    host.up()?.ok()?;
    ensure!(host.status()?["pid"] != status["pid"], "the link is the one that was killed");
    Ok(())
}

/// A lock with a reused process id, a socket without a lock, and no socket at all.
fn what_others_left_of_a_link_confuses_nobody() -> Result<()> {
    let host = LinkHost::new("left")?;
    fs::create_dir_all(SOCKETS)?;
    let file = |kind: &str| Path::new(SOCKETS).join(format!("office.{kind}"));
    let lock = |text: String| Ok(fs::write(file("lock"), text)?);
    let socket = || UnixListener::bind(file("sock")).map(drop).context("leave a socket");
    let own = || std::process::id().to_string();
    let cases: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("both", &|| lock(own()).and_then(|()| socket())),
        ("no number", &|| lock("\0not a number".into()).and_then(|()| socket())),
        ("a socket alone", &socket),
        ("a file for a socket", &|| lock(own()).and_then(|()| Ok(fs::write(file("sock"), "")?))),
    ];
    for (what, leave) in cases {
        for commands in [&["status"][..], &["status", "office"], &["down", "office"], &[]] {
            leave().context(what)?;
            match commands {
                [] => continue,
                ["status"] => {
                    let list = host.link(["status", "--json"])?.json()?;
                    let none = |kind: &str| list[kind].as_array().is_some_and(Vec::is_empty);
                    ensure!(none("links") && none("silent"), "{what}: {list}");
                }
                _ => host
                    .link(commands.iter().copied())?
                    .failed(41, &["office is not up"])
                    .context(what)?,
            }
            // Files that one command removed must not help the next.
            for kind in ["lock", "sock"] {
                let _ = fs::remove_file(file(kind));
            }
        }
        host.up()?.ok().context(what)?;
        ensure!(host.status()?["name"] == "office", "{what}: {}", host.status()?);
        host.link(["down", "office"])?.ok().context(what)?;
        ensure!(files().is_empty(), "{what}: a file was left: {:?}", files());
    }
    Ok(())
}

fn a_link_in_the_foreground_tells_systemd_and_ends_at_sigterm() -> Result<()> {
    let host = LinkHost::new("front")?;
    let name = host.directory.join("notify.sock");
    let systemd = UnixDatagram::bind(&name)?;
    systemd.set_read_timeout(Some(Duration::from_secs(120)))?;
    let mut child = Command::new(program())
        .args(["--netns", host.netns.name(), "link", "up", "--foreground"])
        .arg(host.file())
        .env("NOTIFY_SOCKET", &name)
        .stderr(Stdio::null())
        .spawn()?;
    let mut word = [0; 64];
    let told = restarted(|| systemd.recv(&mut word)).context("waiting for READY=1");
    let status = host.status();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM)?;
    let ended = child.wait()?;
    ensure!(&word[..told?] == b"READY=1", "{:?}", text(&word));
    ensure!(status?["pid"] == child.id(), "another process is the link");
    ensure!(ended.success(), "{ended}");
    ensure!(files().is_empty(), "a file was left: {:?}", files());
    Ok(())
}

fn what_is_set_is_in_force_and_nonsense_is_refused() -> Result<()> {
    let host = LinkHost::new("set")?;
    let over_tls = "[[peer]]\nname = \"c\"\ntransport = \"tls\"\nkey = ";
    host.write(&format!("{}{over_tls}\"{KEY_C}\"\n", host.config()))?;
    host.up()?.ok()?;
    let ran = host.link(["set", "office", "--compress", "zstd:3", "--peer", "b"])?.ok()?;
    ensure!(ran.out == "link office: compression of peer b is zstd:3", "{}", ran.out);
    let rule = ["--prefix", "10.1.0.0/16", "--compress", "zstd", "--dictionary", "64M"];
    host.link([&["set", "office"][..], &rule].concat())?.ok()?;
    let compression = host.status()?["compression"].clone();
    let rules: Vec<_> = (0..3).map(|rule| compression[rule]["rule"]["method"].clone()).collect();
    ensure!(rules == [Value::from("zstd"), "zstd:3".into(), Value::Null], "{compression}");
    ensure!(compression[0]["rule"]["dictionary_bytes"] == 64 << 20, "{compression}");
    let neither = host.link(["set", "office"])?;
    let both = ["--compress", "--log"];
    ensure!(neither.code == 2 && both.iter().all(|o| neither.err.contains(o)), "{}", neither.err);
    let wrong = ["set", "office", "--compress", "lz4", "--peer", "x"];
    host.link(wrong)?.failed(2, &["no peer x", "it has b, c"])?;
    let wrong = ["set", "office", "--compress", "lz4", "--port", "x"];
    host.link(wrong)?.failed(2, &["no port x", "it has vsl-office"])?;
    let wrong = ["set", "office", "--compress", "off", "--dictionary", "1M"];
    host.link(wrong)?.failed(2, &["--dictionary"])?;
    let wrong = ["--compress", "zstd", "--dictionary", "1M", "--peer", "b"];
    let ran = host.link([&["set", "office"][..], &wrong].concat())?;
    ran.failed(2, &["dictionary", "transport tls", "udp"])?;
    let gzip = host.link(["set", "office", "--compress", "gzip"])?;
    ensure!(gzip.code == 2 && gzip.err.contains("zstd:LEVEL"), "{}", gzip.err);
    ensure!(host.status()?["compression"] == compression, "something changed");
    // Wider than the one before it, then the same, then for everything.
    let b = ["set", "office", "--peer", "b", "--prefix", "10.1.0.0/16,10.2.0.0/16", "--compress"];
    let ran = host.link([&b[..], &["lz4"]].concat())?.ok()?;
    ensure!(!ran.unfolded().contains("set before"), "{}", ran.out);
    let ran = host.link(["set", "office", "--compress", "auto", "--peer", "b"])?.ok()?;
    let words = "set before: peer b (zstd:3)";
    ensure!(ran.unfolded().contains(words), "{words:?} is not in: {}", ran.out);
    let ran = host.link(["set", "office", "--compress", "off", "--json"])?.json()?;
    let replaced = ran["replaced"].as_array().context("a list")?;
    let methods: Vec<_> = replaced.iter().map(|rule| rule["method"].clone()).collect();
    ensure!(methods == ["auto", "lz4", "zstd"], "{ran}");
    Ok(())
}

/// A connection from another program is logged at the level debug.
fn a_running_link_logs_more_and_less_as_it_is_told() -> Result<()> {
    let host = LinkHost::new("log")?;
    let log = host.directory.join("log");
    let mut child = Command::new(program())
        .args(["--netns", host.netns.name(), "link", "up", "--foreground"])
        .arg(host.file())
        .env_remove("RUST_LOG")
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log)?)
        .spawn()?;
    let result = (|| {
        let said = |words: &str| Ok(fs::read_to_string(&log)?.contains(words));
        wait_until("the link is up", || said("link office is up"))?;
        let call = || {
            host.netns.run(|| {
                let mut stream = std::net::TcpStream::connect("127.0.0.1:7757")?;
                stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
                // Until it was refused.
                stream.set_read_timeout(Some(Duration::from_secs(120)))?;
                let _ = stream.read(&mut [0; 64]);
                Ok(())
            })
        };
        call()?;
        // The link may write a line for a caller that it has refused some time before.
        ensure!(!said("a caller from")?, "it is logged at the level info");
        let ran = host.link(["set", "office", "--log", "debug"])?.ok()?;
        ensure!(ran.out == "link office: the log begins at level debug", "{}", ran.out);
        call()?;
        wait_until("the caller is logged", || said("a caller from 127.0.0.1"))?;
        let json = host.link(["set", "office", "--log", "error", "--json"])?.json()?;
        ensure!(json["log"] == "error" && json["result"] == "set", "{json}");
        let before = fs::read_to_string(&log)?;
        call()?;
        host.link(["set", "office", "--log", "info"])?.ok()?;
        let more = fs::read_to_string(&log)?;
        ensure!(!more[before.len()..].contains("a caller"), "{more}");
        let loud = host.link(["set", "office", "--log", "loud"])?;
        ensure!(loud.code == 2 && loud.err.contains("info, debug or trace"), "{}", loud.err);
        for wrong in [&["--log", "info", "--compress", "lz4"][..], &[]] {
            let ran = host.link([&["set", "office"], wrong].concat())?;
            ensure!(ran.code == 2 && ran.err.contains("--compress"), "{}", ran.err);
        }
        Ok(())
    })();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM)?;
    child.wait()?;
    result
}

fn the_public_key_is_shown_again_and_no_key_is_overwritten() -> Result<()> {
    let host = LinkHost::new("key")?;
    let file = host.directory.join("new.key");
    let name = file.to_str().context("a path")?;
    vsnoop(["link", "keygen", "--show", name])?.failed(3, &[name, "vsnoop link keygen"])?;
    let missing = host.directory.join("not/there");
    let deep = missing.join("new.key");
    let mkdir = format!("`mkdir -p {}`", missing.display());
    vsnoop(["link", "keygen", deep.to_str().context("a path")?])?.failed(3, &[&mkdir])?;
    let made = vsnoop(["link", "keygen", name])?.ok()?.out;
    ensure!(made.len() == 44, "{made}");
    ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == 0o600, "others can read it");
    let before = fs::read(&file)?;
    vsnoop(["link", "keygen", name])?.failed(3, &[name, "exists", "name another file"])?;
    ensure!(fs::read(&file)? == before, "the key was overwritten");
    let shown = vsnoop(["link", "keygen", "--show", name, "--json"])?.json()?;
    ensure!(shown["public_key"] == made.as_str() && shown["file"] == name, "{shown}");
    Ok(())
}

/// A network namespace with a bridge, and the files of a link "office"; the link is gone with it.
struct LinkHost {
    netns: Netns,
    directory: PathBuf,
}

impl LinkHost {
    fn new(role: &str) -> Result<Self> {
        let netns = Net::new(PREFIX).host(role)?;
        netns.bridge("br0")?;
        let directory = std::env::temp_dir().join(netns.name());
        fs::create_dir(&directory)?;
        let host = Self { netns, directory };
        vsnoop(["link", "keygen", host.key().to_str().context("a path")?])?.ok()?;
        host.write(&host.config())?;
        Ok(host)
    }

    fn file(&self) -> PathBuf {
        self.directory.join("office.toml")
    }

    fn key(&self) -> PathBuf {
        self.directory.join("office.key")
    }

    /// A good one.
    fn config(&self) -> String {
        format!(
            "[link]\nnetwork = \"both\"\nkey = \"office.key\"\n[[port]]\nbridge = \"br0\"\n\
             [[peer]]\nname = \"b\"\nkey = \"{KEY_B}\"\naddress = \"192.0.2.2:7757\"\n"
        )
    }

    fn write(&self, config: &str) -> Result<()> {
        Ok(fs::write(self.file(), config)?)
    }

    fn link<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<Ran> {
        vsnoop(std::iter::once("link").chain(arguments))
    }

    fn up(&self) -> Result<Ran> {
        let file = self.file();
        vsnoop_in(self.netns.name(), ["link", "up", file.to_str().context("a path")?])
    }

    /// A link in the foreground that ends at once.
    fn foreground(&self) -> Result<Ran> {
        let file = self.file();
        let file = file.to_str().context("a path")?;
        vsnoop_in(self.netns.name(), ["link", "up", "--foreground", file])
    }

    fn status(&self) -> Result<Value> {
        let status = self.link(["status", "office", "--json"])?.json()?;
        Ok(status["links"][0].clone())
    }

    /// Names of all interfaces of the namespace. Not more: a bridge takes its address from its
    /// ports.
    fn links(&self) -> Result<String> {
        let output = self.netns.command("ip").args(["-br", "link"]).output().context("ip")?;
        let all = text(&output.stdout);
        Ok(all
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .collect::<Vec<_>>()
            .join(" "))
    }

    /// In the background and in the foreground, with the same words, and without a trace.
    fn is_refused(&self, code: i32, words: &[&str]) -> Result<()> {
        let before = self.links()?;
        self.up()?.failed(code, words)?;
        self.foreground()?.failed(code, words)?;
        ensure!(self.links()? == before, "an interface was left: {}", self.links()?);
        ensure!(files().is_empty(), "a file was left: {:?}", files());
        Ok(())
    }
}

impl Drop for LinkHost {
    fn drop(&mut self) {
        let _ = self.link(["down", "office"]);
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Sockets and locks.
fn files() -> Vec<PathBuf> {
    list(Path::new(SOCKETS))
}

fn pid(status: &Value) -> Result<Pid> {
    Ok(Pid::from_raw(status["pid"].as_i64().context("no pid")? as i32))
}

/// Is the process alive? A zombie is not.
fn is_alive(status: &Value) -> bool {
    let stat = pid(status).and_then(|pid| Ok(fs::read_to_string(format!("/proc/{pid}/stat"))?));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}
