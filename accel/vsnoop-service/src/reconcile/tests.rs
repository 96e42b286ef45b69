//! The table of the module, case by case, and any sequence of events.

use std::collections::{BTreeMap, BTreeSet};
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
    let vm = VmPlace::NotFollowed;
    Present {
        key: key(ifindex),
        tap,
        is_ready: true,
        is_held: true,
        vm,
        attachment,
        is_detached_by_operator: false,
    }
}

/// With these settings, of the table in the first line.
fn by_service(settings: &Settings) -> Attachment {
    marked(settings.mark("line 1"))
}

fn marked(mark: ServiceMark) -> Attachment {
    Attachment::ByService { mark, is_paused: false, is_migrating: false }
}

fn wanted(settings: &Settings) -> Wanted {
    Wanted { settings: settings.clone(), table: "line 1".into() }
}

fn plan(port: Present, patterns: &[PortPattern]) -> Vec<Action> {
    Reconciler::default().plan(SECOND, &[port], patterns)
}

#[test]
fn a_tap_is_attached_once_it_is_ready_and_only_if_a_table_wants_it() {
    let patterns_wanted = accelerate_vnets();
    let wanted = wanted(&Settings::from_mode(Mode::Accelerate));
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
    let settings = Settings::from_mode(Mode::Accelerate);
    let with = |settings: &Settings| present(1, Some(by_service(settings)));
    assert_eq!(plan(with(&settings), &configured), []);
    let bounded = Settings { hold: Some(1 << 20), ..settings.clone() };
    let set = [Action::SetBounds { key: key(1), wanted: wanted(&settings) }];
    assert_eq!(plan(with(&bounded), &configured), set);
    let renamed = marked(settings.mark("other"));
    assert_eq!(plan(present(1, Some(renamed)), &configured), set);
    let detach = [Action::Detach { key: key(1) }];
    assert_eq!(plan(with(&Settings::from_mode(Mode::Observe)), &configured), detach);
    assert_eq!(plan(with(&settings), &patterns("[[port]]\ninterface = \"no\"\n")), detach);
    assert_eq!(plan(present(1, Some(Attachment::Leaving)), &configured), detach);
    let other = Settings::from_mode(Mode::Observe).mark("line 1");
    let paused = Attachment::ByService { mark: other, is_paused: true, is_migrating: false };
    assert_eq!(plan(present(1, Some(paused)), &configured), [], "an operator has paused it");
}

#[test]
fn what_an_operator_has_detached_is_not_attached() {
    let detached = |attachment| Present { is_detached_by_operator: true, ..present(1, attachment) };
    assert_eq!(plan(detached(None), &accelerate_vnets()), []);
    assert_eq!(plan(detached(Some(Attachment::ByCommand)), &accelerate_vnets()), []);
    // The mark comes before the hooks are off: meanwhile the port is attached as before.
    let attached = by_service(&Settings::from_mode(Mode::Accelerate));
    assert_eq!(plan(detached(Some(attached)), &accelerate_vnets()), []);
    let other = by_service(&Settings::from_mode(Mode::Observe));
    assert_eq!(plan(detached(Some(other)), &accelerate_vnets()), [Action::Detach { key: key(1) }]);
}

#[test]
fn what_another_program_takes_off_stays_off_and_what_the_service_detaches_is_not() {
    let wanted = accelerate_vnets();
    let attached = || by_service(&Settings::from_mode(Mode::Accelerate));
    let mut reconciler = Reconciler::default();
    let mut actions = |port: &[Present]| reconciler.plan(SECOND, port, &wanted);
    assert_eq!(actions(&[present(1, Some(attached()))]), []);
    let mark_detached =
        [Action::MarkDetached { key: key(1), name: present(1, None).tap.interface }];
    assert_eq!(actions(&[present(1, None)]), mark_detached);
    assert_eq!(actions(&[present(1, None)]), mark_detached, "it was not carried out");
    assert_eq!(actions(&[Present { is_detached_by_operator: true, ..present(1, None) }]), []);
    // The service detaches it for other settings, at once or after a while.
    let other = by_service(&Settings::from_mode(Mode::Observe));
    let is_attach = |actions: &[Action]| matches!(actions, [Action::Attach { .. }]);
    for leaving in [None, Some(Attachment::Leaving)] {
        assert_eq!(actions(&[present(1, Some(attached()))]), []);
        assert_eq!(actions(&[present(1, Some(other.clone()))]), [Action::Detach { key: key(1) }]);
        if leaving.is_some() {
            assert_eq!(actions(&[present(1, leaving)]), [Action::Detach { key: key(1) }]);
        }
        assert!(is_attach(&actions(&[present(1, None)])));
    }
    assert_eq!(actions(&[present(1, Some(attached()))]), []);
    assert_eq!(actions(&[]), [], "its tap is gone");
    assert!(is_attach(&actions(&[present(1, None)])), "it is a new tap");
    let none = patterns("[[port]]\ninterface = \"other\"\n");
    reconciler.attached(key(1));
    assert_eq!(reconciler.plan(SECOND, &[present(1, None)], &none), [], "not wanted");
    // Taken off before the next look.
    reconciler.attached(key(1));
    let actions = reconciler.plan(SECOND, &[present(1, None)], &wanted);
    assert_eq!(actions, mark_detached);
}

/// For example one of `vsnoop observe`, while the service could not attach the tap.
#[test]
fn what_a_command_has_attached_and_taken_off_is_attached() {
    let wanted = accelerate_vnets();
    let mut reconciler = Reconciler::default();
    let by_command = present(1, Some(Attachment::ByCommand));
    assert_eq!(reconciler.plan(SECOND, &[by_command], &wanted), []);
    let actions = reconciler.plan(SECOND, &[present(1, None)], &wanted);
    assert!(matches!(actions[..], [Action::Attach { .. }]), "{actions:?}");
}

#[test]
fn bounds_that_cannot_be_set_are_tried_again_after_a_pause() {
    let wanted = accelerate_vnets();
    let mut reconciler = Reconciler::default();
    let bounded = Settings { hold: Some(1 << 20), ..Settings::from_mode(Mode::Accelerate) };
    let port = [present(1, Some(by_service(&bounded)))];
    let mut count = |now: Duration, is_refused: bool| {
        let actions = reconciler.plan(now, &port, &wanted);
        if is_refused {
            reconciler.failed(key(1), now, "why");
        }
        actions.len()
    };
    assert_eq!(count(SECOND, true), 1);
    assert_eq!(count(SECOND * 3 / 2, false), 0);
    assert_eq!(count(SECOND * 2, false), 1);
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
        assert_eq!(reconciler.plan(now, &[present(1, None)], &wanted), []);
        let again_at = reconciler.again_at(now).expect("it is tried again");
        pauses.push((again_at - now).as_secs());
        now = again_at;
        let due = reconciler.plan(now, &[present(1, None)], &wanted);
        assert_eq!((due.len(), reconciler.again_at(now)), (1, None));
        assert!(!reconciler.failed(key(1), now, "why"));
    }
    assert_eq!(pauses[..8], [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(pauses[19], 60);
}

fn of_wanted(wanted: &Wanted) -> Attachment {
    marked(wanted.mark())
}

fn set_migrating(attachment: &mut Option<Attachment>, migrating: bool) {
    let Some(Attachment::ByService { is_migrating, .. }) = attachment else {
        panic!("not a port of the service: {attachment:?}")
    };
    assert_ne!(*is_migrating, migrating, "it is so already");
    *is_migrating = migrating;
}

/// A port of the service with the settings that are wanted.
fn of_service(vm: VmPlace, is_migrating: bool) -> Present {
    let mark = Settings::from_mode(Mode::Accelerate).mark("line 1");
    let attachment = Attachment::ByService { mark, is_paused: false, is_migrating };
    Present { vm, ..present(1, Some(attachment)) }
}

#[test]
fn a_port_is_paused_while_its_vm_leaves_and_goes_on_if_it_stays() {
    let key = key(1);
    let [pause, resume, detach] =
        [Action::Pause { key }, Action::Resume { key }, Action::Detach { key }];
    let [gone, gone_for_good] = [false, true].map(|for_good| VmPlace::Gone { for_good });
    for (vm, is_migrating, action) in [
        (VmPlace::Here, false, None),
        (VmPlace::Leaving, false, Some(&pause)),
        (VmPlace::Leaving, true, None),
        (gone, false, Some(&pause)),
        (gone, true, None),
        (gone_for_good, true, Some(&detach)),
        (VmPlace::Here, true, Some(&resume)),
        (VmPlace::NotFollowed, true, Some(&resume)),
        (VmPlace::Unknown, false, None),
        (VmPlace::Unknown, true, None),
    ] {
        let planned = plan(of_service(vm, is_migrating), &accelerate_vnets());
        assert_eq!(planned.first(), action, "{vm:?}, paused: {is_migrating}");
        assert_eq!(planned.len(), usize::from(action.is_some()));
    }
    let without_process = Present { is_held: false, ..of_service(VmPlace::Unknown, true) };
    assert_eq!(plan(without_process, &accelerate_vnets()), [detach]);
}

#[test]
fn a_port_that_an_operator_has_paused_keeps_that_beside_the_pause_for_a_migration() {
    let key = key(1);
    let actions_of = |vm, is_migrating| {
        let mark = Settings::from_mode(Mode::Accelerate).mark("line 1");
        let attachment = Attachment::ByService { mark, is_paused: true, is_migrating };
        plan(Present { vm, ..present(1, Some(attachment)) }, &accelerate_vnets())
    };
    assert_eq!(actions_of(VmPlace::Leaving, false), [Action::Pause { key }]);
    assert_eq!(actions_of(VmPlace::Here, true), [Action::Resume { key }]);
    assert_eq!(actions_of(VmPlace::Gone { for_good: true }, true), []);
}

#[test]
fn a_migration_changes_nothing_of_what_a_command_attached_or_a_table_observes() {
    let leaving = |attachment| Present { vm: VmPlace::Leaving, ..present(1, Some(attachment)) };
    assert_eq!(plan(leaving(Attachment::ByCommand), &accelerate_vnets()), []);
    let observed = by_service(&Settings::from_mode(Mode::Observe));
    let observe = patterns("[[port]]\nmode = \"observe\"\n");
    assert_eq!(plan(leaving(observed), &observe), []);
}

#[test]
fn the_tap_of_a_vm_that_has_left_is_not_attached_again() {
    let gone = Present { vm: VmPlace::Gone { for_good: true }, ..present(1, None) };
    assert_eq!(plan(gone, &accelerate_vnets()), []);
}

/// An event on a host.
#[derive(Clone, Debug)]
enum Event {
    TapComes(u32),
    TapGoes(u32),
    OperatorAttaches(u32),
    OperatorDetaches(u32),
    AnotherTakesOff(u32),
    Reload(usize),
    /// The service is killed, and started again.
    Restart,
    /// The next actions fail.
    Trouble(bool),
    VmIs(u32, VmPlace),
    Look,
}

fn places() -> impl Strategy<Value = VmPlace> {
    let gone = |for_good| VmPlace::Gone { for_good };
    prop_oneof![
        Just(VmPlace::NotFollowed),
        Just(VmPlace::Unknown),
        Just(VmPlace::Here),
        Just(VmPlace::Leaving),
        any::<bool>().prop_map(gone),
    ]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let tap = 1..6u32;
    let event = prop_oneof![
        tap.clone().prop_map(Event::TapComes),
        tap.clone().prop_map(Event::TapGoes),
        tap.clone().prop_map(Event::OperatorAttaches),
        tap.clone().prop_map(Event::OperatorDetaches),
        tap.prop_map(Event::AnotherTakesOff),
        (0..3usize).prop_map(Event::Reload),
        Just(Event::Restart),
        any::<bool>().prop_map(Event::Trouble),
        (1..6u32, places()).prop_map(|(tap, place)| Event::VmIs(tap, place)),
        Just(Event::Look),
        Just(Event::Look),
    ];
    proptest::collection::vec(event, 0..60)
}

/// A host, on which actions do what they say.
struct Host {
    taps: BTreeMap<u32, Option<Attachment>>,
    detached: BTreeSet<u32>,
    vms: BTreeMap<u32, VmPlace>,
    reconciler: Reconciler,
    patterns: Vec<PortPattern>,
    now: Duration,
    in_trouble: bool,
}

impl Host {
    /// Returns the number of actions.
    fn survey_host(&mut self) -> usize {
        self.now += 100 * SECOND;
        let place = |tap: &u32| self.vms.get(tap).copied().unwrap_or(VmPlace::NotFollowed);
        let present_of = |(tap, at): (&u32, &Option<Attachment>)| Present {
            vm: place(tap),
            is_detached_by_operator: self.detached.contains(tap),
            ..present(*tap, at.clone())
        };
        let present: Vec<_> = self.taps.iter().map(present_of).collect();
        let actions = self.reconciler.plan(self.now, &present, &self.patterns);
        for action in &actions {
            self.carry_out(action);
        }
        actions.len()
    }

    fn carry_out(&mut self, action: &Action) {
        let (Action::Attach { key, .. }
        | Action::SetBounds { key, .. }
        | Action::Detach { key }
        | Action::MarkDetached { key, .. }
        | Action::Pause { key }
        | Action::Resume { key }) = action;
        let attachment = self.taps.get_mut(&key.ifindex).expect("an action for a tap that is gone");
        assert_ne!(*attachment, Some(Attachment::ByCommand), "{action:?} of a command's port");
        match action {
            _ if self.in_trouble => drop(self.reconciler.failed(*key, self.now, "why")),
            Action::Attach { key, wanted, .. } => {
                assert_eq!(*attachment, None, "{action:?} of an attached port");
                assert!(!self.detached.contains(&key.ifindex), "an operator has detached it");
                *attachment = Some(of_wanted(wanted));
                self.reconciler.attached(*key);
            }
            Action::SetBounds { wanted, .. } => *attachment = Some(of_wanted(wanted)),
            Action::Detach { .. } => *attachment = None,
            Action::MarkDetached { key, .. } => drop(self.detached.insert(key.ifindex)),
            Action::Pause { .. } => set_migrating(attachment, true),
            Action::Resume { .. } => set_migrating(attachment, false),
        }
    }

    fn reload(&mut self) {
        self.detached.clear();
        self.reconciler.reload();
    }

    fn happens(&mut self, event: Event, configurations: &[Vec<PortPattern>]) {
        match event {
            Event::TapComes(tap) => drop(self.taps.entry(tap).or_insert(None)),
            Event::TapGoes(tap) => {
                self.taps.remove(&tap);
                self.detached.remove(&tap);
            }
            Event::OperatorAttaches(tap) => {
                if let Some(nothing @ None) = self.taps.get_mut(&tap) {
                    *nothing = Some(Attachment::ByCommand);
                    self.detached.remove(&tap);
                }
            }
            Event::OperatorDetaches(tap) => {
                if let Some(attachment) = self.taps.get_mut(&tap)
                    && attachment.take().is_some()
                {
                    self.detached.insert(tap);
                }
            }
            Event::AnotherTakesOff(tap) => {
                if let Some(attachment) = self.taps.get_mut(&tap) {
                    *attachment = None;
                }
            }
            Event::Reload(number) => {
                self.patterns.clone_from(&configurations[number]);
                self.reload();
            }
            Event::Restart => self.reconciler = Reconciler::default(),
            Event::VmIs(tap, place) => drop(self.vms.insert(tap, place)),
            Event::Trouble(trouble) => self.in_trouble = trouble,
            Event::Look => drop(self.survey_host()),
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
            detached: BTreeSet::new(),
            vms: BTreeMap::new(),
            reconciler: Reconciler::default(),
            patterns: configurations[0].clone(),
            now: SECOND,
            in_trouble: false,
        };
        for event in events {
            host.happens(event, &configurations);
        }
        host.in_trouble = false;
        host.vms.clear();
        host.reload();
        // Resume, detach, attach, rest.
        for _ in 0..3 {
            host.survey_host();
        }
        prop_assert_eq!(host.survey_host(), 0);
        for (tap, attachment) in &host.taps {
            let port = present(*tap, None);
            let wanted = Wanted::find_wanted(&port.tap, &host.patterns);
            if *attachment != Some(Attachment::ByCommand) {
                prop_assert_eq!(attachment, &wanted.as_ref().map(of_wanted));
            }
        }
    }
}
