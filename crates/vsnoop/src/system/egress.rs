//! Other programs on a port's egress.
//!
//! A filter or BPF program that runs on the tap beside vsnoop's own may drop, delay or redirect the
//! very clone whose hand-over vsnoop takes as proof of delivery. So a port with one is refused.

use anyhow::{Context, Result};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcHandle, TcMessage};

use super::netdev::Device;
use super::{netlink, qdisc};
use crate::error::{Unfit, unfit};

/// Who else filters what is sent to the VM: texts such as "tc filter bpf".
pub fn foreign(device: &Device) -> Result<Vec<String>> {
    let mut found = tc_filters(device)?;
    found.extend(tcx_programs(device)?);
    Ok(found)
}

/// Refuses a port that has any.
pub fn refuse_foreign(device: &Device) -> Result<()> {
    let found = foreign(device)?;
    if found.is_empty() {
        return Ok(());
    }
    let name = &device.name;
    Err(unfit(
        Unfit::Qdisc,
        format!(
            "port {name} has another egress program ({}), which could drop what vsnoop has acknowledged; \
         remove it (`tc filter del dev {name} egress`, `bpftool net`) or leave vsnoop off this port",
            found.join(", ")
        ),
    ))
}

fn tc_filters(device: &Device) -> Result<Vec<String>> {
    let mut question = TcMessage::with_index(device.index as i32);
    question.header.parent =
        TcHandle { major: TcHandle::CLSACT.major, minor: TcHandle::MIN_EGRESS };
    let answers = match netlink::dump(RouteNetlinkMessage::GetTrafficFilter(question)) {
        Ok(answers) => answers,
        // Without a clsact qdisc there is no such hook.
        Err(error) if matches!(netlink::errno(&error), Some(libc::EINVAL | libc::ENOENT)) => {
            return Ok(Vec::new());
        }
        Err(error) => {
            return Err(error).context(format!("read the tc filters of port {}", device.name));
        }
    };
    let mut kinds: Vec<_> = answers
        .iter()
        .filter_map(|answer| match answer {
            RouteNetlinkMessage::NewTrafficFilter(filter) => {
                Some(format!("tc filter {}", qdisc::kind(filter)))
            }
            _ => None,
        })
        .collect();
    kinds.dedup();
    Ok(kinds)
}

fn tcx_programs(device: &Device) -> Result<Vec<String>> {
    const ROOM: usize = 64; // the kernel's bound of programs per hook
    let mut ids = [0u32; ROOM];
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        ..Default::default()
    };
    options.prog_ids = ids.as_mut_ptr();
    options.__bindgen_anon_1.prog_cnt = ROOM as u32;
    // SAFETY: `options` states its own size, `prog_ids` points at `ids`, which has room for `prog_cnt`
    // ids and outlives the call.
    let result = unsafe {
        libbpf_sys::bpf_prog_query_opts(
            device.index as i32,
            libbpf_sys::BPF_TCX_EGRESS,
            &mut options,
        )
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
            return Err(std::io::Error::from_raw_os_error(errno))
                .context(format!("read the tcx programs of port {}", device.name));
        }
    }
    // SAFETY: both members of the union are the same u32 count, written by the call.
    let count = unsafe { options.__bindgen_anon_1.prog_cnt } as usize;
    Ok(ids[..count.min(ROOM)].iter().map(|id| format!("tcx program {id}")).collect())
}
