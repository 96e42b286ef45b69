//! Recommends memory for the holds of this host.
//!
//! While a VM waits for a CPU, its senders continue, and the host keeps their data. So a hold needs
//! the data of one wait, bandwidth x delay; twice that, because the VM acknowledges the copies of
//! one wait while those of the next arrive. A sender continues at full rate only with a round
//! trip's worth of data in flight, all of which needs room. The sum is bandwidth x (2 x delay +
//! round trip).
//!
//! The bandwidth is that of the host's fastest link. The round trip is the 90th percentile of the
//! handshakes of the port's connections, near and far. The delay is measured: for an attached port
//! the 99th percentile of its VM's ACK delay; else the time for which a quota stops its vCPUs, or
//! their longest wait for a CPU during the measurement.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use vsnoop_host::config::{Config, HOLD_LEAST, HOLD_MOST};
use vsnoop_host::quota::Quotas;
use vsnoop_host::system::netns::Netns;
use vsnoop_host::system::vcpu::Vcpu;
use vsnoop_host::system::{kernel, memory};
use vsnoop_host::units;

use super::waits::Waits;
use crate::output::histogram::Histogram;

/// A VM that answers sooner needs no hold.
const WORTH_IT_NS: u64 = 1_000_000;
/// Fewer ACKs than this say little of the late ones.
const ENOUGH_ACKS: u64 = 100;
/// Assumed bandwidth if no link has a speed.
const ASSUMED_BITS: u64 = 1_000_000_000;

/// Measured delay of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Delay {
    pub delay_ns: u64,
    pub delay_from: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    AckDelayP99,
    Quota,
    /// The longest wait for a CPU.
    VcpuWait,
}

impl Source {
    pub fn as_text(self) -> &'static str {
        match self {
            Self::AckDelayP99 => "ACK delay of the VM, p99",
            Self::Quota => "its quota stops it so long",
            Self::VcpuWait => "its longest wait for a CPU",
        }
    }
}

/// Recommended hold for one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Recommended {
    pub size_bytes: u64,
    #[serde(flatten)]
    pub delay: Delay,
    /// 90th percentile of handshakes; null before there was any: then the near path is assumed.
    pub round_trip_ns: Option<u64>,
}

/// The host's memory for holds, and its needs.
#[derive(Debug, Serialize)]
pub struct Budget {
    /// Speed of the host's fastest link, bits per second.
    pub bandwidth_bits: u64,
    /// Name of that link; null if the bandwidth is an assumption.
    pub bandwidth_of: Option<String>,
    /// Needed by the VMs that were examined and have no hold.
    pub needed_bytes: u64,
    /// Total of all holds, and where it is set.
    pub total_bytes: u64,
    pub total_from: String,
    /// Quotas of the attached ports.
    pub taken_bytes: u64,
    /// The quota of a port that is attached without --hold; null without the privileges to know.
    pub default_bytes: Option<u64>,
    /// Taps of VMs that share the memory.
    pub vms: u64,
    pub memory_bytes: u64,
}

impl Budget {
    /// Without `needed_bytes`. `taken_bytes` is known with privileges only.
    pub fn of_host(config: &Config, netns: &Netns) -> Result<Option<Self>> {
        let Some(memory_bytes) = memory::host_memory() else { return Ok(None) };
        let (bandwidth_of, bandwidth_bits) = fastest_link(Path::new("/sys/class/net")).unzip();
        let quotas = match kernel::require() {
            Ok(()) => Quotas::of_host(config, netns, None)?,
            Err(_) => None,
        };
        Ok(Some(Self {
            bandwidth_bits: bandwidth_bits.unwrap_or(ASSUMED_BITS),
            bandwidth_of,
            needed_bytes: 0,
            total_bytes: config.total_bytes(memory_bytes),
            total_from: config.total_source(),
            taken_bytes: quotas.as_ref().map_or(0, Quotas::given_bytes),
            default_bytes: quotas.as_ref().map(Quotas::default_bytes),
            vms: quotas.as_ref().map_or(0, |quotas| quotas.vms),
            memory_bytes,
        }))
    }

    /// The quota that `attach` gives without --hold.
    pub fn default_text(&self) -> String {
        self.default_bytes.map_or_else(String::new, |bytes| {
            format!(
                "; without --hold a port gets {}, as {} share them",
                units::bytes(bytes),
                units::plural(self.vms, "VM")
            )
        })
    }

    pub fn recommend_hold(&self, delay: Delay, round_trip_ns: Option<u64>) -> Recommended {
        let time_ns = 2 * u128::from(delay.delay_ns) + u128::from(round_trip_ns.unwrap_or(0));
        let arriving = u128::from(self.bandwidth_bits).saturating_mul(time_ns) / 8_000_000_000;
        let bytes = u64::try_from(arriving).unwrap_or(u64::MAX).min(HOLD_MOST);
        let size_bytes = bytes.next_power_of_two().clamp(HOLD_LEAST, HOLD_MOST);
        Recommended { size_bytes, delay, round_trip_ns }
    }
}

/// Delay of a VM's vCPUs between two samples; `None` if it is too short to matter.
pub fn seen_of_vcpus(before: &[Vcpu], now: &[Vcpu], waits: &Waits) -> Option<Delay> {
    let seen = now.iter().filter_map(|vcpu| {
        let earlier = before.iter().find(|earlier| earlier.tid == vcpu.tid)?;
        stopped_by_quota(earlier, vcpu).or_else(|| {
            let delay_ns = waits.longest_ns(vcpu.tid)?;
            Some(Delay { delay_ns, delay_from: Source::VcpuWait })
        })
    });
    seen.max_by_key(|delay| delay.delay_ns).filter(|delay| delay.delay_ns >= WORTH_IT_NS)
}

/// The part of a period for which an exhausted quota stops it.
fn stopped_by_quota(before: &Vcpu, now: &Vcpu) -> Option<Delay> {
    let (earlier, quota) = (before.quota?, now.quota?);
    if quota.throttled_ns <= earlier.throttled_ns || quota.cpus >= 1.0 {
        return None;
    }
    let delay_ns = (quota.period_us as f64 * 1e3 * (1.0 - quota.cpus)) as u64;
    Some(Delay { delay_ns, delay_from: Source::Quota })
}

/// Delay that the hooks of an attached port have measured.
pub fn seen_of_acks(ack_delay: &Histogram) -> Option<Delay> {
    let delay_ns = ack_delay.p99.filter(|_| ack_delay.count >= ENOUGH_ACKS)?;
    (delay_ns >= WORTH_IT_NS).then_some(Delay { delay_ns, delay_from: Source::AckDelayP99 })
}

/// Name, and bits per second. Virtual devices have no speed, or an arbitrary one.
fn fastest_link(devices: &Path) -> Option<(String, u64)> {
    let links = fs::read_dir(devices).ok()?.flatten().filter_map(|entry| {
        let path = entry.path();
        if !path.join("device").exists() {
            return None;
        }
        // -1 or an error while the link is down.
        let megabits = fs::read_to_string(path.join("speed")).ok()?.trim().parse::<u64>().ok()?;
        (megabits > 0).then(|| (entry.file_name().to_string_lossy().into_owned(), megabits))
    });
    let (name, megabits) = links.max_by_key(|(_, megabits)| *megabits)?;
    Some((name, megabits * 1_000_000))
}

#[cfg(test)]
mod tests {
    use vsnoop_host::system::cgroup::Quota;

    use super::*;

    const MS: u64 = 1_000_000;

    fn budget(bandwidth_bits: u64) -> Budget {
        Budget {
            bandwidth_bits,
            bandwidth_of: None,
            needed_bytes: 0,
            total_bytes: 0,
            total_from: String::new(),
            taken_bytes: 0,
            default_bytes: None,
            vms: 0,
            memory_bytes: 0,
        }
    }

    fn vcpu(tid: i32, quota: Option<Quota>) -> Vcpu {
        let text = String::new;
        let (name, policy, affinity) = (text(), text(), text());
        Vcpu { tid, name, state: 'R', policy, affinity, run_ns: 0, wait_ns: 0, quota }
    }

    #[test]
    fn a_hold_has_room_for_two_waits_at_full_bandwidth_and_stays_within_its_bounds() {
        let delay = |ms| Delay { delay_ns: ms * MS, delay_from: Source::VcpuWait };
        // 10 Gb/s for 60 ms are 75 MB.
        assert_eq!(budget(10_000_000_000).recommend_hold(delay(60), None).size_bytes, 256 << 20);
        // 1 Gb/s for 60 ms are 7.5 MB, twice that 14.3 MiB.
        assert_eq!(budget(1_000_000_000).recommend_hold(delay(60), None).size_bytes, 16 << 20);
        // A sender 200 ms away has 25 MB more in flight.
        let far = budget(1_000_000_000).recommend_hold(delay(60), Some(200 * MS));
        assert_eq!(far.size_bytes, 64 << 20);
        assert_eq!(budget(1_000_000).recommend_hold(delay(1), None).size_bytes, HOLD_LEAST);
        let forever = Delay { delay_ns: u64::MAX, delay_from: Source::VcpuWait };
        assert_eq!(budget(u64::MAX).recommend_hold(forever, None).size_bytes, HOLD_MOST);
    }

    #[test]
    fn the_vcpu_that_waits_longest_decides() {
        let vcpus = [vcpu(1, None), vcpu(2, None)];
        // The third was not there before.
        let now = [vcpu(1, None), vcpu(2, None), vcpu(3, None)];
        let waits = Waits::from_readings(&[
            (1, 0, 5),
            (2, 0, 5),
            (3, 0, 0),
            (1, 300 * MS, 15),
            (2, 100 * MS, 6),
            (3, 900 * MS, 1),
        ]);
        let seen = seen_of_vcpus(&vcpus, &now, &waits);
        assert_eq!(seen, Some(Delay { delay_ns: 100 * MS, delay_from: Source::VcpuWait }));
    }

    #[test]
    fn a_vcpu_that_does_not_wait_or_had_no_cpu_says_nothing() {
        let vcpus = [vcpu(1, None)];
        assert_eq!(
            seen_of_vcpus(&vcpus, &vcpus, &Waits::from_readings(&[(1, 0, 0), (1, MS, 100)])),
            None
        );
        assert_eq!(
            seen_of_vcpus(&vcpus, &vcpus, &Waits::from_readings(&[(1, 7, 7), (1, 7, 7)])),
            None
        );
    }

    #[test]
    fn a_quota_that_is_used_up_stops_a_vcpu_for_the_rest_of_its_period() {
        let quota = |throttled_ns| Some(Quota { cpus: 0.25, period_us: 100_000, throttled_ns });
        let (before, now) = ([vcpu(1, quota(0))], [vcpu(1, quota(MS))]);
        let seen = seen_of_vcpus(&before, &now, &Waits::default());
        assert_eq!(seen, Some(Delay { delay_ns: 75 * MS, delay_from: Source::Quota }));
        // A quota that is not exhausted stops no vCPU.
        let seen = seen_of_vcpus(&before, &before, &Waits::default());
        assert_eq!(seen, None);
    }

    #[test]
    fn acks_count_when_there_are_enough_and_late_ones() {
        let delay_from = |count, p99| {
            seen_of_acks(&Histogram { count, p50: None, p90: None, p99, buckets: Vec::new() })
        };
        let delay = Delay { delay_ns: 40 * MS, delay_from: Source::AckDelayP99 };
        assert_eq!(delay_from(100, Some(40 * MS)), Some(delay));
        assert_eq!(delay_from(99, Some(40 * MS)), None);
        assert_eq!(delay_from(100, Some(MS - 1)), None);
        assert_eq!(delay_from(0, None), None);
    }

    #[test]
    fn the_fastest_real_link_gives_the_bandwidth() {
        let devices = std::env::temp_dir().join(format!("vsnoop-links-{}", std::process::id()));
        for (name, is_real, speed) in [
            ("a", true, "1000\n"),
            ("b", true, "25000\n"),
            ("c", true, "-1\n"),
            ("t", false, "90000\n"),
        ] {
            fs::create_dir_all(devices.join(name)).unwrap();
            fs::write(devices.join(name).join("speed"), speed).unwrap();
            if is_real {
                fs::create_dir(devices.join(name).join("device")).unwrap();
            }
        }
        let found = fastest_link(&devices);
        fs::remove_dir_all(&devices).unwrap();
        assert_eq!(found, Some(("b".into(), 25_000_000_000)));
        assert_eq!(fastest_link(&devices), None);
    }
}
