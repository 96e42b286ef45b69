//! Other programs on a port, which may take away what vsnoop relies on.
//!
//! Egress: a filter or BPF program on the tap beside vsnoop's own may redirect or drop the very
//! clone whose hand-over vsnoop takes as proof of delivery, and the kernel still reports that it
//! was sent. The order does not matter: the clone passes all of them. So `attach` refuses a port
//! with one, and the helper suspends a port that gets one later.
//!
//! Ingress: `attach` puts from_vm first, before other tcx programs and all tc filters. A program
//! that is put before it later may take away the VM's ACKs: copies are not freed, and the engine
//! would give up a VM that answers. So the helper suspends such a port, too, so that no more is
//! held; if the program stays, connections with bytes that were held before are reset. What comes
//! after from_vm takes away nothing that it needs.
//!
//! XDP: a program of the tap, in any mode, sees what the VM sends before every other program. So
//! `attach` refuses a port with one, and one that comes later suspends the port.

use std::{fmt, io};

use libbpf_rs::ProgramHandle;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcFilterBpfOption, TcHandle, TcMessage, TcOption};
use serde::Serialize;
use vsnoop_bpf::{Hook, Port, split};
use vsnoop_netdev::netlink;

use super::netdev::Device;
use super::qdisc;
use crate::error::{Error, Result, Unfit, unfit};

const XDP_PROGRAM: &str = "XDP program";

/// A program or filter that is not vsnoop's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Foreign {
    /// "tcx program", "XDP program", or "tc filter" and its kind.
    pub kind: String,
    /// ID of the BPF program, as `bpftool prog` lists it; null for filters of other kinds.
    pub id: Option<u32>,
    pub name: Option<String>,
    pub place: Place,
}

/// Where a [`Foreign`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    Egress,
    /// Before vsnoop's own program.
    Ingress,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if let Some(name) = self.name.as_deref().filter(|name| !name.is_empty()) {
            write!(f, " {name}")?;
        }
        self.id.map_or(Ok(()), |id| write!(f, " (id {id})"))
    }
}

/// Lists what is in the way of an attached port. The calling thread is in its network namespace.
pub fn around(device: &Device, port: &Port) -> Result<Vec<Foreign>> {
    let (to_vm, from_vm) = (port.program_id(Hook::ToVm)?, port.program_id(Hook::FromVm)?);
    let mut found = on_egress_or_xdp(device)?;
    found.retain(|program| program.id != Some(to_vm));
    let ingress = tcx_programs(device, Place::Ingress)?;
    found.extend(ingress.into_iter().take_while(|program| program.id != Some(from_vm)));
    // Those that split connections come before both.
    let own = split::program_ids(port);
    found.retain(|program| program.id.is_none_or(|id| !own.contains(&id)));
    Ok(found)
}

/// Refuses a port that has any which `attach` cannot come before.
pub fn refuse(device: &Device) -> Result<()> {
    let found = on_egress_or_xdp(device)?;
    if found.is_empty() {
        return Ok(());
    }
    let text = format!(
        "port {} has {}; {} or leave vsnoop off this port",
        device.name,
        complaint(&found),
        way_out(&found, &device.name)
    );
    Err(unfit(Unfit::Qdisc, text))
}

/// Programs that `attach` cannot come before, and vsnoop's own program at the egress.
fn on_egress_or_xdp(device: &Device) -> Result<Vec<Foreign>> {
    let mut found = tcx_programs(device, Place::Egress)?;
    found.extend(tc_filters(device)?);
    found.extend(device.xdp_programs.iter().map(|id| program(XDP_PROGRAM, *id, Place::Ingress)));
    Ok(found)
}

/// The problem, for messages.
pub fn complaint(found: &[Foreign]) -> String {
    let named = |place| {
        let of_place = found.iter().filter(|program| program.place == place);
        of_place.map(Foreign::to_string).collect::<Vec<_>>().join(", ")
    };
    let (egress, ingress) = (named(Place::Egress), named(Place::Ingress));
    let mut parts = Vec::new();
    if !egress.is_empty() {
        parts.push(format!(
            "another egress program ({egress}), which could take away what vsnoop has acknowledged"
        ));
    }
    if !ingress.is_empty() {
        parts.push(format!(
            "another ingress program before vsnoop's ({ingress}), which could take away the VM's \
             acknowledgements"
        ));
    }
    parts.join(", and ")
}

/// The remedy.
pub fn way_out(found: &[Foreign], port: &str) -> String {
    let mut commands = Vec::new();
    if found.iter().any(|program| program.place == Place::Egress) {
        commands.push(format!("`tc filter del dev {port} egress`"));
    }
    // `xdp off` alone removes none of the generic mode from a device that has a mode of its own.
    if found.iter().any(|program| program.kind == XDP_PROGRAM) {
        commands.push(format!(
            "`ip link set dev {port} xdpgeneric off`, or `xdpdrv off`, as `bpftool net` shows its \
             mode"
        ));
    }
    if commands.is_empty() {
        return format!(
            "remove it (`bpftool net` shows whose it is), and add it again behind vsnoop's: \
             detaching {port} before would reset connections with held bytes"
        );
    }
    format!("remove it ({}; `bpftool net` shows whose it is)", commands.join("; "))
}

/// At the egress.
fn tc_filters(device: &Device) -> Result<Vec<Foreign>> {
    let mut request = TcMessage::with_index(device.index as i32);
    request.header.parent = TcHandle { major: TcHandle::CLSACT.major, minor: TcHandle::MIN_EGRESS };
    let answers = match netlink::dump(RouteNetlinkMessage::GetTrafficFilter(request)) {
        Ok(answers) => answers,
        // Without a clsact qdisc there is no such hook.
        Err(error) if matches!(error.errno(), Some(libc::EINVAL | libc::ENOENT)) => {
            return Ok(Vec::new());
        }
        Err(source) => return Err(Error::ReadFilters { port: device.name.clone(), source }),
    };
    let filters = answers.iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewTrafficFilter(filter) => Some(filter),
        _ => None,
    });
    let mut found: Vec<_> =
        filters.filter(|filter| is_at_egress(filter, device)).map(tc_filter).collect();
    // A filter is listed with all of its parts (a chain, a hash table, the rule); one of them has
    // its program.
    let told: Vec<_> =
        found.iter().filter(|part| part.id.is_some()).map(|part| part.kind.clone()).collect();
    found.retain(|part| part.id.is_some() || !told.contains(&part.kind));
    found.dedup();
    Ok(found)
}

/// A qdisc `ingress` has the handle of clsact: asked for filters at the egress, the kernel answers
/// with those at its ingress, as they were added there. Filters of a shared block name the block
/// instead of a device, and are taken for ones at the egress.
fn is_at_egress(filter: &TcMessage, device: &Device) -> bool {
    let header = &filter.header;
    header.index != device.index as i32 || header.parent.minor == TcHandle::MIN_EGRESS
}

fn tc_filter(filter: &TcMessage) -> Foreign {
    let kind = format!("tc filter {}", qdisc::kind(filter));
    let mut found = Foreign { kind, id: None, name: None, place: Place::Egress };
    for attribute in &filter.attributes {
        let TcAttribute::Options(options) = attribute else { continue };
        for option in options {
            match option {
                TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => found.id = Some(*id),
                TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => found.name = Some(name.clone()),
                _ => {}
            }
        }
    }
    found
}

/// In the order in which they run.
fn tcx_programs(device: &Device, place: Place) -> Result<Vec<Foreign>> {
    const ROOM: usize = 64; // the kernel's bound of programs per hook
    let mut ids = [0u32; ROOM];
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        ..Default::default()
    };
    options.prog_ids = ids.as_mut_ptr();
    options.__bindgen_anon_1.prog_cnt = ROOM as u32;
    let hook = match place {
        Place::Egress => Hook::ToVm,
        Place::Ingress => Hook::FromVm,
    };
    // SAFETY: `options` states its own size, `prog_ids` points at `ids`, which has room for
    // `prog_cnt` ids and outlives the call.
    let result = unsafe {
        libbpf_sys::bpf_prog_query_opts(device.index as i32, hook.attach_type(), &mut options)
    };
    match -result {
        0 => {}
        libc::EPERM => {
            return Err(unfit(Unfit::Privilege, "reading a port's BPF programs needs root"));
        }
        libc::EINVAL => {
            return Err(unfit(
                Unfit::Kernel,
                "this kernel has no tcx hooks; Linux 6.6 or newer is needed",
            ));
        }
        errno => {
            let source = io::Error::from_raw_os_error(errno);
            return Err(Error::ReadPrograms { port: device.name.clone(), source });
        }
    }
    // SAFETY: both members of the union are the same u32 count, written by the call.
    let count = unsafe { options.__bindgen_anon_1.prog_cnt } as usize;
    Ok(ids[..count.min(ROOM)].iter().map(|id| program("tcx program", *id, place)).collect())
}

fn program(kind: &str, id: u32, place: Place) -> Foreign {
    // It may end at any moment; then only its id is known.
    let name = ProgramHandle::from_prog_id(id).ok();
    let name = name.map(|program| program.name().to_string_lossy().into_owned());
    Foreign { kind: kind.into(), id: Some(id), name, place }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(options: Vec<TcOption>) -> TcMessage {
        let mut message = TcMessage::with_index(1);
        message.attributes.push(TcAttribute::Kind("bpf".into()));
        message.attributes.push(TcAttribute::Options(options));
        message
    }

    #[test]
    fn a_bpf_filter_is_named_as_bpftool_lists_it() {
        let name = TcOption::Bpf(TcFilterBpfOption::ProgName("steal.o:[tc]".into()));
        let id = TcOption::Bpf(TcFilterBpfOption::ProgId(42));
        assert_eq!(
            tc_filter(&filter(vec![name, id])).to_string(),
            "tc filter bpf steal.o:[tc] (id 42)"
        );
        assert_eq!(tc_filter(&filter(vec![])).to_string(), "tc filter bpf");
    }

    #[test]
    fn a_filter_of_the_qdisc_ingress_is_not_at_the_egress() {
        let device = Device { index: 5, ..Device::default() };
        let parent = |minor| TcHandle { major: TcHandle::CLSACT.major, minor };
        let is_found = |index, parent| {
            let mut filter = TcMessage::with_index(index);
            filter.header.parent = parent;
            is_at_egress(&filter, &device)
        };
        assert!(is_found(5, parent(TcHandle::MIN_EGRESS)));
        assert!(!is_found(5, parent(TcHandle::MIN_INGRESS)));
        assert!(!is_found(5, parent(0)));
        assert!(is_found(-1, parent(0)), "of a shared block");
    }

    #[test]
    fn the_complaint_names_each_of_them_and_where_it_is() {
        let program =
            |id, place| Foreign { kind: "tcx program".into(), id: Some(id), name: None, place };
        let (seven, eight) = (program(7, Place::Egress), program(8, Place::Egress));
        let nine = program(9, Place::Ingress);
        let text = complaint(&[seven.clone(), eight]);
        assert!(text.contains("(tcx program (id 7), tcx program (id 8))"), "{text}");
        assert!(!text.contains("ingress"), "{text}");
        let text = complaint(std::slice::from_ref(&nine));
        assert!(text.starts_with("another ingress program before vsnoop's (tcx"), "{text}");
        assert!(way_out(std::slice::from_ref(&nine), "tap0").contains("again behind vsnoop's"));
        let xdp = Foreign { kind: XDP_PROGRAM.into(), ..nine.clone() };
        assert!(way_out(&[xdp], "tap0").contains("`ip link set dev tap0 xdpgeneric off`"));
        let text = complaint(&[seven, nine]);
        assert!(text.contains("egress") && text.contains("ingress"), "{text}");
    }
}
