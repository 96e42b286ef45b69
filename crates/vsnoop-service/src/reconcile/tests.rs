//! The table of the module, case by case, and any sequence of events.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use vsnoop_host::config::Config;
use vsnoop_host::settings::Mode;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn patterns(text: &str) -> Vec<PortPattern> {
    Config::parse(Path::new("/f.toml"), text).expect(text).ports
}

fn accelerate_vnets() -> Vec<PortPattern> {
    patterns("[[port]]\ninterface = \"vnet*\"\n")
}

fn key(ifindex: u32) -> PortKey {
    PortKey { netns: 1, ifindex }
}

fn present(ifindex: u32, attachment: Option<Attachment>) -> Present {
    let tap = Tap { interface: format!("vnet{ifindex}"), ..Tap::default() };
    Present { key: key(ifindex), tap, is_ready: true, attachment }
}

/// With these settings, of the table in the first line.
fn by_service(settings: &Settings) -> Attachment {
    Attachment::ByService { mark: settings.mark("line 1"), is_paused: false }
}

fn wanted(settings: &Settings) -> Wanted {
    Wanted { settings: settings.clone(), table: "line 1".into() }
}

fn plan(port: Present, patterns: &[PortPattern]) -> Vec<Action> {
    Reconciler::default().plan(SECOND, &[port], patterns).actions
}

#[test]
fn a_tap_is_attached_once_it_is_ready_and_only_if_a_table_wants_it() {
    let patterns_wanted = accelerate_vnets();
    let wanted = wanted(&Settings::of(Mode::Accelerate));
    let attach = Action::Attach { key: key(1), name: "vnet1".into(), wanted };
    assert_eq!(plan(present(1, None), &patterns_wanted), [attach]);
    assert_eq!(plan(Present { is_ready: false, ..present(1, None) }, &patterns_wanted), []);
    assert_eq!(plan(present(1, None), &patterns("[[port]]\ninterface = \"tap*\"\n")), []);
}

#[test]
fn a_port_of_a_command_is_left_as_it_is() {
    for patterns in [accelerate_vnets(), patterns("[[port]]\ninterface = \"no\"\n")] {
        assert_eq!(plan(present(1, Some(Attachment::ByCommand)), &patterns), []);
    }
}

#[test]
fn a_port_of_the_service_follows_the_configuration() {
    let configured = accelerate_vnets();
    let settings = Settings::of(Mode::Accelerate);
    let with = |settings: &Settings| present(1, Some(by_service(settings)));
    assert_eq!(plan(with(&settings), &configured), []);
    let bounded = Settings { hold: Some(1 << 20), ..settings.clone() };
    let set = [Action::SetBounds { key: key(1), wanted: wanted(&settings) }];
    assert_eq!(plan(with(&bounded), &configured), set);
    let renamed = Attachment::ByService { mark: settings.mark("other"), is_paused: false };
    assert_eq!(plan(present(1, Some(renamed)), &configured), set);
    let detach = [Action::Detach { key: key(1) }];
    assert_eq!(plan(with(&Settings::of(Mode::Observe)), &configured), detach);
    assert_eq!(plan(with(&settings), &patterns("[[port]]\ninterface = \"no\"\n")), detach);
    assert_eq!(plan(present(1, Some(Attachment::Leaving)), &configured), detach);
    let other = Settings::of(Mode::Observe).mark("line 1");
    let paused = Attachment::ByService { mark: other, is_paused: true };
    assert_eq!(plan(present(1, Some(paused)), &configured), [], "an operator has paused it");
}

#[test]
fn what_an_operator_detaches_stays_off_until_a_reload_or_a_new_tap() {
    let wanted = accelerate_vnets();
    let attached = by_service(&Settings::of(Mode::Accelerate));
    for attachment in [attached, Attachment::ByCommand] {
        let mut reconciler = Reconciler::default();
        let actions = |reconciler: &mut Reconciler, port: &[Present]| {
            reconciler.plan(SECOND, port, &wanted).actions.len()
        };
        assert_eq!(actions(&mut reconciler, &[present(1, Some(attachment.clone()))]), 0);
        for _ in 0..3 {
            assert_eq!(actions(&mut reconciler, &[present(1, None)]), 0);
        }
        reconciler.reload();
        assert_eq!(actions(&mut reconciler, &[present(1, None)]), 1);
        assert_eq!(actions(&mut reconciler, &[present(1, Some(attachment.clone()))]), 0);
        assert_eq!(actions(&mut reconciler, &[present(1, None)]), 0);
        assert_eq!(actions(&mut reconciler, &[]), 0);
        assert_eq!(actions(&mut reconciler, &[present(1, None)]), 1, "it is a new tap");
        // What the service itself detaches is attached anew.
        assert_eq!(actions(&mut reconciler, &[present(1, Some(attachment.clone()))]), 0);
        reconciler.detached(key(1));
        assert_eq!(actions(&mut reconciler, &[present(1, None)]), 1);
    }
}

#[test]
fn what_fails_is_tried_again_after_pauses_that_grow_to_a_bound() {
    let wanted = accelerate_vnets();
    let mut reconciler = Reconciler::default();
    let mut now = SECOND;
    assert!(reconciler.failed(key(1), now, "why"), "the first time");
    assert_eq!((reconciler.reason(key(1)), reconciler.reason(key(2))), (Some("why"), None));
    let mut pauses = Vec::new();
    for _ in 0..20 {
        let Plan { actions, again_at } = reconciler.plan(now, &[present(1, None)], &wanted);
        assert_eq!(actions, []);
        let again_at = again_at.expect("it is tried again");
        pauses.push((again_at - now).as_secs());
        now = again_at;
        let due = reconciler.plan(now, &[present(1, None)], &wanted);
        assert_eq!((due.actions.len(), due.again_at), (1, None));
        assert!(!reconciler.failed(key(1), now, "why"));
    }
    assert_eq!(pauses[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(pauses[19], 60);
}

fn of_wanted(wanted: &Wanted) -> Attachment {
    Attachment::ByService { mark: wanted.mark(), is_paused: false }
}

/// What can happen on a host.
#[derive(Clone, Debug)]
enum Event {
    TapComes(u32),
    TapGoes(u32),
    OperatorAttaches(u32),
    OperatorDetaches(u32),
    Reload(usize),
    /// The service is killed, and started again.
    Restart,
    /// The next actions fail.
    Trouble(bool),
    Look,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let tap = 1..6u32;
    let event = prop_oneof![
        tap.clone().prop_map(Event::TapComes),
        tap.clone().prop_map(Event::TapGoes),
        tap.clone().prop_map(Event::OperatorAttaches),
        tap.prop_map(Event::OperatorDetaches),
        (0..3usize).prop_map(Event::Reload),
        Just(Event::Restart),
        any::<bool>().prop_map(Event::Trouble),
        Just(Event::Look),
        Just(Event::Look),
    ];
    proptest::collection::vec(event, 0..60)
}

/// A host, on which actions do what they say.
struct Host {
    taps: BTreeMap<u32, Option<Attachment>>,
    reconciler: Reconciler,
    patterns: Vec<PortPattern>,
    now: Duration,
    in_trouble: bool,
}

impl Host {
    /// Returns the number of actions.
    fn look(&mut self) -> usize {
        self.now += 100 * SECOND;
        let present: Vec<_> = self.taps.iter().map(|(tap, at)| present(*tap, at.clone())).collect();
        let actions = self.reconciler.plan(self.now, &present, &self.patterns).actions;
        for action in &actions {
            self.carry_out(action);
        }
        actions.len()
    }

    fn carry_out(&mut self, action: &Action) {
        let (Action::Attach { key, .. } | Action::SetBounds { key, .. } | Action::Detach { key }) =
            action;
        let attachment = self.taps.get_mut(&key.ifindex).expect("an action for a tap that is gone");
        assert_ne!(*attachment, Some(Attachment::ByCommand), "{action:?} of a command's port");
        match action {
            _ if self.in_trouble => drop(self.reconciler.failed(*key, self.now, "why")),
            Action::Attach { wanted, .. } => {
                assert_eq!(*attachment, None, "{action:?} of an attached port");
                *attachment = Some(of_wanted(wanted));
            }
            Action::SetBounds { wanted, .. } => *attachment = Some(of_wanted(wanted)),
            Action::Detach { key } => {
                *attachment = None;
                self.reconciler.detached(*key);
            }
        }
    }

    fn happens(&mut self, event: Event, configurations: &[Vec<PortPattern>]) {
        match event {
            Event::TapComes(tap) => drop(self.taps.entry(tap).or_insert(None)),
            Event::TapGoes(tap) => drop(self.taps.remove(&tap)),
            Event::OperatorAttaches(tap) => {
                if let Some(nothing @ None) = self.taps.get_mut(&tap) {
                    *nothing = Some(Attachment::ByCommand);
                }
            }
            Event::OperatorDetaches(tap) => {
                if let Some(attachment) = self.taps.get_mut(&tap) {
                    *attachment = None;
                }
            }
            Event::Reload(number) => {
                self.patterns.clone_from(&configurations[number]);
                self.reconciler.reload();
            }
            Event::Restart => self.reconciler = Reconciler::default(),
            Event::Trouble(trouble) => self.in_trouble = trouble,
            Event::Look => drop(self.look()),
        }
    }
}

proptest! {
    #[test]
    fn after_any_events_it_comes_to_rest_with_what_the_configuration_says(events in events()) {
        let configurations = [
            accelerate_vnets(),
            patterns("[[port]]\ninterface = \"vnet[123]\"\nhold = \"1M\"\n"),
            patterns("[[port]]\ninterface = \"vnet3\"\nmode = \"observe\"\n[[port]]\nhold = \"2M\"\n"),
        ];
        let mut host = Host {
            taps: BTreeMap::new(),
            reconciler: Reconciler::default(),
            patterns: configurations[0].clone(),
            now: SECOND,
            in_trouble: false,
        };
        for event in events {
            host.happens(event, &configurations);
        }
        host.in_trouble = false;
        host.reconciler.reload();
        // Detach, attach, rest.
        for _ in 0..2 {
            host.look();
        }
        prop_assert_eq!(host.look(), 0);
        for (tap, attachment) in &host.taps {
            let port = present(*tap, None);
            let wanted = Wanted::of(&port.tap, &host.patterns);
            if *attachment != Some(Attachment::ByCommand) {
                prop_assert_eq!(attachment, &wanted.as_ref().map(of_wanted));
            }
        }
    }
}
