//! Quotas: the memory that the holds of ports may take.
//!
//! Memory is taken only when it is used, so a quota is an upper bound and no reservation. The sum
//! of all quotas stays within a part of the host's memory (`hold.total` of the configuration), so
//! that the worst case fits. A default quota is never refused: only the smallest hold may exceed
//! that part.

use vsnoop_bpf::types::{HOLD_CHUNK, policy, port_run};

use crate::config::{Config, HOLD_LEAST};
use crate::error::{Error, Result, Unfit, unfit};
use crate::ports::{self, Attached};
use crate::system::netns::Netns;
use crate::system::{holder, memory, netdev};
use crate::units;

/// Largest default; enough for 1 Gb/s during half a second.
const DEFAULT_MOST: u64 = 64 << 20;

/// The host's memory for holds.
#[derive(Debug)]
pub struct Quotas {
    pub total_bytes: u64,
    /// Where `total` is set.
    pub total_from: String,
    /// Quotas of the attached ports.
    pub given: Vec<(String, u64)>,
    /// Taps, with or without a VM, that this process can see.
    pub vms: u64,
}

impl Quotas {
    /// `None` if /proc does not have the host's memory, and the configuration sets no total.
    /// `except`: a port whose quota is about to change.
    pub fn of_host(
        config: &Config,
        netns: &Netns,
        except: Option<&Attached>,
    ) -> Result<Option<Self>> {
        let host = memory::host_memory();
        let Some(total_bytes) = config.total.or_else(|| Some(config.total_bytes(host?))) else {
            return Ok(None);
        };
        let mut attached = ports::inventory()?.ports;
        attached.retain(|port| except.is_none_or(|except| except.port.id() != port.port.id()));
        let vms = vms(netns)?.max(attached.len() as u64);
        let given = given(&attached)?;
        Ok(Some(Self { total_bytes, total_from: config.total_source(), given, vms }))
    }

    pub fn given_bytes(&self) -> u64 {
        self.given.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The quota of a port without an option:
    ///
    /// ```text
    /// min(total / VMs, total - given, 64 MiB), rounded down to a power of two, 256 KiB at least
    /// ```
    ///
    /// So all VMs of the host can be attached, with the same quota.
    pub fn default_bytes(&self) -> u64 {
        let share = self.total_bytes / self.vms.max(1);
        let left = self.total_bytes.saturating_sub(self.given_bytes());
        let bytes = share.min(left).clamp(HOLD_LEAST, DEFAULT_MOST);
        1 << bytes.ilog2()
    }

    /// Refuses a quota that exceeds what is left.
    pub fn refuse_too_much(&self, port: &str, wanted: u64) -> Result<()> {
        let given = self.given_bytes();
        if given + wanted <= self.total_bytes {
            return Ok(());
        }
        let others = match &self.given[..] {
            [] => "no other port has one; give a smaller --hold, or raise the total".to_owned(),
            given_to => format!(
                "{} are given ({}); give a smaller --hold, lower that of another port (vsnoop set), or \
                 raise the total",
                units::bytes(given),
                given_to
                    .iter()
                    .map(|(name, bytes)| format!("{name} {}", units::bytes(*bytes)))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        };
        Err(unfit(
            Unfit::Other,
            format!(
                "port {port} asks for a hold of {}, but all holds of this host may have {} ({}), and {others}",
                units::bytes(wanted),
                units::bytes(self.total_bytes),
                self.total_from
            ),
        ))
    }
}

/// The quota that `attach` and `set` give: the requested one if there is enough, else the default.
pub fn bytes_for(
    port: &str,
    asked: Option<u32>,
    config: &Config,
    netns: &Netns,
    except: Option<&Attached>,
) -> Result<u32> {
    let quotas = Quotas::of_host(config, netns, except)?;
    match (asked, quotas) {
        (Some(bytes), quotas) => {
            let quotas = quotas.ok_or(Error::UnknownMemory)?;
            quotas.refuse_too_much(port, bytes.into())?;
            Ok(bytes)
        }
        (None, Some(quotas)) => Ok(quotas.default_bytes() as u32),
        (None, None) => Ok(HOLD_LEAST as u32),
    }
}

/// Quota of a port, bytes; 0: it is only observed.
pub fn bytes_of(policy: &policy) -> u64 {
    if policy.run == port_run::PORT_OBSERVE {
        return 0;
    }
    u64::from(policy.hold_chunks) * u64::from(HOLD_CHUNK)
}

/// Ports with a hold, and their quotas.
fn given(ports: &[Attached]) -> Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    for attached in ports {
        match bytes_of(&attached.port.policy()?) {
            0 => {}
            bytes => found.push((attached.name.clone(), bytes)),
        }
    }
    Ok(found)
}

/// Taps of the namespace, and taps of other namespaces that a process holds.
fn vms(netns: &Netns) -> Result<u64> {
    let here = netns.run(netdev::list)?.iter().filter(|device| device.tap.is_some()).count();
    let holders = holder::of_all_taps();
    let elsewhere = holders.keys().filter(|(_, inode)| *inode != netns.inode).count();
    Ok((here + elsewhere) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas(total_bytes: u64, given: &[u64], vms: u64) -> Quotas {
        let given = given.iter().map(|bytes| ("tap".to_owned(), *bytes)).collect();
        Quotas { total_bytes, total_from: "hold.total in /f.toml".into(), given, vms }
    }

    #[test]
    fn the_default_is_a_share_of_what_is_left() {
        const GIB: u64 = 1 << 30;
        assert_eq!(quotas(6 * GIB, &[], 3).default_bytes(), 64 << 20, "no more than that");
        assert_eq!(quotas(6 * GIB, &[], 200).default_bytes(), 16 << 20, "a 200th is 30 MiB");
        let most_given = [5 * GIB + 1000 * (1 << 20)];
        assert_eq!(quotas(6 * GIB, &most_given, 3).default_bytes(), 16 << 20, "24 MiB are left");
        assert_eq!(quotas(6 * GIB, &[7 * GIB], 3).default_bytes(), HOLD_LEAST, "never refused");
        assert_eq!(quotas(0, &[], 0).default_bytes(), HOLD_LEAST);
    }

    #[test]
    fn all_vms_of_a_host_get_their_default() {
        for (total, vms) in [(1 << 30, 7), (20 << 20, 3), (3 << 30, 1000)] {
            let mut given = Vec::new();
            for _ in 0..vms {
                given.push(quotas(total, &given, vms).default_bytes());
            }
            assert!(given.iter().all(|bytes| *bytes == given[0]), "{given:?}");
        }
    }

    #[test]
    fn more_than_is_left_is_refused_and_says_who_has_it() {
        let scarce = quotas(20 << 20, &[16 << 20], 2);
        scarce.refuse_too_much("tap1", 4 << 20).unwrap();
        let error = scarce.refuse_too_much("tap1", 8 << 20).unwrap_err().to_string();
        for word in ["tap1", "8 MiB", "20 MiB", "/f.toml", "tap 16 MiB", "vsnoop set"] {
            assert!(error.contains(word), "{word:?} is not in: {error}");
        }
        // As for `set`, where the port itself has a hold.
        let alone = quotas(1 << 20, &[], 1).refuse_too_much("tap1", 2 << 20).unwrap_err();
        assert!(alone.to_string().contains("and no other port has one;"), "{alone}");
    }
}
