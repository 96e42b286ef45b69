//! Early acknowledgement needs noqueue on the tap: any other qdisc may accept a segment and drop it
//! later. The kernel gives every tap a default (net.core.default_qdisc). A default has no settings,
//! handle 0, and cannot be changed, so it may be replaced; deleting the replacement restores it.
//! Any other qdisc is a limit that an operator or a tool has set (libvirt's bandwidth, OVS QoS) and
//! is never touched.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use vsnoop_netdev::netlink;

use super::netdev::Device;
use crate::error::{Error, Result, Unfit, unfit};

pub const NOQUEUE: &str = "noqueue";
/// The handle of vsnoop's own: without one the kernel replaces whatever is there, against its flag.
const HANDLE: TcHandle = TcHandle { major: 0x5e20, minor: 0 };

/// The root qdisc of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// noqueue already.
    NoQueue,
    /// The kernel's default of this kind, unmodified.
    Default(String),
    /// Configured: kind and handle.
    Configured(String, String),
}

impl Root {
    pub fn kind(&self) -> &str {
        match self {
            Root::NoQueue => NOQUEUE,
            Root::Default(kind) | Root::Configured(kind, _) => kind,
        }
    }
}

/// The root qdisc of a device of this namespace.
pub fn root(device: &Device) -> Result<Root> {
    Ok(classify(dumped(device)?, &device.qdisc))
}

/// Is it the noqueue of [`replace_by_noqueue`]?
pub fn is_of_vsnoop(device: &Device) -> Result<bool> {
    Ok(dumped(device)? == Some((NOQUEUE.into(), HANDLE)))
}

/// Kind and handle of the root qdisc, if the kernel lists it.
fn dumped(device: &Device) -> Result<Option<(String, TcHandle)>> {
    let answers = netlink::dump(RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()))
        .map_err(|source| Error::ReadQdisc { port: device.name.clone(), source })?;
    Ok(answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewQueueDiscipline(qdisc)
            if qdisc.header.index as u32 == device.index
                && qdisc.header.parent == TcHandle::ROOT =>
        {
            Some((kind(&qdisc), qdisc.header.handle))
        }
        _ => None,
    }))
}

/// `dumped`: as listed by the kernel, which hides its built-in ones (noop on a device that is
/// down).
fn classify(dumped: Option<(String, TcHandle)>, of_link: &str) -> Root {
    match dumped {
        Some((kind, _)) if kind == NOQUEUE => Root::NoQueue,
        Some((kind, TcHandle::UNSPEC)) => Root::Default(kind),
        Some((kind, handle)) => Root::Configured(kind, format!("{:x}:", handle.major)),
        None if of_link == NOQUEUE => Root::NoQueue,
        None => Root::Default(of_link.to_owned()),
    }
}

/// Refuses a configured qdisc, with a remedy.
pub fn refuse_configured(device: &Device, root: &Root) -> Result<()> {
    let Root::Configured(kind, handle) = root else { return Ok(()) };
    let name = &device.name;
    Err(unfit(
        Unfit::Qdisc,
        format!(
            "port {name} has the configured qdisc {kind} {handle}, which vsnoop never replaces: a limit \
         may have been set on purpose; remove it with `tc qdisc del dev {name} root` (libvirt: the \
         interface's <bandwidth>) or leave vsnoop off this port"
        ),
    ))
}

/// Replaces a default by noqueue. The kernel replaces nothing else (`tc qdisc add` with a handle):
/// a limit that was set meanwhile stays, and is the error.
pub fn replace_by_noqueue(device: &Device) -> Result<()> {
    let mut request = TcMessage::with_index(device.index as i32);
    request.header.parent = TcHandle::ROOT;
    request.header.handle = HANDLE;
    request.attributes.push(TcAttribute::Kind(NOQUEUE.into()));
    let asked =
        netlink::ask(RouteNetlinkMessage::NewQueueDiscipline(request), NLM_F_CREATE | NLM_F_EXCL);
    let name = &device.name;
    asked.map(drop).map_err(|error| match error.errno() {
        Some(libc::EEXIST) => unfit(
            Unfit::Qdisc,
            format!(
                "port {name} was given a qdisc while it was attached, which vsnoop never replaces: \
                 `vsnoop doctor {name}` shows it"
            ),
        ),
        _ => Error::SetQdisc { port: name.clone(), error: permission(error).into() },
    })
}

/// Deletes vsnoop's noqueue; the kernel then creates its default. False if another qdisc was set
/// meanwhile, which stays.
pub fn restore_default(device: &Device) -> Result<bool> {
    match root(device)? {
        Root::NoQueue => {}
        // For example by a command that was killed later.
        Root::Default(_) => return Ok(true),
        Root::Configured(..) => return Ok(false),
    }
    let mut request = TcMessage::with_index(device.index as i32);
    request.header.parent = TcHandle::ROOT;
    match netlink::ask(RouteNetlinkMessage::DelQueueDiscipline(request), 0) {
        Ok(_) => Ok(true),
        // A noqueue that is the kernel's default cannot be deleted, and need not be.
        Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::EINVAL)) => Ok(false),
        // The device was just deleted, with its qdisc.
        Err(error) if error.errno() == Some(libc::ENODEV) => Ok(true),
        Err(source) => Err(Error::RestoreQdisc { port: device.name.clone(), source }),
    }
}

fn permission(error: netlink::Error) -> Error {
    match error.errno() {
        Some(libc::EPERM) => unfit(Unfit::Privilege, "changing a qdisc needs root (CAP_NET_ADMIN)"),
        _ => Error::Netlink(error),
    }
}

pub fn kind(qdisc: &TcMessage) -> String {
    qdisc
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind.clone()),
            _ => None,
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_qdisc_of_handle_zero_is_a_default() {
        let default = classify(Some(("pfifo_fast".into(), TcHandle::UNSPEC)), "pfifo_fast");
        assert_eq!(default, Root::Default("pfifo_fast".into()));
        let added =
            classify(Some(("pfifo_fast".into(), TcHandle::from(0x8001_0000))), "pfifo_fast");
        assert_eq!(added, Root::Configured("pfifo_fast".into(), "8001:".into()));
    }

    #[test]
    fn a_device_that_is_down_has_its_default_still_to_come() {
        assert_eq!(classify(None, "noop"), Root::Default("noop".into()));
    }

    #[test]
    fn noqueue_needs_no_replacement_whoever_set_it() {
        assert_eq!(
            classify(Some((NOQUEUE.into(), TcHandle::from(0x8001_0000))), NOQUEUE),
            Root::NoQueue
        );
        assert_eq!(classify(None, NOQUEUE), Root::NoQueue);
    }
}
