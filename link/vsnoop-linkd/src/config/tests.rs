//! Valid configurations, and the errors of invalid ones.

use std::path::Path;
use std::time::Duration;

use super::*;
use vsnoop_link::compress::{Codecs, CompressionLimits};

const FILE: &str = "/etc/vsnoop/link/office.toml";
const KEY_B: &str = "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI=";
const KEY_C: &str = "Y2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2M=";

fn parse(text: &str) -> Result<Config, ConfigError> {
    let text = text.replace("KEY_B", KEY_B).replace("KEY_C", KEY_C);
    Config::parse(Path::new(FILE), &text)
}

const LEAST: &str = "[link]\n[[port]]\nbridge = \"br0\"\n[[peer]]\nname = \"b\"\nkey = \"KEY_B\"\n";

#[test]
fn a_peer_may_use_what_it_is_given_and_no_dictionary_unless_a_rule_has_one() {
    let accepts = |peer: &str, rule: &str| {
        let text = format!("{LEAST}transport = \"tls\"\n{peer}\n{rule}");
        let config = parse(&text).unwrap_or_else(|error| panic!("{error}"));
        (config.peers[0].accepts(), config.peers[0].decoder_bytes_max())
    };
    let (limits, bytes) = accepts("", "");
    assert_eq!((limits.codecs, limits.dictionaries), (Codecs::ALL, 0));
    // Three sessions of four connections with 32 flows of a window of a megabyte.
    assert_eq!(bytes, 3 * 4 * 32 * (1536 << 10));
    let rule = "[[compress]]\nmethod = \"zstd\"\ndictionary = \"5M\"\n";
    let (limits, _) = accepts("", rule);
    assert_eq!((limits.dictionaries, limits.dictionary_window_log), (2, 23));
    let (limits, _) = accepts("accept_dictionary = \"off\"", rule);
    assert_eq!(limits.dictionaries, 0);
    let (limits, _) = accepts("accept_dictionary = \"128M\"", "");
    assert_eq!((limits.dictionaries, limits.dictionary_window_log), (2, 27));
    let (limits, bytes) = accepts("accept = \"lz4\"", rule);
    assert_eq!(limits.codecs, Codecs { lz4: true, zstd: false });
    assert_eq!((limits.flows, limits.dictionaries, bytes), (0, 0, 0));
    assert_eq!(accepts("accept = [\"lz4\", \"zstd\"]", "").0.codecs, Codecs::ALL);
    assert_eq!(accepts("accept = \"off\"", "").0.codecs, CompressionLimits::NONE.codecs);
}

#[test]
fn a_port_may_have_fixed_source_addresses() {
    let port = "[[port]]\nbridge = \"br0\"\n";
    let given = "mac = \"52:54:00:00:00:01\"\naddress = [\"10.0.0.5\", \"fd00::/64\"]\n";
    let config = parse(&LEAST.replace(port, &format!("{port}{given}"))).unwrap();
    let sources = &config.ports[0].sources;
    assert_eq!(sources.macs, ["52:54:00:00:00:01".parse().unwrap()]);
    let addresses: Vec<_> = sources.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.5/32", "fd00::/64"]);

    let wrong = |given: &str| {
        parse(&LEAST.replace(port, &format!("{port}{given}"))).unwrap_err().to_string()
    };
    for mac in ["\"01:00:5e:00:00:01\"", "\"52:54\"", "[]", "7"] {
        let error = wrong(&format!("mac = {mac}\n"));
        assert!(error.contains("line 4") && error.contains("port.mac"), "{error}");
    }
    assert!(wrong("address = \"10.0.0\"\n").contains("port.address"));
    let twice = format!("mac = \"52:54:00:00:00:01\"\n[[port]]\ntap = \"t1\"\n{given}");
    assert!(wrong(&twice).contains("52:54:00:00:00:01 is an address of port"), "{}", wrong(&twice));
}

#[test]
fn what_is_not_said_has_a_default() {
    let config = parse(LEAST).unwrap();
    assert_eq!((config.name.as_str(), config.network.as_str()), ("office", "office"));
    assert_eq!(config.listen.to_string(), "[::]:7757");
    assert_eq!(config.key, Path::new("/etc/vsnoop/link/office.key"));
    assert_eq!((config.mtu_bytes, config.clamp_mss), (1500, true));
    assert_eq!((config.age, config.rekey), (Duration::from_secs(300), Duration::from_secs(3600)));
    assert_eq!(config.flood_rate, 1000);
    let bridge = PortKind::Bridge("br0".into());
    assert_eq!(
        config.ports,
        [PortConfig {
            name: "vsl-office".into(),
            kind: bridge,
            sources: SourceFilter::default(),
            quota: None
        }]
    );
    assert_eq!((config.addresses, config.loops, config.stp), (100_000, LoopPolicy::Report, false));
    let [peer] = &config.peers[..] else { panic!("{:?}", config.peers) };
    assert_eq!(peer.trust, TrustConfig::Keys(vec![KEY_B.parse().unwrap()]));
    assert_eq!((peer.addresses.clone(), peer.transport), (Vec::new(), Transport::Udp));
    assert!(config.compress.is_empty());
    assert_eq!(peer.accept, AcceptConfig { codecs: Codecs::ALL, dictionary_bytes: None });
}

#[test]
fn addresses_and_loops_have_bounds_and_words() {
    let link = "[link]\naddresses = 2048\nloop = \"block\"\nstp = true\n";
    let text = LEAST.replace("[link]\n", link);
    let text = text.replace("[[port]]\n", "[[port]]\naddresses = 4\ndhcp_server = true\n");
    let config = parse(&text).unwrap();
    assert_eq!((config.addresses, config.loops, config.stp), (2048, LoopPolicy::Block, true));
    let settings = config.table_settings();
    assert_eq!((settings.entries, settings.passes_bpdus), (2048, true));
    assert_eq!((config.ports[0].quota, config.ports[0].sources.is_dhcp_server), (Some(4), true));
    for (wrong, said) in [
        ("addresses = 2048", "addresses = 10", "link.addresses"),
        ("\"block\"", "\"stop\"", "give report"),
        ("addresses = 4", "addresses = 0", "port.addresses"),
    ]
    .map(|(from, to, said)| (text.replacen(from, to, 1), said))
    {
        let error = parse(&wrong).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn relaying_is_off_until_the_link_or_a_peer_says_so() {
    let both = |link: &str, peer: &str| {
        let other = "[[peer]]\nname = \"c\"\nsubject = \"c.example\"\n";
        let with_ca = "[link]\ncert = \"a.crt\"\nca = \"ca.pem\"\n";
        let text = LEAST.replace("[link]\n", &format!("{with_ca}{link}"));
        let config = parse(&format!("{text}\n{peer}{other}")).unwrap();
        config.peers.iter().map(|peer| peer.relay).collect::<Vec<_>>()
    };
    assert_eq!(both("", ""), [false, false]);
    assert_eq!(both("", "relay = true\n"), [true, false]);
    assert_eq!(both("relay = true\n", "relay = false\n"), [false, true]);
}

#[test]
fn a_peer_behind_a_hub_is_called_by_way_of_it() {
    let with = |hub: &str, link: &str, peer: &str| {
        let other = "[[peer]]\nname = \"c\"\nsubject = \"c.example\"\n";
        let with_ca = "[link]\ncert = \"a.crt\"\nca = \"ca.pem\"\n";
        let text = LEAST.replace("[link]\n", &format!("{with_ca}{link}"));
        parse(&format!("{text}\n{hub}{other}{peer}"))
    };
    let config = with("", "", "via = \"b\"\n").unwrap();
    assert_eq!((config.peers[0].via.as_deref(), config.peers[1].via.as_deref()), (None, Some("b")));
    assert_eq!(config.peers[1].called().as_deref(), Some("by way of b"));
    for (hub, link, peer, expected) in [
        ("", "", "via = \"x\"\n", "the [[peer]] that is the hub"),
        ("", "", "via = \"c\"\n", "not behind another"),
        ("", "", "via = \"b\"\naddress = \"192.0.2.3\"\n", "leave out `address`"),
        ("", "", "via = \"b\"\ntransport = \"tls\"\n", "udp only"),
        ("transport = \"tls\"\n", "", "via = \"b\"\n", "udp only"),
        ("", "relay = true\n", "via = \"b\"\n", "leave out `relay`"),
    ] {
        let error = with(hub, link, peer).unwrap_err().to_string();
        assert!(error.contains("peer.via") && error.contains(expected), "{error}");
    }
}

#[test]
fn everything_can_be_said() {
    let config = parse(
        r#"
        [link]
        name = "lab"
        network = "both"
        listen = "192.0.2.1:7000"
        key = "keys/a.pem"
        cert = "a.crt"
        ca = "/etc/ca.pem"
        mtu = 9000
        age = "5m"
        flood_rate = 0
        clamp_mss = false
        gso = false
        rekey = "10m"
        dead_after = 2
        threads = 3
        [[port]]
        interface = "eth1"
        [[port]]
        tap = "vsl7"
        [[port]]
        bridge = "br1"
        name = "vsl8"
        [[peer]]
        name = "b"
        key = "KEY_B"
        address = "192.0.2.2"
        transport = "tls"
        connections = 8
        [[peer]]
        name = "c"
        subject = "host-c.example"
        address = "host-c.example:7757"
        transport = "udp-plain"
        [[compress]]
        peer = "b"
        port = "vsl7"
        vm = "52:54:00:00:00:01"
        prefix = ["10.1.2.3/8", "2001:db8::/32"]
        method = "zstd:3"
        owner = "tenant-1"
        dictionary = "128M"
        [[divert]]
        interface = "tap3"
        prefix = "10.2.0.0/16"
        peer = "b"
        when_down = "drop"
        mac = "52:54:00:00:00:01"
        address = ["10.1.0.7", "fd00::/64"]
        "#,
    )
    .unwrap();
    assert_eq!(config.pairs, Some(Pairs::new(3)));
    assert_eq!((config.name.as_str(), config.network.as_str()), ("lab", "both"));
    assert_eq!(config.key, Path::new("/etc/vsnoop/link/keys/a.pem"));
    let authority = config.authority.as_ref().unwrap();
    assert_eq!(authority.cert, Path::new("/etc/vsnoop/link/a.crt"));
    assert_eq!(authority.ca, Path::new("/etc/ca.pem"));
    assert_eq!(config.dead_after, Duration::from_secs(2));
    let names: Vec<_> = config.ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["eth1", "vsl7", "vsl8"]);
    assert_eq!((config.peers[0].transport, config.peers[0].connections), (Transport::Tls, 8));
    let unencrypted: Vec<_> = config.list_unencrypted().map(|peer| peer.name.as_str()).collect();
    assert_eq!(unencrypted, ["c"]);
    let rule = config.compress.iter().next().unwrap();
    assert_eq!(
        rule.selector.to_string(),
        "peer b, port vsl7, vm 52:54:00:00:00:01, prefix 10.0.0.0/8, prefix 2001:db8::/32"
    );
    assert_eq!(rule.dictionary_bytes, Some(128 << 20));
    assert_eq!(config.diverts[0].when_down, WhenDown::Drop);
    let sources = &config.diverts[0].sources;
    assert_eq!(sources.macs, ["52:54:00:00:00:01".parse().unwrap()]);
    assert_eq!(sources.addresses, ["10.1.0.7/32", "fd00::/64"].map(|net| net.parse().unwrap()));
}

/// A table for a VM behind tap t; its prefix follows.
const DIVERT: &str = "[[divert]]\ninterface = \"t\"\npeer = \"b\"\naddress = \"10.1.0.1\"\n";

#[test]
fn an_error_names_file_line_key_and_what_is_allowed() {
    let port = "[link]\n[[port]]\nbridge = \"br0\"\n";
    let peer = |lines: &str| format!("{port}[[peer]]\nname = \"b\"\nkey = \"KEY_B\"\n{lines}");
    for (text, line, words) in [
        ("[link]\nmut = 1500\n".to_owned(), 2, &["field `mut`", "`mtu`", "in `mut = 1500`"][..]),
        (peer("adress = \"h\"\n"), 7, &["field `adress`", "`subject`", "`address`"]),
        ("[link]\n[[prot]]\n".into(), 2, &["field `prot`", "`link`", "`port`", "in `[[prot]]`"]),
        (format!("mtu = 1500\n{LEAST}"), 1, &["field `mtu`", "`link`", "in `mtu = 1500`"]),
        ("[link\n".into(), 1, &["in `[link`"]),
        ("".into(), 1, &["no configuration of a link", "no table [link]", "docs/guide/links/configuration.md"]),
        ("root:x:0:0:root:/root:/bin/sh\n".into(), 1, &["no configuration of a link"]),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n".into(), 1, &["no configuration of a link"]),
        ("[[port]]\nbridge = \"br0\"\n".into(), 1, &["no table [link]"]),
        ("[port]\n[link]\n".into(), 1, &["a table in single brackets", "double brackets"]),
        ("[link]\nmtu 1500\n".into(), 2, &["expected `=`", "in `mtu 1500`"]),
        ("[link]\nname = \"x\n".into(), 2, &["expected `\"`", "in `name = \"x`"]),
        ("[link]\nname = x\n".into(), 2, &["quoted", "in `name = x`"]),
        (peer("address = 192.0.2.2:7757\n"), 7, &["in `address = 192.0.2.2:7757`"]),
        ("[link]\nclamp_mss = True\n".into(), 2, &["`true`", "in `clamp_mss = True`"]),
        // A line ends as it does on another system.
        ("[link]\r\n\r\nclamp_mss = 5 5\r\n".into(), 3, &["in `clamp_mss = 5 5`"]),
        ("[link]\nmtu = 1500\nmtu = 1500\n".into(), 3, &["duplicate key", "in `mtu = 1500`"]),
        (format!("{LEAST}[link]\n"), 7, &["duplicate key", "in `[link]`"]),
        (LEAST.replace("[[port]]", "[port]"), 2, &["double brackets", "in `[port]`"]),
        ("port = 5\n[link]\n".into(), 1, &["double brackets", "in `port = 5`"]),
        ("peer = [1]\n[link]\n".into(), 1, &["expected a table", "in `peer = [1]`"]),
        (LEAST.replace("[link]", "[[link]]"), 1, &["one table, [link]", "in `[[link]]`"]),
        ("link = 5\n".into(), 1, &["one table, [link]", "in `link = 5`"]),
        (LEAST.replace("[link]", "[link]\nmtu = 1500.0"), 2, &["link.mtu = 1500.0"]),
        (
            LEAST.replace("[link]", "[link]\nmtu = 99999999999999999999"),
            2,
            &["in `mtu = 99999999999999999999`"],
        ),
        (LEAST.replace("[link]", "[link]\nmtu = 1279"), 2, &["link.mtu = 1279", "1280 to 9216"]),
        (LEAST.replace("[link]", "[link]\nmtu = 100000"), 2, &["100000", "1280 to 9216"]),
        (LEAST.replace("[link]", "[link]\nmtu = \"x\""), 2, &["link.mtu = \"x\""]),
        (LEAST.replace("[link]", "[link]\nname = \"../x\""), 2, &["link.name", "letters"]),
        (LEAST.replace("[link]", "[link]\nuser = \"\""), 2, &["link.user", "a user"]),
        (LEAST.replace("[link]", "[link]\nlisten = \"7757\""), 2, &["link.listen", "[::]:7757"]),
        (LEAST.replace("[link]", "[link]\nage = \"soon\""), 2, &["link.age", "300s"]),
        (LEAST.replace("[link]", "[link]\nage = -1"), 2, &["link.age = -1"]),
        (LEAST.replace("[link]", "[link]\nflood_rate = -1"), 2, &["link.flood_rate = -1", "0 to"]),
        (LEAST.replace("[link]", "[link]\nca = \"ca.pem\""), 2, &["link.cert", "link.ca"]),
        (LEAST.replace("[link]", "[link]\nclamp_mss = 1"), 2, &["clamp_mss", "true or false"]),
        (
            LEAST.replace("[link]", "[link]\nname = \"a-rather-long-name\""),
            3,
            &["vsl-a-rather-long-name", "port.name"],
        ),
        ("[link]\n[[port]]\n".into(), 2, &["bridge", "tap", "interface"]),
        ("[link]\n[[port]]\ntap = \"a\"\nbridge = \"b\"\n".into(), 2, &["one of"]),
        ("[link]\n[[port]]\ntap = \"sixteen-letters-\"\n".into(), 3, &["port.tap", "15"]),
        ("[link]\n[[port]]\ntap = \"a\"\nname = \"b\"\n".into(), 4, &["port.name", "bridge"]),
        (format!("{LEAST}[[port]]\nbridge = \"br1\"\n"), 7, &["vsl-office", "line 2"]),
        (
            format!("{LEAST}[[port]]\nname = \"t1\"\nbridge = \"br0\"\n"),
            7,
            &["bridge br0", "line 2", "for ever"],
        ),
        (port.into(), 1, &["[[peer]]"]),
        ("[link]\n[[peer]]\nname = \"b\"\nkey = \"KEY_B\"\n".into(), 1, &["[[port]]"]),
        (format!("{port}[[peer]]\nkey = \"KEY_B\"\n"), 4, &["name"]),
        (format!("{port}[[peer]]\nname = \"b\"\n"), 4, &["peer b", "keygen FILE --show"]),
        (format!("{port}[[peer]]\nname = \"b\"\nkey = \"abc\"\n"), 6, &["peer.key", "keygen"]),
        (format!("{port}[[peer]]\nname = \"b\"\nsubject = \"b\"\n"), 4, &["peer b", "link.ca"]),
        (peer("transport = \"quic\"\n"), 7, &["peer.transport = \"quic\"", "udp or tls"]),
        (peer("accept = \"gzip\"\n"), 7, &["peer.accept", "off, lz4 or zstd"]),
        (peer("accept_dictionary = \"1G\"\n"), 7, &["peer.accept_dictionary", "1M to 128M"]),
        (peer("connections = 4\n"), 7, &["peer.connections", "udp"]),
        (peer("transport = \"tls\"\nconnections = 17\n"), 8, &["1 to 16"]),
        (peer("address = \"a b\"\n"), 7, &["peer.address", "192.0.2.2:7757"]),
        (peer("[[peer]]\nname = \"b\"\nkey = \"KEY_C\"\n"), 7, &["called b", "line 4"]),
        (peer("[[peer]]\nname = \"c\"\nkey = \"KEY_B\"\n"), 7, &["same key", "line 4"]),
        // The same key without its padding.
        (
            peer("[[peer]]\nname = \"c\"\nkey = \"KEY_B\"\n").replacen("KEY_B", &KEY_B[..43], 1),
            7,
            &["same key", "line 4"],
        ),
        (
            peer("[[compress]]\nmethod = \"gzip\"\n"),
            8,
            &["compress.method = \"gzip\"", "zstd:LEVEL"],
        ),
        (peer("[[compress]]\nmethod = \"zstd:99\"\n"), 8, &["zstd:99"]),
        (peer("[[compress]]\npeer = \"b\"\n"), 7, &["method"]),
        (
            peer("[[compress]]\nmethod = \"lz4\"\npeer = \"x\"\n"),
            9,
            &["compress.peer", "there is b"],
        ),
        (
            peer("[[compress]]\nmethod = \"lz4\"\nport = \"x\"\n"),
            9,
            &["compress.port", "there is vsl-office"],
        ),
        (peer("[[compress]]\nmethod = \"lz4\"\nvm = \"x\"\n"), 9, &["compress.vm", "52:54:00"]),
        (peer("[[compress]]\nmethod = \"lz4\"\nprefix = \"10.0.0.0/33\"\n"), 9, &["10.0.0.0/8"]),
        (peer("[[compress]]\nmethod = \"lz4\"\nprefix = []\n"), 9, &["compress.prefix"]),
        (
            peer("[[compress]]\nmethod = \"zstd\"\ndictionary = \"1G\"\n"),
            9,
            &["compress.dictionary", "1M to 128M"],
        ),
        (
            peer("[[compress]]\nmethod = \"zstd\"\ndictionary = \"1M\"\n"),
            9,
            &["compress.dictionary", "tls", "udp"],
        ),
        (
            peer("transport = \"tls\"\n[[compress]]\nmethod = \"lz4\"\ndictionary = \"1M\"\n"),
            10,
            &["compress.dictionary", "zstd and auto", "lz4"],
        ),
        (peer("[[divert]]\ninterface = \"t\"\npeer = \"b\"\n"), 7, &["[[divert]]", "prefix"]),
        (peer("[[divert]]\nprefix = \"10.0.0.0/8\"\npeer = \"b\"\n"), 7, &["interface"]),
        (peer("[[divert]]\nprefix = \"10.0.0.0/8\"\ninterface = \"t\"\n"), 7, &["peer"]),
        (
            peer(
                "[[divert]]\nprefix = \"::/0\"\ninterface = \"t\"\npeer = \"b\"\nwhen_down = \"x\"\n",
            ),
            11,
            &["divert.when_down", "pass", "drop"],
        ),
        (
            peer(&format!("{DIVERT}prefix = \"10.2.0.0/16\"\n{DIVERT}prefix = \"10.2.3.4/16\"\n")),
            12,
            &["10.2.0.0/16", "interface t", "line 7", "leave out"],
        ),
        (
            peer(&format!("{DIVERT}prefix = \"10.2.0.0/16\"\n"))
                .replace("[link]", "[link]\nlocal = [\"fd00::/8\", \"10.0.0.0/8\"]"),
            8,
            &["10.2.0.0/16", "10.0.0.0/8", "link.local"],
        ),
        (
            peer("[[divert]]\ninterface = \"vsl7\"\naddress = \"::1\"\nprefix = \"::/0\"\npeer = \"b\"\n")
                .replace("bridge = \"br0\"", "bridge = \"br0\"\nname = \"vsl7\""),
            8,
            &["vsl7", "[[port]]"],
        ),
        (
            peer("[[divert]]\ninterface = \"t\"\nprefix = \"::/0\"\npeer = \"b\"\n"),
            7,
            &["an address, or link.local"],
        ),
        (LEAST.replace("[link]", "[link]\nlocal = \"here\""), 2, &["link.local", "10.0.0.0/8"]),
        (
            LEAST.replace("[link]", &format!("[link]\nlocal = {:?}", ["10.0.0.0/8"; 33])),
            2,
            &["link.local", "32"],
        ),
    ] {
        let error = parse(&text).expect_err(&text).to_string();
        let position = format!("{FILE}, line {line}, column ");
        assert!(error.starts_with(&position), "{text:?}: {error:?} is not about {position:?}");
        assert!(!error.contains('\n'), "not one line: {error}");
        let of_rust = ["struct ", "Table", "sequence", "a map"];
        assert!(of_rust.iter().all(|word| !error.contains(word)), "{error}");
        for word in words {
            assert!(error.contains(word), "{text:?}: {word:?} is not in {error:?}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = |file: &Path| Config::read(file).unwrap_err().to_string();
    let missing = error(Path::new("/nowhere/office.toml"));
    assert!(missing.contains("no configuration /nowhere/office.toml"), "{missing}");
    let directory = tempfile::tempdir().unwrap();
    let shown = directory.path().display().to_string();
    let of_directory = error(directory.path());
    assert!(of_directory.contains(&format!("{shown} is a directory")), "{of_directory}");
    assert!(of_directory.contains(&format!("{shown}/NAME.toml")), "{of_directory}");
    let file = directory.path().join("office.toml");
    std::fs::write(&file, b"\xff\xfe").unwrap();
    assert!(error(&file).contains("office.toml is no text in UTF-8"), "{}", error(&file));
}

#[test]
fn the_examples_are_good() {
    for (file, text, peer) in [
        ("a.toml", include_str!("../../../../docs/examples/link/a.toml"), "b"),
        ("b.toml", include_str!("../../../../docs/examples/link/b.toml"), "a"),
        ("divert-a.toml", include_str!("../../../../docs/examples/link/divert-a.toml"), "b"),
        ("divert-b.toml", include_str!("../../../../docs/examples/link/divert-b.toml"), "a"),
    ] {
        // As they say themselves.
        let file_name = Path::new("/etc/vsnoop/link/office.toml");
        let config = Config::parse(file_name, text).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert_eq!((config.name.as_str(), config.network.as_str()), ("office", "office"));
        assert_eq!(config.peers[0].name, peer);
        assert!(config.compress.is_empty(), "compression is off until somebody wants it");
        // What is commented out is good, too.
        let commented =
            text.replace("# [[compress]]", "[[compress]]").replace("# prefix", "prefix");
        let commented = commented.replace("# method", "method");
        assert!(Config::parse(file_name, &commented).is_ok(), "{file}");
    }
}

#[test]
fn the_example_with_etcd_is_good() {
    let text = include_str!("../../../../docs/examples/link/etcd.toml");
    let file = Path::new("/etc/vsnoop/link/office.toml");
    let config = Config::parse(file, text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.etcd.map(|etcd| etcd.endpoints.len()), Some(3));
    // What is commented out is good, too; a certificate or a password.
    let keys = ["user", "password", "name", "address", "[etcd.peer]", "transport"];
    let commented =
        keys.into_iter().fold(text.to_owned(), |text, key| text.replace(&format!("# {key}"), key));
    let config = Config::parse(file, &commented).unwrap_or_else(|error| panic!("{error}"));
    assert!(config.etcd.is_some_and(|etcd| etcd.login.is_some() && etcd.name.is_some()));
}

const BY_ETCD: &str =
    "[link]\n[[port]]\nbridge = \"br0\"\n[etcd]\nendpoints = \"http://192.0.2.9\"\n";

#[test]
fn with_etcd_there_need_be_no_peer() {
    let config = parse(BY_ETCD).unwrap();
    let etcd = config.etcd.expect("etcd");
    assert_eq!(etcd.endpoints[0].to_string(), "http://192.0.2.9:2379");
    assert_eq!((etcd.prefix.as_str(), etcd.name, etcd.login), ("/vsnoop/", None, None));
    assert_eq!((etcd.ttl.as_secs(), etcd.grace.as_secs()), (30, 3600));
    assert_eq!((config.peers.len(), etcd.template.transport), (0, Transport::Udp));
    let rest = "address = [\"192.0.2.1\", \"[2001:db8::1]:7000\"]\n[etcd.peer]\n\
                transport = \"tls\"\n[[compress]]\npeer = \"one-to-come\"\nmethod = \"zstd\"\n\
                dictionary = \"1M\"\n";
    let divert = DIVERT.replace("\"b\"", "\"one-to-come\"");
    let config = parse(&format!("{BY_ETCD}{rest}{divert}prefix = \"10.2.0.0/16\"\n")).unwrap();
    assert_eq!(config.diverts[0].peer, "one-to-come");
    let etcd = config.etcd.expect("etcd");
    assert_eq!((etcd.addresses.len(), etcd.addresses[1].port), (2, 7000));
    let key = KEY_B.parse().unwrap();
    let peer = etcd.template.make_peer("x", vec![key], etcd.addresses.clone());
    assert_eq!(peer.called().as_deref(), Some("192.0.2.1:7757, [2001:db8::1]:7000"));
    assert_eq!((peer.transport, peer.source), (Transport::Tls, PeerSource::Etcd));
}

#[test]
fn an_error_about_etcd_names_what_is_allowed() {
    let none = BY_ETCD.replace("endpoints = \"http://192.0.2.9\"\n", "");
    let encrypted = BY_ETCD.replace("http:", "https:");
    let secret = "ca = \"ca.pem\"\ncert = \"c.pem\"\n";
    for (text, named) in [
        (none, "[etcd] needs endpoints"),
        (BY_ETCD.replace("http://", ""), "https://192.0.2.10:2379"),
        (encrypted.clone(), "etcd.ca belong together"),
        (format!("{BY_ETCD}ca = \"ca.pem\"\n"), "etcd.ca belong together"),
        (format!("{encrypted}{secret}"), "etcd.cert and etcd.key"),
        (format!("{BY_ETCD}user = \"a\"\n"), "etcd.password"),
        (format!("{BY_ETCD}ttl = \"1s\"\n"), "from 5 s"),
        (format!("{BY_ETCD}prefix = \"vsnoop\"\n"), "a / at the end"),
        (format!("{BY_ETCD}address = []\n"), "up to 8"),
        (format!("{BY_ETCD}adress = \"a\"\n"), "unknown field"),
        (format!("{BY_ETCD}[etcd.peer]\nkey = \"KEY_B\"\n"), "etcd.peer.key"),
        (format!("{BY_ETCD}[etcd.peer]\nconnections = 2\n"), "goes with tls only"),
    ] {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(named), "{named} is not in {error}");
    }
}
