//! The loop: waits for events, looks at what there is, and carries out the plan.

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sd_notify::NotifyState;
use vsnoop_host::config::Config;
use vsnoop_host::config::port::PortPattern;
use vsnoop_host::detached_by_operator::Marks;
use vsnoop_host::error::with_causes;
use vsnoop_host::incast;
use vsnoop_host::lock::CommandLock;
use vsnoop_host::sweep;
use vsnoop_host::units;
use vsnoop_metrics::Background;

use crate::act::{self, Draining};
use crate::control::{DetachedTap, FailedPort, Response, Server, State};
use crate::departures::Departures;
use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::namespaces::Namespaces;
use crate::qmp::{Monitors, Phase};
use crate::reconcile::{Action, Attachment, GONE, PortKey, Present, Reconciler, VmPlace};
use crate::signals::Signals;
use crate::survey::{Seen, Survey};

/// Interval of looks while a port drains, a namespace is about to come, or a command has the lock.
const STEP: Duration = Duration::from_millis(50);

/// Longest work under the lock of commands: a command may wait for it, or a VM begin to migrate.
const AT_WORK: Duration = Duration::from_millis(500);

/// Interval of looks for helper and engine while a port is attached: nothing else starts them when
/// both are killed together. Without an engine held bytes are given up after 30 s.
const BACKGROUND: Duration = Duration::from_secs(1);

/// Pause after a look that failed.
const TROUBLE: Duration = Duration::from_secs(1);

pub struct Options {
    /// `None`: the default file, which need not be there.
    pub config: Option<PathBuf>,
    /// Gives up the privileges that a service with this configuration does not need. Called while
    /// there is one thread.
    pub limit_privileges: fn(&Config),
    /// Starts helper and engine if they do not run.
    pub start_background: fn(),
    /// Do they run?
    pub background: fn() -> Background,
    /// Lines that the log of this process has lost.
    pub log_lines_lost: fn() -> u64,
}

struct Service {
    options: Options,
    config: Config,
    patterns: Vec<PortPattern>,
    namespaces: Namespaces,
    signals: Signals,
    control: Server,
    metrics: Metrics,
    survey: Survey,
    monitors: Monitors,
    departures: Departures,
    reconciler: Reconciler,
    /// Why taps are left alone, as the log has it.
    no_vms_logged: HashMap<PortKey, String>,
    draining: Vec<Draining>,
    began: Instant,
    /// Something is under way that no event ends.
    is_hurried: bool,
    /// A port is attached, which needs helper and engine.
    is_any_attached: bool,
    is_troubled: bool,
    watchdog: Option<Duration>,
}

/// Runs until a signal ends it; attached ports stay as they are.
pub fn run(options: Options) -> Result<()> {
    // Signals and events first: what happens from now on is not missed.
    let signals = Signals::catch()?;
    let namespaces = Namespaces::open()?;
    let config = Config::read(options.config.as_deref())?;
    (options.limit_privileges)(&config);
    let control = Server::open(signals.waker()?)?;
    let metrics = Metrics::start(options.background)?;
    let mut service = Service {
        patterns: patterns(&config),
        options,
        config,
        namespaces,
        signals,
        control,
        metrics,
        survey: Survey::default(),
        monitors: Monitors::default(),
        departures: Departures::open()?,
        reconciler: Reconciler::default(),
        no_vms_logged: HashMap::new(),
        draining: Vec::new(),
        began: Instant::now(),
        is_hurried: false,
        is_any_attached: false,
        is_troubled: false,
        watchdog: sd_notify::watchdog_enabled(),
    };
    if let Err(error) = Marks::of_host().service_starts() {
        tracing::warn!("{}", with_causes(&error));
    }
    service.say_what_is_configured();
    service.metrics.begin(service.config.metrics);
    notify(&[NotifyState::Ready]);
    while !service.signals.is_end() {
        if service.signals.is_reload() {
            // The log says what came of it.
            let _ = service.reload();
        }
        while let Some(order) = service.control.order() {
            let response = match service.reload() {
                Ok(()) => Response::Reloaded { tables: service.tables() },
                Err(reason) => Response::Refused { reason },
            };
            order.answer(response);
        }
        service.metrics.try_again();
        if let Err(error) = service.survey_host() {
            tracing::error!("{}; tried again in {TROUBLE:?}", with_causes(&error));
            service.is_troubled = true;
        }
        notify(&[NotifyState::Watchdog]);
        service.wait()?;
    }
    notify(&[NotifyState::Stopping]);
    tracing::info!("service ends; attached ports stay as they are");
    Ok(())
}

/// Without a table every tap is observed.
fn patterns(config: &Config) -> Vec<PortPattern> {
    match config.ports.is_empty() {
        true => vec![PortPattern::observe_all()],
        false => config.ports.clone(),
    }
}

/// Without systemd this does nothing; what it cannot be told it learns from the log.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!("systemd was not notified: {error}");
    }
}

impl Service {
    fn say_what_is_configured(&self) {
        let file = self.config.file.display();
        match (self.config.is_there, self.config.ports.len()) {
            (true, 0) => tracing::info!("{file} has no [[port]]: all taps are observed"),
            (true, count) => {
                let tables = units::plural(count as u64, "table");
                tracing::info!("{file}: {tables} [[port]]");
            }
            (false, _) => tracing::info!("there is no {file}: all taps are observed"),
        }
    }

    /// Or why the configuration stays as it was.
    fn reload(&mut self) -> std::result::Result<(), String> {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => tracing::debug!("no time for systemd: {error}"),
        }
        let done = self.read_again();
        match &done {
            Ok(()) => {
                self.reconciler.reload();
                // What operators took off: a reload asks for what the configuration says.
                if let Err(error) = Marks::of_host().clear() {
                    tracing::warn!("{}", with_causes(&error));
                }
                tracing::info!("reloaded");
                self.say_what_is_configured();
            }
            Err(reason) => tracing::error!("{reason}; the configuration stays as it was"),
        }
        self.metrics.note(|facts| facts.reloaded(done.is_ok()));
        notify(&[NotifyState::Ready]);
        done
    }

    /// Changes everything, or nothing.
    fn read_again(&mut self) -> std::result::Result<(), String> {
        let config = Config::read(self.options.config.as_deref());
        let config = config.map_err(|error| with_causes(&error))?;
        self.metrics.listen(config.metrics).map_err(|error| with_causes(&error))?;
        self.patterns = patterns(&config);
        self.config = config;
        Ok(())
    }

    /// Names of the tables `[[port]]`.
    fn tables(&self) -> Vec<String> {
        self.config.ports.iter().map(|pattern| pattern.name.clone()).collect()
    }

    /// Logs once why a tap is left alone that the configuration means.
    fn say_what_is_no_vm(&mut self, present: &[Present]) {
        let no_vms = self.survey.no_vms(present, &self.patterns);
        let now: HashMap<_, _> = no_vms
            .map(|(port, why)| (port.key, format!("tap {}: {why}", port.tap.interface)))
            .collect();
        for (key, text) in &now {
            if self.no_vms_logged.get(key) != Some(text) {
                tracing::info!(
                    "{text}: it is left alone, unless `interface` names it without * and ?"
                );
            }
        }
        self.no_vms_logged = now;
    }

    fn state(&self, present: &[Present]) -> State {
        let failed = present.iter().filter_map(|port| {
            Some(FailedPort {
                port: port.tap.interface.clone(),
                netns: port.key.netns,
                reason: self.reconciler.reason(port.key)?.to_owned(),
            })
        });
        let no_vms = self.survey.no_vms(present, &self.patterns).map(|(port, why)| FailedPort {
            port: port.tap.interface.clone(),
            netns: port.key.netns,
            reason: why.to_owned(),
        });
        let detached_by_operator =
            present.iter().filter(|port| port.is_detached_by_operator && port.attachment.is_none());
        let detached_by_operator = detached_by_operator
            .map(|port| DetachedTap { port: port.tap.interface.clone(), netns: port.key.netns });
        let (metrics, metrics_failed) = self.metrics.state();
        State {
            pid: std::process::id() as i32,
            file: self.config.file.clone(),
            tables: self.tables(),
            failed: failed.collect(),
            detached_by_operator: detached_by_operator.collect(),
            no_vms: no_vms.collect(),
            failed_monitors: self.monitors.failed(),
            metrics,
            metrics_failed,
            log_lines_lost: (self.options.log_lines_lost)(),
        }
    }

    /// To the control socket and to the metrics.
    fn publish(&self, state: State) {
        self.metrics.note(|facts| {
            facts.tables = state.tables.len();
            facts.failed_ports = state.failed.len();
            facts.failed_monitors = state.failed_monitors.len();
        });
        self.control.publish(state);
    }

    /// Looks at everything, and does what is to be done.
    fn survey_host(&mut self) -> Result<()> {
        self.control.begin_look();
        self.is_hurried = self.namespaces.follow(&self.patterns)?;
        let mut seen = self.survey.survey_taps(&self.namespaces, &self.patterns)?;
        self.say_what_is_no_vm(&seen.present);
        self.follow_vms(&mut seen.present);
        let now = self.began.elapsed();
        let mut actions = self.reconciler.plan(now, &seen.present, &self.patterns);
        actions.extend(self.detach_unnamed(&seen));
        self.follow_migrations(&actions);
        let departed = self.departures.find_departed(&seen, &self.survey, &self.monitors);
        self.metrics.note(|facts| facts.undelivered_bytes += departed.bytes);
        self.is_hurried |= departed.is_hurried;
        self.begin_to_detach(&actions);
        // Attaching may take its time.
        self.publish(self.state(&seen.present));
        self.act(&actions)?;
        self.publish(self.state(&seen.present));
        let is_attached = |port: &Present| port.attachment.is_some();
        self.is_any_attached = !actions.is_empty() || seen.present.iter().any(is_attached);
        if self.is_any_attached {
            (self.options.start_background)();
        }
        Ok(())
    }

    /// Detaches ports of the service in network namespaces that no table names any more. One that
    /// an operator has paused is left until it is resumed, as elsewhere.
    fn detach_unnamed(&self, seen: &Seen) -> Vec<Action> {
        let unnamed = seen.pinned.iter().filter(|(key, attachment)| {
            let is_paused = matches!(attachment, Attachment::ByService { is_paused: true, .. });
            self.namespaces.is_unnamed(key.netns) && !is_paused
        });
        unnamed.map(|(key, _)| Action::Detach { key: *key }).collect()
    }

    /// Asks the monitors of VMs where these are.
    fn follow_vms(&mut self, present: &mut [Present]) {
        let now = Instant::now();
        self.monitors.follow(&self.patterns, now);
        for port in present {
            let pattern = self.patterns.iter().find(|pattern| pattern.matches(&port.tap));
            if pattern.is_none_or(|pattern| pattern.qmp().is_empty()) {
                continue;
            }
            let pid = self.survey.pid(port.key).filter(|_| port.is_held);
            let phase = pid.and_then(|pid| self.monitors.phase(pid));
            port.vm = match phase {
                None => VmPlace::Unknown,
                Some(Phase::Here) => VmPlace::Here,
                Some(Phase::Leaving) => VmPlace::Leaving,
                Some(Phase::Gone { since }) => VmPlace::Gone { for_good: now - since >= GONE },
            };
        }
    }

    /// Carries out the actions that need no lock, and must not wait for one.
    fn follow_migrations(&mut self, actions: &[Action]) {
        for action in actions {
            let done = match action {
                Action::Pause { key } => act::set_migrating(*key, true),
                Action::Resume { key } => act::set_migrating(*key, false),
                _ => continue,
            };
            if let Err(error) = done {
                tracing::warn!("{}", with_causes(&error));
            }
            // The next look sees what else is to be done.
            self.is_hurried = true;
        }
    }

    fn begin_to_detach(&mut self, actions: &[Action]) {
        let under_way: HashSet<PortKey> = self.draining.iter().map(|port| port.key).collect();
        for action in actions {
            let Action::Detach { key } = action else { continue };
            if under_way.contains(key) {
                continue;
            }
            match Draining::begin(*key) {
                Ok(draining) => self.draining.push(draining),
                Err(error) => tracing::warn!("{}", with_causes(&error)),
            }
        }
    }

    /// Does the actions that need the lock of commands. Others get the lock after [`AT_WORK`], and
    /// the next look goes on.
    fn act(&mut self, actions: &[Action]) -> Result<()> {
        self.is_hurried |= !self.draining.is_empty();
        let needs_no_lock = |action: &Action| {
            matches!(action, Action::Detach { .. } | Action::Pause { .. } | Action::Resume { .. })
        };
        let is_due = self.draining.iter().any(Draining::is_over);
        if !is_due && actions.iter().all(needs_no_lock) {
            return Ok(());
        }
        let Some(lock) = CommandLock::try_take()? else {
            self.is_hurried = true;
            return Ok(());
        };
        if let Err(error) = sweep::sweep(&lock) {
            tracing::warn!("{}", with_causes(&error));
        }
        let since = Instant::now();
        self.finish_detaching(since);
        for action in actions {
            if self.signals.is_end() {
                break;
            }
            if since.elapsed() > AT_WORK {
                self.is_hurried = true;
                break;
            }
            self.carry_out(action);
            notify(&[NotifyState::Watchdog]);
        }
        // Removes the uplink of a port that could not be attached.
        incast::sweep(&lock)?;
        Ok(())
    }

    fn finish_detaching(&mut self, since: Instant) {
        let (over, left) =
            std::mem::take(&mut self.draining).into_iter().partition(Draining::is_over);
        self.draining = left;
        let over: Vec<Draining> = over;
        // A detached port may have to be attached with other settings.
        self.is_hurried |= !over.is_empty();
        for draining in over {
            if since.elapsed() > AT_WORK {
                self.draining.push(draining);
                continue;
            }
            notify(&[NotifyState::Watchdog]);
            match draining.finish() {
                Ok(resets) => self.metrics.note(|facts| facts.detached_resets += resets),
                Err(error) => tracing::warn!("{}", with_causes(&error)),
            }
        }
    }

    fn carry_out(&mut self, action: &Action) {
        let (key, done) = match action {
            Action::Attach { key, name, wanted } => {
                let Some(watched) = self.namespaces.find(key.netns) else { return };
                if Marks::of_host().has(watched.mark(key.ifindex)) {
                    // An operator has detached it since the look; the lock excludes that now.
                    return;
                }
                let is_end = || self.signals.is_end();
                (*key, act::attach(name, &watched.netns, wanted, &self.config, &is_end))
            }
            Action::SetBounds { key, wanted } => {
                let Some(watched) = self.namespaces.find(key.netns) else { return };
                (*key, act::set_bounds(*key, &watched.netns, wanted, &self.config))
            }
            Action::MarkDetached { key, name } => {
                let Some(watched) = self.namespaces.find(key.netns) else { return };
                (*key, act::mark_detached(name, &watched.netns, watched.mark(key.ifindex)))
            }
            Action::Detach { .. } | Action::Pause { .. } | Action::Resume { .. } => return,
        };
        match (done, action) {
            (Ok(()), Action::Attach { .. }) => self.reconciler.attached(key),
            (Ok(()), _) => {}
            (Err(error), _) => {
                let text = with_causes(&error);
                let is_first = self.reconciler.failed(key, self.began.elapsed(), &text);
                match is_first {
                    true => tracing::warn!("{text}; tried again later"),
                    false => tracing::debug!("{text}"),
                }
            }
        }
    }

    /// Until something happens, or it is time for what needs no event.
    fn wait(&mut self) -> Result<()> {
        let step = self.is_hurried.then_some(STEP);
        let now = self.began.elapsed();
        let again_at = self.reconciler.again_at(now);
        let retry = again_at.map(|again_at| again_at.saturating_sub(now));
        let trouble = std::mem::take(&mut self.is_troubled).then_some(TROUBLE);
        // Helper and engine may end together, and need not be its children.
        let background = self.is_any_attached.then_some(BACKGROUND);
        let instant = Instant::now();
        let monitors = self.monitors.due(instant).map(|due| due.saturating_duration_since(instant));
        // A sign of life in half of the time that systemd allows.
        let watchdog = self.watchdog.map(|most| most / 2);
        let metrics = self.metrics.pause();
        let passed_on = self.survey.pause();
        let names = self.namespaces.pause(&self.patterns);
        let timeouts =
            [step, retry, trouble, background, monitors, watchdog, metrics, passed_on, names];
        let timeout = timeouts.into_iter().flatten().min();
        let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
            PollTimeout::try_from(timeout + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        let descriptors = self.namespaces.descriptors();
        let mut polled: Vec<_> = descriptors
            .into_iter()
            .chain(self.monitors.descriptors(instant))
            .chain([self.signals.descriptor(), self.departures.descriptor()])
            .map(|fd: BorrowedFd<'_>| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        match poll(&mut polled, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::Wait(errno.into())),
        }
        self.signals.take();
        self.departures.take();
        self.namespaces.take()
    }
}
