//! Other programs on a port's egress.
//!
//! A filter or BPF program on the tap beside vsnoop's own may redirect or drop the very clone whose
//! hand-over vsnoop takes as proof of delivery, and the kernel still reports that it was sent. The
//! order does not matter: the clone passes all of them. So `attach` refuses a port with one, and
//! the helper suspends a port that gets one later. (An XDP program of the tap sees the VM's packets
//! before from_vm: no early ACK depends on a packet that it drops.)

use std::{fmt, io};

use libbpf_rs::ProgramHandle;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcFilterBpfOption, TcHandle, TcMessage, TcOption};
use serde::Serialize;
use vsnoop_bpf::Hook;
use vsnoop_netdev::netlink;

use super::netdev::Device;
use super::qdisc;
use crate::error::{Error, Result, Unfit, unfit};

/// A program or filter that is not vsnoop's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Foreign {
    /// "tcx program", or "tc filter" and its kind.
    pub kind: String,
    /// Of the BPF program, as `bpftool prog` lists it; null for filters of other kinds.
    pub id: Option<u32>,
    pub name: Option<String>,
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

/// Lists other programs on the egress. `own`: the id of vsnoop's own program, if it is attached.
pub fn foreign(device: &Device, own: Option<u32>) -> Result<Vec<Foreign>> {
    let mut found = tcx_programs(device)?;
    found.retain(|program| own.is_none() || program.id != own);
    found.extend(tc_filters(device)?);
    Ok(found)
}

/// Refuses a port that has any.
pub fn refuse_foreign(device: &Device) -> Result<()> {
    let found = foreign(device, None)?;
    if found.is_empty() {
        return Ok(());
    }
    let what = complaint(&found);
    let text = format!(
        "port {} has {what}; {} or leave vsnoop off this port",
        device.name,
        way_out(&device.name)
    );
    Err(unfit(Unfit::Qdisc, text))
}

/// The problem, for messages.
pub fn complaint(found: &[Foreign]) -> String {
    let names: Vec<_> = found.iter().map(Foreign::to_string).collect();
    format!(
        "another egress program ({}), which could take away what vsnoop has acknowledged",
        names.join(", ")
    )
}

/// The remedy.
pub fn way_out(port: &str) -> String {
    format!("remove it (`tc filter del dev {port} egress`; `bpftool net` shows whose it is)")
}

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
        RouteNetlinkMessage::NewTrafficFilter(filter) => Some(tc_filter(filter)),
        _ => None,
    });
    let mut found: Vec<_> = filters.collect();
    // A filter is listed with all of its parts (a chain, a hash table, the rule); one of them has
    // its program.
    let told: Vec<_> =
        found.iter().filter(|part| part.id.is_some()).map(|part| part.kind.clone()).collect();
    found.retain(|part| part.id.is_some() || !told.contains(&part.kind));
    found.dedup();
    Ok(found)
}

fn tc_filter(filter: &TcMessage) -> Foreign {
    let kind = format!("tc filter {}", qdisc::kind(filter));
    let mut found = Foreign { kind, id: None, name: None };
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

fn tcx_programs(device: &Device) -> Result<Vec<Foreign>> {
    const ROOM: usize = 64; // the kernel's bound of programs per hook
    let mut ids = [0u32; ROOM];
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        ..Default::default()
    };
    options.prog_ids = ids.as_mut_ptr();
    options.__bindgen_anon_1.prog_cnt = ROOM as u32;
    // SAFETY: `options` states its own size, `prog_ids` points at `ids`, which has room for
    // `prog_cnt` ids and outlives the call.
    let result = unsafe {
        libbpf_sys::bpf_prog_query_opts(device.index as i32, Hook::ToVm.attach_type(), &mut options)
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
    Ok(ids[..count.min(ROOM)].iter().map(|id| tcx_program(*id)).collect())
}

fn tcx_program(id: u32) -> Foreign {
    // It may end at any moment; then only its id is known.
    let name = ProgramHandle::from_prog_id(id).ok();
    let name = name.map(|program| program.name().to_string_lossy().into_owned());
    Foreign { kind: "tcx program".into(), id: Some(id), name }
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
    fn the_complaint_names_each_of_them() {
        let program = |id| Foreign { kind: "tcx program".into(), id: Some(id), name: None };
        let text = complaint(&[program(7), program(8)]);
        assert!(text.contains("(tcx program (id 7), tcx program (id 8))"), "{text}");
    }
}
