//! The pair of devices of a port: the near end beside the tap, the far end in the namespace of the
//! sockets.
//!
//! Both names tell whose they are. Beside the tap its index will do. In the sockets' namespace
//! are devices of several network namespaces, so the name has the inode of the tap's, too; a name
//! has 15 bytes at most, so both numbers are written to the base of 36.

use std::os::fd::AsFd;

use vsnoop_bpf::Port;
use vsnoop_netdev::policy::{Family, add_default_route};
use vsnoop_netdev::{change, veth};

use super::error::{Result, Unavailable};
use super::sysctl;
use crate::system::netdev::{self, Device};
use crate::system::netns::Netns;

/// The Ethernet address of the end in the namespace of the sockets ("vsnoop", made local).
pub const FAR_MAC: [u8; 6] = [0x02, 0x76, 0x73, 0x6e, 0x6f, 0x70];

const NEAR_PREFIX: &str = "vsX";
const FAR_PREFIX: &str = "v";
/// Between the two numbers of the far end's name.
const AND: char = '-';

/// The tap of a port: inode of its network namespace, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TapId {
    pub netns: u64,
    pub ifindex: u32,
}

/// A pair that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Index of the end beside the tap.
    pub near: u32,
    /// Index of the end in the namespace of the sockets.
    pub far: u32,
}

impl TapId {
    /// The tap of a port.
    pub fn from_port(port: &Port) -> Result<Self> {
        let meta = port.meta()?;
        Ok(Self { netns: meta.netns, ifindex: meta.ifindex })
    }

    /// The name of the end beside the tap.
    pub fn near_name(self) -> String {
        format!("{NEAR_PREFIX}{}", self.ifindex)
    }

    /// The name of the end in the namespace of the sockets.
    pub fn far_name(self) -> String {
        format!("{FAR_PREFIX}{}{AND}{}", base_36(self.netns), base_36(self.ifindex.into()))
    }

    /// The tap whose pair has a far end of this name.
    pub fn of_far_name(name: &str) -> Option<Self> {
        let (netns, ifindex) = name.strip_prefix(FAR_PREFIX)?.split_once(AND)?;
        let netns = u64::from_str_radix(netns, 36).ok()?;
        let ifindex = u32::from_str_radix(ifindex, 36).ok()?;
        let tap = Self { netns, ifindex };
        // Only one name of each tap counts.
        (tap.far_name() == name).then_some(tap)
    }
}

fn base_36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(char::from_digit((number % 36) as u32, 36).unwrap_or('0'));
        number /= 36;
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

/// Makes the pair of a tap anew: what a killed process has left of one goes. The calling thread is
/// in the tap's network namespace. Both ends are up when it returns.
pub fn make(tap: TapId, device: &Device, sockets: &Netns) -> Result<Pair> {
    remove_near(tap)?;
    sockets.run(|| remove_far(tap))?;
    let (near, far) = (tap.near_name(), tap.far_name());
    let wanted = veth::Pair {
        near: &near,
        far: &far,
        far_netns: sockets.as_fd(),
        far_mac: FAR_MAC,
        mtu: device.mtu,
    };
    veth::create(&wanted).map_err(|error| match error.errno() {
        Some(libc::EOPNOTSUPP) => Unavailable::NoVeth,
        _ => Unavailable::Pair(error),
    })?;
    complete(tap, sockets).inspect_err(|_| {
        // Best effort: the error that led here is the one to report.
        let _ = remove_near(tap);
    })
}

/// Settings, state and routes of both ends.
fn complete(tap: TapId, sockets: &Netns) -> Result<Pair> {
    let near = tap.near_name();
    if sysctl::has_ipv6() {
        sysctl::write_if_there(&format!("ipv6/conf/{near}/disable_ipv6"), "1")?;
    }
    let near = index_of(&near)?;
    change::set_up(near).map_err(Unavailable::Pair)?;
    let far = sockets.run(|| complete_far(tap))?;
    Ok(Pair { near, far })
}

fn complete_far(tap: TapId) -> Result<u32> {
    let far = index_of(&tap.far_name())?;
    change::set_up(far).map_err(Unavailable::Pair)?;
    add_default_route(Family::V4, far).map_err(Unavailable::Pair)?;
    if sysctl::has_ipv6() {
        add_default_route(Family::V6, far).map_err(Unavailable::Pair)?;
    }
    Ok(far)
}

fn index_of(name: &str) -> Result<u32> {
    netdev::find(name)?.map(|device| device.index).ok_or_else(|| Unavailable::Gone(name.to_owned()))
}

/// The pair of a tap, if both ends are there. The calling thread is in the tap's network namespace.
pub fn find(tap: TapId, sockets: &Netns) -> Result<Option<Pair>> {
    let Some(near) = netdev::find(&tap.near_name())?.filter(is_veth) else { return Ok(None) };
    let far = sockets.run(|| netdev::find(&tap.far_name()))?;
    Ok(far.map(|far| Pair { near: near.index, far: far.index }))
}

/// Gives both ends the MTU of the tap, which an administrator may change. Returns whether they had
/// another one. The calling thread is in the tap's network namespace.
pub fn follow_mtu(tap: TapId, device: &Device, sockets: &Netns) -> Result<bool> {
    let near = netdev::find(&tap.near_name())?.filter(is_veth);
    let Some(near) = near.filter(|near| near.mtu != device.mtu) else { return Ok(false) };
    let set = |index| change::set_mtu(index, device.mtu).map_err(Unavailable::Pair);
    set(near.index)?;
    sockets.run(|| set(index_of(&tap.far_name())?))?;
    Ok(true)
}

/// Deletes the end beside the tap, and thereby both. A device of that name that is no veth stays.
fn remove_near(tap: TapId) -> Result<()> {
    remove(&tap.near_name())
}

/// Deletes the end beside the sockets, and thereby both. The calling thread is in the namespace of
/// the sockets.
pub fn remove_far(tap: TapId) -> Result<()> {
    remove(&tap.far_name())
}

fn remove(name: &str) -> Result<()> {
    match netdev::find(name)?.filter(is_veth) {
        Some(device) => veth::delete(device.index).map_err(Unavailable::Pair),
        None => Ok(()),
    }
}

fn is_veth(device: &Device) -> bool {
    device.kind == "veth"
}

/// The taps that have a pair; the calling thread is in the namespace of the sockets.
pub fn all() -> Result<Vec<TapId>> {
    let devices = netdev::list()?.into_iter().filter(is_veth);
    Ok(devices.filter_map(|device| TapId::of_far_name(&device.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_and_tells_whose_it_is() {
        for tap in [
            TapId { netns: 0, ifindex: 0 },
            TapId { netns: 4_026_531_840, ifindex: 7 },
            TapId { netns: u32::MAX.into(), ifindex: i32::MAX as u32 },
        ] {
            for name in [tap.near_name(), tap.far_name()] {
                assert!(name.len() < libc::IFNAMSIZ, "{name}");
            }
            assert_eq!(TapId::of_far_name(&tap.far_name()), Some(tap));
        }
    }

    #[test]
    fn a_name_that_no_pair_has_belongs_to_no_tap() {
        for name in ["", "lo", "v", "v-", "v1", "v1-", "v-1", "v01-1", "v1-1-1", "vA-1", "veth0"] {
            assert_eq!(TapId::of_far_name(name), None, "{name}");
        }
    }
}
