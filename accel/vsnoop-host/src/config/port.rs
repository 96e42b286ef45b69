//! `[[port]]`: which taps the service attaches, and with which settings.
//!
//! A tap belongs to the first table all of whose conditions it meets. A table without conditions
//! is met by every tap of the service's network namespace.

use std::hash::Hasher;

use fnv::FnvHasher;
use glob::Pattern as Glob;
use serde::Deserialize;
use toml::{Spanned, Value};
use vsnoop_bpf::TableLimits;
use vsnoop_config::{Fault, Field, Place, Reader as _};

use super::bounds::{ahead_size, hold_size};
use super::reader::Reader;
use crate::congestion_control;
use crate::error::Result;
use crate::incast::setting::{self, Rate};
use crate::lists::{self, Lists};
use crate::settings::{Incast, Mode, Settings};
use crate::system::holder::Behind;

/// A canary is counted in hundredths of a per cent.
const WHOLE: u32 = 10_000;

const PATH_GLOB: &str = "give the path of QMP sockets from / on, in which * stands for any \
                         characters and ? for one, or a list";

const PROCESS_GLOB: &str = "give a name of 15 characters at most, as ps and /proc/PID/comm show it \
                            (qemu-system-x86), in which * stands for any characters and ? for \
                            one, or a list";

const GLOB: &str = "give a name, in which * stands for any characters and ? for one, or a list";

/// The facts about a tap that conditions ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tap {
    pub interface: String,
    pub bridge: Option<String>,
    /// Name of the process that holds it, and of its VM.
    pub process: Option<String>,
    pub vm: Option<String>,
    /// Name of its network namespace; `None`: that of the service.
    pub netns: Option<String>,
    pub behind: Behind,
}

/// A table `[[port]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPattern {
    /// Names the table in messages and in `status`.
    pub name: String,
    pub place: Place,
    conditions: Conditions,
    /// Settings of the ports that are not in the canary have no early acknowledgement.
    settings: Settings,
    /// The part of the ports that is accelerated.
    canary: u32,
    /// Paths of QMP sockets, one of which each VM has; none: its migrations are not followed.
    qmp: Vec<Glob>,
}

/// Names that a tap must match; an empty list is met by all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Conditions {
    interface: Vec<Glob>,
    bridge: Vec<Glob>,
    process: Vec<Glob>,
    vm: Vec<Glob>,
    netns: Vec<Glob>,
}

impl PortPattern {
    /// The pattern of a configuration without any: observes every tap, accelerates none.
    pub fn observe_all() -> Self {
        Self {
            name: "default".to_owned(),
            place: Place::default(),
            conditions: Conditions::default(),
            settings: Settings::from_mode(Mode::Observe),
            canary: WHOLE,
            qmp: Vec::new(),
        }
    }

    /// Does the tap belong to this table? One without a VM behind it only if it is named.
    pub fn matches(&self, tap: &Tap) -> bool {
        let may_be = match tap.behind {
            Behind::Vm => true,
            Behind::Other => self.names(tap),
            Behind::Link => false,
        };
        may_be && self.meets(tap)
    }

    /// Is the tap, or the process that holds it, named without a `*` or `?`?
    fn names(&self, tap: &Tap) -> bool {
        let named = |globs: &[Glob], name: &str| globs.iter().any(|glob| glob.as_str() == name);
        let Conditions { interface, process, .. } = &self.conditions;
        named(interface, &tap.interface)
            || tap.process.as_ref().is_some_and(|name| named(process, name))
    }

    /// Does the tap meet all conditions, whatever is behind it?
    pub fn meets(&self, tap: &Tap) -> bool {
        let meets = |globs: &[Glob], name: Option<&String>| {
            globs.is_empty() || name.is_some_and(|name| globs.iter().any(|glob| glob.matches(name)))
        };
        let Conditions { interface, bridge, process, vm, netns } = &self.conditions;
        meets(interface, Some(&tap.interface))
            && meets(bridge, tap.bridge.as_ref())
            && meets(process, tap.process.as_ref())
            && meets(vm, tap.vm.as_ref())
            && meets(netns, tap.netns.as_ref())
            && netns.is_empty() == tap.netns.is_none()
    }

    /// Must the process that holds a tap be known?
    pub fn asks_for_process(&self) -> bool {
        let Conditions { process, vm, .. } = &self.conditions;
        // A VM keeps its place in a canary when its tap has another name. The process behind a QMP
        // socket tells whose it is.
        !process.is_empty() || !vm.is_empty() || self.canary < WHOLE || !self.qmp.is_empty()
    }

    /// Where QMP sockets of the VMs are: absolute paths.
    pub fn qmp(&self) -> &[Glob] {
        &self.qmp
    }

    /// Which network namespaces by name, besides the service's own.
    pub fn netns(&self) -> &[Glob] {
        &self.conditions.netns
    }

    /// The settings of this tap: of one outside of the canary, observation.
    pub fn settings(&self, tap: &Tap) -> Settings {
        let is_in = share_of(tap.vm.as_ref().unwrap_or(&tap.interface)) < self.canary;
        match is_in {
            true => self.settings.clone(),
            false => Settings::from_mode(Mode::Observe),
        }
    }

    /// Do ports of this table have downloads?
    pub fn has_downloads(&self) -> bool {
        self.settings.downloads
    }
}

/// The place of a name within 0..[`WHOLE`]: the same on every host and in every version.
fn share_of(name: &str) -> u32 {
    let mut hasher = FnvHasher::default();
    hasher.write(name.as_bytes());
    // The low bits of FNV mix names that differ in their last digit badly.
    let hash = hasher.finish();
    ((hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 % WHOLE
}

/// The table as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table, [[port]]")]
pub struct PortTable {
    name: Field,
    interface: Field,
    bridge: Field,
    process: Field,
    vm: Field,
    netns: Field,
    mode: Field,
    hold: Field,
    ahead: Field,
    passive: Field,
    downloads: Field,
    congestion_control: Field,
    max_flows: Field,
    incast: Field,
    uplink: Field,
    incast_buffer: Field,
    allow_port: Field,
    deny_port: Field,
    allow: Field,
    deny: Field,
    canary: Field,
    qmp: Field,
}

impl Reader<'_> {
    /// `total`: memory for the holds of all ports, bytes, if the file says it.
    pub fn ports(
        &self,
        tables: &[Spanned<PortTable>],
        total: Option<u64>,
    ) -> Result<Vec<PortPattern>> {
        let mut patterns: Vec<PortPattern> = Vec::with_capacity(tables.len());
        for table in tables {
            let pattern = self.port(table)?;
            for before in &patterns {
                let same = |what: &str| {
                    let text = format!("{what} in the [[port]] of line {}", before.place.line);
                    Err(self.said(table.span().start, &text))
                };
                if before.name == pattern.name {
                    return same(&format!("port.name is {:?}, too,", pattern.name));
                }
                if before.conditions == pattern.conditions {
                    return same("no tap is left for this [[port]]: the same conditions stand");
                }
            }
            if let (Some(hold), Some(found)) = (pattern.settings.hold, &table.get_ref().hold)
                && total.is_some_and(|total| u64::from(hold) > total)
            {
                let allowed = "one port cannot have more than hold.total, which all ports share";
                return Err(self.wrong("port.hold", found, allowed));
            }
            patterns.push(pattern);
        }
        Ok(patterns)
    }

    fn port(&self, table: &Spanned<PortTable>) -> Result<PortPattern> {
        let port = table.get_ref();
        let place = self.place(table.span().start);
        let name = self.read_text("port.name", &port.name, label)?;
        let settings = self.settings(table)?;
        Ok(PortPattern {
            name: name.unwrap_or_else(|| format!("line {}", place.line)),
            place,
            conditions: Conditions {
                interface: self.read_globs("port.interface", &port.interface)?,
                bridge: self.read_globs("port.bridge", &port.bridge)?,
                process: self.read_list(
                    "port.process",
                    &port.process,
                    process_glob,
                    PROCESS_GLOB,
                )?,
                vm: self.read_globs("port.vm", &port.vm)?,
                netns: self.read_globs("port.netns", &port.netns)?,
            },
            canary: self.read_text("port.canary", &port.canary, canary)?.unwrap_or(WHOLE),
            qmp: self.read_list("port.qmp", &port.qmp, path_glob, PATH_GLOB)?,
            settings,
        })
    }

    fn read_globs(&self, key: &str, field: &Field) -> Result<Vec<Glob>> {
        self.read_list(key, field, |text| Glob::new(text).ok().filter(|_| !text.is_empty()), GLOB)
    }

    fn settings(&self, table: &Spanned<PortTable>) -> Result<Settings> {
        let port = table.get_ref();
        let mode = self.read_text("port.mode", &port.mode, mode)?.unwrap_or(Mode::Accelerate);
        if mode == Mode::Observe {
            let with = [
                ("hold", &port.hold),
                ("ahead", &port.ahead),
                ("passive", &port.passive),
                ("downloads", &port.downloads),
                ("congestion_control", &port.congestion_control),
                ("canary", &port.canary),
                ("qmp", &port.qmp),
            ];
            self.refuse(&with, "goes with mode = \"accelerate\" only: leave it out")?;
        }
        if port.incast.is_none() {
            let with = [("uplink", &port.uplink), ("incast_buffer", &port.incast_buffer)];
            self.refuse(&with, "goes with port.incast only: leave it out, or say incast = true")?;
        }
        let numbers = |key: &str, field: &Field| {
            let number = |value: &Value| u16::try_from(value.as_integer()?).ok().filter(|n| *n > 0);
            self.read_values(
                key,
                field,
                number,
                "give a port number, 1 to 65535, or a list of them",
            )
        };
        let lists = Lists {
            allow_port: &numbers("port.allow_port", &port.allow_port)?,
            deny_port: &numbers("port.deny_port", &port.deny_port)?,
            allow: &self.read_prefixes("port.allow", &port.allow)?,
            deny: &self.read_prefixes("port.deny", &port.deny)?,
        };
        let here = |error: crate::error::Error| self.said(table.span().start, &error.to_string());
        let incast = self.incast(port)?;
        let downloads = self.read_truth("port.downloads", &port.downloads)?.unwrap_or(false);
        if downloads && incast.is_some() {
            let with = [("downloads", &port.downloads)];
            self.refuse(&with, "goes without port.incast only: leave one of them out")?;
        }
        Ok(Settings {
            mode,
            downloads,
            congestion_control: self
                .read_text(
                    "port.congestion_control",
                    &port.congestion_control,
                    congestion_control::parse,
                )?
                .unwrap_or_default(),
            passive: self.read_truth("port.passive", &port.passive)?.unwrap_or(true),
            hold: self.read_quantity("port.hold", &port.hold, hold_size)?,
            ahead: self.read_quantity("port.ahead", &port.ahead, ahead_size)?,
            port_rules: lists::port_rules(lists).map_err(here)?,
            prefix_rules: lists::prefix_rules(lists).map_err(here)?,
            max_flows: self
                .read_number("port.max_flows", &port.max_flows, 1..=TableLimits::HOST_FLOWS)?
                .unwrap_or(TableLimits::default().max_flows),
            incast,
        })
    }

    fn incast(&self, port: &PortTable) -> Result<Option<Incast>> {
        let rate = match port.incast.as_ref().map(|found| found.get_ref()) {
            None | Some(Value::Boolean(false)) => return Ok(None),
            Some(Value::Boolean(true)) => None,
            Some(_) => self.read_quantity("port.incast", &port.incast, rate)?,
        };
        let uplink = self.read_text("port.uplink", &port.uplink, |text| match text {
            "" => Err(setting::SettingError::Uplink),
            name => Ok(name.to_owned()),
        })?;
        let buffer_bytes =
            self.read_quantity("port.incast_buffer", &port.incast_buffer, setting::buffer)?;
        Ok(Some(Incast { rate, uplink, buffer_bytes }))
    }

    /// None of these may be there.
    fn refuse(&self, fields: &[(&str, &Field)], why: &str) -> Result<()> {
        let found = fields.iter().find_map(|(key, field)| Some((key, field.as_ref()?)));
        match found {
            Some((key, found)) => Err(self.wrong(&format!("port.{key}"), found, why)),
            None => Ok(()),
        }
    }

    fn said(&self, offset: usize, text: &str) -> crate::error::Error {
        self.fault(offset, Fault::Toml { message: text.to_owned(), excerpt: String::new() })
    }
}

/// One that can match: the kernel keeps 15 bytes of a name (TASK_COMM_LEN).
fn process_glob(text: &str) -> Option<Glob> {
    const NAME_BYTES: usize = 15;
    let least = text.bytes().filter(|byte| *byte != b'*').count();
    Glob::new(text).ok().filter(|_| (1..=NAME_BYTES).contains(&least) || text == "*")
}

fn path_glob(text: &str) -> Option<Glob> {
    Glob::new(text).ok().filter(|_| text.starts_with('/'))
}

fn label(text: &str) -> std::result::Result<String, &'static str> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match (1..=31).contains(&text.len()) && text.chars().all(is_good) {
        true => Ok(text.to_owned()),
        false => Err("give up to 31 letters, digits, '-', '_' and '.'"),
    }
}

fn mode(text: &str) -> std::result::Result<Mode, &'static str> {
    match text {
        "accelerate" => Ok(Mode::Accelerate),
        "observe" => Ok(Mode::Observe),
        _ => Err("give accelerate or observe"),
    }
}

fn rate(text: &str) -> std::result::Result<Rate, String> {
    setting::rate(text).map_err(|why| format!("{why}, or true"))
}

/// Hundredths of a per cent.
fn canary(text: &str) -> std::result::Result<u32, &'static str> {
    let part = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    part.filter(|part| (0.0..=100.0).contains(part))
        .map(|part| (part * f64::from(WHOLE) / 100.0).round() as u32)
        .ok_or("give the part of the ports that is accelerated, such as \"10%\"")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use vsnoop_bpf::CongestionControl;

    use crate::config::Config;

    fn parse(text: &str) -> Result<Vec<PortPattern>> {
        Ok(Config::parse(Path::new("/f.toml"), text)?.ports)
    }

    fn tap(interface: &str) -> Tap {
        Tap { interface: interface.to_owned(), ..Tap::default() }
    }

    #[test]
    fn a_tap_belongs_to_the_first_table_all_of_whose_conditions_it_meets() {
        let text = "[[port]]\nname = \"pod\"\nnetns = \"pod-*\"\n\
                    [[port]]\nname = \"db\"\ninterface = [\"vnet?\", \"tap*\"]\nvm = \"db-*\"\n\
                    [[port]]\nname = \"bridged\"\nbridge = \"br0\"\nprocess = \"qemu*\"\n";
        let patterns = parse(text).unwrap();
        let table_of =
            |tap: Tap| patterns.iter().find(|it| it.matches(&tap)).map(|it| it.name.clone());
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(table_of(tap("vnet1")), None);
        assert_eq!(table_of(Tap { vm: some("db-1"), ..tap("vnet1") }), some("db"));
        assert_eq!(table_of(Tap { vm: some("db-1"), ..tap("vnet12") }), None);
        let bridged = Tap { bridge: some("br0"), process: some("qemu-system-x86"), ..tap("x") };
        assert_eq!(table_of(bridged.clone()), some("bridged"));
        assert_eq!(table_of(Tap { netns: some("pod-7"), ..bridged.clone() }), some("pod"));
        assert_eq!(
            table_of(Tap { netns: some("other"), ..bridged }),
            None,
            "its namespace was not named"
        );
    }

    #[test]
    fn a_tap_without_a_vm_is_attached_if_it_is_named_and_a_links_own_never() {
        let matching = |table: &str, behind| {
            let process = Some("openvpn".to_owned());
            let bridge = Some("br0".to_owned());
            let tap = Tap { process, bridge, behind, ..tap("tap0") };
            let pattern = parse(&format!("[[port]]\n{table}\n")).unwrap().remove(0);
            assert!(pattern.meets(&tap), "{table}");
            pattern.matches(&tap)
        };
        for all in ["", "bridge = \"br0\"", "interface = \"tap*\"", "process = \"open*\""] {
            assert!(matching(all, Behind::Vm), "{all}");
            assert!(!matching(all, Behind::Other), "{all}");
            assert!(!matching(all, Behind::Link), "{all}");
        }
        for named in ["interface = [\"x\", \"tap0\"]", "process = \"openvpn\""] {
            assert!(matching(named, Behind::Other), "{named}");
            assert!(!matching(named, Behind::Link), "{named}");
        }
    }

    #[test]
    fn settings_are_those_of_attach() {
        let text = "[[port]]\nhold = \"1M\"\nahead = 65536\npassive = false\nmax_flows = 7\n\
                    incast = \"10G\"\nuplink = \"eth0\"\nincast_buffer = \"1M\"\n\
                    deny_port = [22, 23]\nallow = \"10.1.2.3/8\"\ncongestion_control = \"bbr\"\n";
        let settings = parse(text).unwrap()[0].settings(&tap("t"));
        let incast = Incast {
            rate: Some(Rate::BitsPerSecond(10_000_000_000)),
            uplink: Some("eth0".into()),
            buffer_bytes: Some(1 << 20),
        };
        let wanted = Settings {
            mode: Mode::Accelerate,
            passive: false,
            hold: Some(1 << 20),
            ahead: Some(65536),
            downloads: false,
            congestion_control: CongestionControl::named("bbr").unwrap(),
            port_rules: vec![(22, false), (23, false)],
            prefix_rules: vec![("10.0.0.0".parse().unwrap(), 8, true)],
            max_flows: 7,
            incast: Some(incast),
        };
        assert_eq!(settings, wanted);
        let observed = parse("[[port]]\nmode = \"observe\"\nincast = true\n").unwrap();
        let settings = observed[0].settings(&tap("t"));
        assert_eq!(settings.mode, Mode::Observe);
        assert_eq!(settings.incast, Some(Incast::default()));
    }

    #[test]
    fn a_canary_has_about_its_part_of_the_ports_and_always_the_same() {
        let pattern =
            |canary: &str| parse(&format!("[[port]]\ncanary = \"{canary}\"\n")).unwrap().remove(0);
        let chosen = |canary: &str| -> Vec<u32> {
            let pattern = pattern(canary);
            let is_in = |i: &u32| pattern.settings(&tap(&format!("vnet{i}"))).mode != Mode::Observe;
            (0..1000).filter(is_in).collect()
        };
        assert_eq!(chosen("0%").len(), 0);
        assert_eq!(chosen("100%").len(), 1000);
        let tenth = chosen("10%");
        assert!((60..=140).contains(&tenth.len()), "{}", tenth.len());
        assert!(tenth.iter().all(|i| chosen("20%").contains(i)), "a larger canary keeps them");
        // A VM that starts again has another interface.
        let pattern = pattern("50%");
        let share_of = |interface: &str| {
            pattern.settings(&Tap { vm: Some("web-1".into()), ..tap(interface) }).mode
        };
        assert!((0..100).all(|i| share_of(&format!("vnet{i}")) == share_of("vnet0")));
    }

    #[test]
    fn wrong_content_of_every_kind_is_refused_with_its_line_and_column() {
        for (table, place, words) in [
            ("interfaces = \"x\"", "2, column 1", vec!["interfaces", "interface"]),
            ("interface = 7", "2, column 13", vec!["port.interface = 7", "* stands"]),
            ("interface = []", "2, column 13", vec!["port.interface", "* stands"]),
            ("interface = \"a**\"", "2, column 13", vec!["port.interface", "* stands"]),
            ("bridge = \"\"", "2, column 10", vec!["port.bridge = \"\""]),
            ("process = true", "2, column 11", vec!["port.process = true"]),
            ("process = \"qemu-system-x86_64\"", "2, column 11", vec!["15 characters"]),
            ("vm = [\"a\", 1]", "2, column 6", vec!["port.vm"]),
            ("netns = 1.5", "2, column 9", vec!["port.netns = 1.5"]),
            ("name = \"a b\"", "2, column 8", vec!["port.name", "31 letters"]),
            ("mode = \"attach\"", "2, column 8", vec!["port.mode", "accelerate or observe"]),
            ("hold = \"1K\"", "2, column 8", vec!["port.hold", "256K to 256M"]),
            ("hold = true", "2, column 8", vec!["port.hold = true", "256K to 256M"]),
            ("ahead = \"2G\"", "2, column 9", vec!["port.ahead", "up to 1G"]),
            ("passive = \"no\"", "2, column 11", vec!["port.passive", "true or false"]),
            (
                "congestion_control = \"a b\"",
                "2, column 22",
                vec!["port.congestion_control", "cubic or bbr"],
            ),
            ("downloads = 1", "2, column 13", vec!["port.downloads", "true or false"]),
            (
                "incast = true\ndownloads = true",
                "3, column 13",
                vec!["port.downloads", "without port.incast"],
            ),
            (
                "mode = \"observe\"\ndownloads = false",
                "3, column 13",
                vec!["port.downloads", "accelerate"],
            ),
            ("max_flows = 0", "2, column 13", vec!["port.max_flows = 0", "from 1"]),
            ("incast = \"fast\"", "2, column 10", vec!["port.incast", "25G", "true"]),
            ("uplink = \"eth0\"", "2, column 10", vec!["port.uplink", "incast = true"]),
            ("incast = true\nuplink = \"\"", "3, column 10", vec!["port.uplink", "interface"]),
            ("incast = true\nincast_buffer = 1", "3, column 17", vec!["16K to 256M"]),
            ("allow_port = 0", "2, column 14", vec!["port.allow_port = 0", "1 to 65535"]),
            ("deny_port = [1, 70000]", "2, column 13", vec!["port.deny_port"]),
            ("allow = \"10.0.0.0/33\"", "2, column 9", vec!["port.allow", "prefix"]),
            ("deny = 10", "2, column 8", vec!["port.deny = 10", "prefix"]),
            ("allow_port = 80\ndeny_port = 80", "1, column 1", vec!["80 is both allowed"]),
            ("canary = 10", "2, column 10", vec!["port.canary = 10", "quotes"]),
            ("canary = \"101%\"", "2, column 10", vec!["port.canary", "10%"]),
            ("mode = \"observe\"\nhold = \"1M\"", "3, column 8", vec!["port.hold", "accelerate"]),
            ("mode = \"observe\"\ncanary = \"1%\"", "3, column 10", vec!["port.canary"]),
            ("qmp = \"run/*.qmp\"", "2, column 7", vec!["port.qmp", "from / on"]),
            ("qmp = 7", "2, column 7", vec!["port.qmp = 7"]),
            ("mode = \"observe\"\nqmp = \"/q\"", "3, column 7", vec!["port.qmp"]),
            ("hold = \"1M\"\nhold = \"2M\"", "3, column 1", vec!["duplicate key"]),
            ("hold = \"2M\"\n[hold]\ntotal = \"1M\"", "2, column 8", vec!["hold.total"]),
            ("[[port]]", "2, column 1", vec!["no tap is left", "line 1"]),
            ("name = \"a\"\n[[port]]\nname = \"a\"", "3, column 1", vec!["\"a\", too", "line 1"]),
            ("[port]", "2, column 2", vec!["port"]),
            ("interface = \"x", "2, column", vec!["interface"]),
        ] {
            let error = parse(&format!("[[port]]\n{table}\n")).expect_err(table).to_string();
            let place = format!("/f.toml, line {place}");
            assert!(error.starts_with(&place), "{place:?} does not begin: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
            for word in words {
                assert!(error.contains(word), "{word:?} is not in: {error}");
            }
        }
        let single = parse("[port]\n").unwrap_err().to_string();
        assert!(single.contains("double brackets"), "{single}");
    }
}
