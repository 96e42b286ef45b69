//! One migration under uploads, measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;
use vsnoop_testbed::capture::Capture;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::stage::{Stage, vm_address};
use vsnoop_testbed::vm::{Migration, Vm};
use vsnoop_testbed::vsnoop::Service;

use super::configuration::Configuration;
use super::hosts::Hosts;
use super::uploads::{Upload, upload_steadily};
use super::watch::Watch;
use crate::experiment::rounds::Trial;
use crate::results::statistics::{ascending, percentile};
use crate::results::{Ending, Sample, ms};

const MOST_PAUSES: u32 = 5;
/// The longest wait for an early ACK at the target.
const AGAIN_TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
/// Interval at which packets are taken from the capture's buffer.
const TAKE: Duration = Duration::from_millis(50);
/// A stall that begins this late after the switch is not of the switch.
const SWITCHING: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// That upload at the same time.
    pub clients: usize,
    /// Uploads before the migration begins.
    pub before_s: u64,
    /// New uploads begin until this time after the migration.
    pub after_s: u64,
}

pub struct Migrations<'a> {
    pub session: &'a mut Session,
    pub stage: &'a Stage,
    pub hosts: &'a mut Hosts,
    pub capture: Capture,
    pub settings: Settings,
    /// The quota of the machine's vCPU at both hosts.
    pub quota_percent: u32,
}

/// Events at the hosts.
struct Moved {
    migration: Migration,
    /// The time that `vsnoop pause` took, with all attempts.
    pause: Option<Duration>,
    undelivered_bytes: u64,
    accelerated_ms: Option<f64>,
}

impl Migrations<'_> {
    /// Migrates the machine to the other host.
    pub fn measure(&mut self, trial: &Trial<Configuration>) -> Result<Sample> {
        let configuration = trial.configuration;
        let target = self.hosts.start_target(self.session).context("start QEMU at the target")?;
        target.limit(self.quota_percent)?;
        self.find_machine()?;
        let service = self.attach(configuration)?;
        let (moved, uploads, mut watch) = self.migrate_under_uploads(trial, target)?;
        self.detach(configuration, service)?;
        let mismatched = self.hosts.vm().stats()?.mismatched;
        ensure!(mismatched == 0, "the guest received {mismatched} streams that were not sent");
        let Migration { stopped, resumed, .. } = moved.migration;
        let stall = watch.longest_pause(stopped, resumed + SWITCHING);
        let (mut sample, progress) = (described(&moved, &uploads), watch.progress(stopped));
        sample.values.insert("stall_ms".into(), ms(stall));
        sample.traces.insert("progress".into(), progress);
        Ok(sample)
    }

    /// Lets the guest be heard, so that the bridges know where it is: what the host before has sent
    /// in its name counts no more.
    fn find_machine(&self) -> Result<()> {
        self.stage.client().ip("neigh flush all")?;
        self.stage.client().ping(vm_address(0, false), 3).map(drop)
    }

    /// The service attaches by itself.
    fn attach(&mut self, configuration: Configuration) -> Result<Option<Service>> {
        if configuration.service {
            return self.hosts.serve(self.session).map(Some);
        }
        if configuration.at_source {
            self.hosts.source().attach().context("at the source")?;
        }
        if configuration.at_target {
            self.hosts.target().attach().context("at the target")?;
        }
        Ok(None)
    }

    /// After the migration, when the source has become the next target.
    fn detach(&self, configuration: Configuration, service: Option<Service>) -> Result<()> {
        if service.is_some() {
            self.hosts.target().until_detached()?;
            // It leaves the other port as it is.
            drop(service);
            return self.hosts.source().detach().context("where the machine is");
        }
        if configuration.at_source {
            self.hosts.target().detach().context("where the machine was")?;
        }
        if configuration.at_target {
            self.hosts.source().detach().context("where the machine is")?;
        }
        Ok(())
    }

    fn migrate_under_uploads(
        &mut self,
        trial: &Trial<Configuration>,
        target: Vm,
    ) -> Result<(Moved, Vec<Upload>, Watch)> {
        // Drops what was captured before.
        self.capture.take()?;
        let [stop, watched] = [const { AtomicBool::new(false) }; 2];
        let (client, server) = (self.stage.client(), vm_address(0, false));
        let server = (server, vsnoop_guest::transfer::PORT).into();
        let (hosts, capture, settings) = (&mut *self.hosts, &self.capture, &self.settings);
        thread::scope(|scope| {
            let clients: Vec<_> = (0..settings.clients)
                .map(|_| scope.spawn(|| upload_steadily(client, server, trial.size_bytes, &stop)))
                .collect();
            let watcher = scope.spawn(|| -> Result<Watch> {
                let mut watch = Watch::default();
                while !watched.load(Ordering::Relaxed) {
                    thread::sleep(TAKE);
                    watch.see(&capture.take()?);
                }
                Ok(watch)
            });
            let moved = move_machine(hosts, settings, trial.configuration, target);
            stop.store(true, Ordering::Relaxed);
            let mut uploads = Vec::new();
            for client in clients {
                uploads.push(client.join().map_err(|_| anyhow!("a client panicked"))?);
            }
            watched.store(true, Ordering::Relaxed);
            let watch = watcher.join().map_err(|_| anyhow!("the watcher panicked"))?;
            let uploads = uploads.into_iter().collect::<Result<Vec<_>>>();
            Ok((moved?, uploads?.concat(), watch?))
        })
    }
}

/// All that an operator does, and what can be seen at the hosts.
fn move_machine(
    hosts: &mut Hosts,
    settings: &Settings,
    configuration: Configuration,
    target: Vm,
) -> Result<Moved> {
    wait(Duration::from_secs(settings.before_s))?;
    let pause = configuration.pause.then(|| pause(hosts)).transpose()?;
    let (migration, left) = hosts.migrate(target)?;
    let undelivered_bytes = match configuration.at_source {
        true => hosts.target().outstanding_bytes()?,
        false => 0,
    };
    // Its tap has no reader from now on.
    drop(left);
    let resumed = SystemTime::UNIX_EPOCH + migration.resumed;
    let accelerated = configuration.at_target.then(|| accelerated_again(hosts, resumed));
    let accelerated_ms = accelerated.transpose()?.flatten().map(ms);
    let since = SystemTime::now().duration_since(resumed).unwrap_or_default();
    wait(Duration::from_secs(settings.after_s).saturating_sub(since))?;
    Ok(Moved { migration, pause, undelivered_bytes, accelerated_ms })
}

/// Pauses, again while bytes are on their way.
fn pause(hosts: &Hosts) -> Result<Duration> {
    let begin = Instant::now();
    for _ in 0..MOST_PAUSES {
        interrupt::check()?;
        match hosts.source().pause() {
            Ok(()) => break,
            Err(error) => tracing::info!("{error:#}"),
        }
    }
    Ok(begin.elapsed())
}

/// The time until the first early ACK where the machine is, if there is one.
fn accelerated_again(hosts: &Hosts, resumed: SystemTime) -> Result<Option<Duration>> {
    loop {
        interrupt::check()?;
        let accelerated = hosts.source().early_acks()? > 0;
        let since = SystemTime::now().duration_since(resumed).unwrap_or_default();
        if accelerated || since > AGAIN_TIMEOUT {
            return Ok(accelerated.then_some(since));
        }
        thread::sleep(POLL);
    }
}

fn described(moved: &Moved, uploads: &[Upload]) -> Sample {
    let Migration { stopped, resumed, total, transferred_bytes } = moved.migration;
    let ended = |ending| uploads.iter().filter(|one| one.ending == ending).count() as f64;
    let (across, others): (Vec<&Upload>, Vec<&Upload>) =
        uploads.iter().partition(|one| one.begin < resumed && one.end > stopped);
    let longest = across.iter().map(|one| one.end - one.begin).max().unwrap_or_default();
    let exact = others.iter().filter(|one| one.ending == Ending::Exact);
    let usual = ascending(exact.map(|one| ms(one.end - one.begin)));
    let (failed, hung) = (ended(Ending::Broken), ended(Ending::Hung));
    let values = [
        // Time for which the guest ran at neither host.
        ("downtime_ms", Some(ms(moved.migration.downtime()))),
        // From QEMU's command to its end.
        ("migrated_ms", Some(ms(total))),
        ("transferred_bytes", Some(transferred_bytes as f64)),
        ("pause_ms", moved.pause.map(ms)),
        ("undelivered_bytes", Some(moved.undelivered_bytes as f64)),
        ("requests", Some(uploads.len() as f64)),
        // Those without an end within the limit are among the failed ones.
        ("failed", Some(failed + hung)),
        ("longest_request_ms", Some(ms(longest))),
        ("usual_request_ms", percentile(&usual, 50.0)),
        ("accelerated_ms", moved.accelerated_ms),
    ];
    let ending = match (hung, failed) {
        (0.0, 0.0) => Ending::Exact,
        (0.0, _) => Ending::Broken,
        _ => Ending::Hung,
    };
    let values = values.into_iter().filter_map(|(name, value)| Some((name, value?)));
    Sample { ending, ..Sample::with(values) }
}

fn wait(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        interrupt::check()?;
        thread::sleep(POLL.min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}
