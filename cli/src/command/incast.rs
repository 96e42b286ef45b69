//! `vsnoop incast`: the uplinks with incast control; `incast set` and `incast off` change one while
//! packets flow, for all ports behind it.

use anyhow::{Context, Result};
use vsnoop_bpf::{Uplink, UplinkSettings};
use vsnoop_host::error::Unfit;
use vsnoop_host::incast::listed::{self, ListedUplink, Uplinks};
use vsnoop_host::incast::uplink::bits_of;
use vsnoop_host::incast::{Rate, UplinkControl};
use vsnoop_host::lock::CommandLock;
use vsnoop_host::sweep;
use vsnoop_host::system::netdev::{self, Device};
use vsnoop_host::system::netns::Netns;
use vsnoop_host::units;

use crate::cli::{self, Cli, IncastAction};
use crate::error::{unfit_error, usage_error};
use crate::helper;
use crate::output::fold::fold_text;
use crate::output::hint;
use crate::output::{table, watch};

/// Shown if there is none.
const NOTHING: &str = "no uplink has incast control; `vsnoop attach PORT --incast` begins it";

pub fn run(cli: &Cli, arguments: &cli::Incast) -> Result<u8> {
    match &arguments.action {
        None => show_uplinks(cli, arguments.refresh.watch)?,
        Some(IncastAction::Set(set)) => {
            if set.rate.is_none() && set.buffer.is_none() {
                return Err(usage_error("nothing is to be set: give --rate, --buffer or both"));
            }
            change_uplink(cli, set.uplink.as_deref(), |uplink, netns| {
                put_settings(uplink, set, netns)
            })?;
        }
        Some(IncastAction::Off(off)) => {
            change_uplink(cli, off.uplink.as_deref(), |uplink, _| {
                open_uplink(uplink)?.disable();
                Ok(())
            })?;
        }
    }
    Ok(0)
}

fn show_uplinks(cli: &Cli, every: Option<f64>) -> Result<()> {
    watch::run_every(every, cli.json, || {
        let mut uplinks = listed::all()?;
        if let Some(name) = &cli.netns {
            let inode = Netns::open(name)?.inode;
            uplinks.uplinks.retain(|uplink| uplink.netns == inode);
            uplinks.damaged.clear();
        }
        if cli.json { Ok(serde_json::to_string(&uplinks)?) } else { Ok(render_text(&uplinks)) }
    })
}

/// Changes one uplink, and reports its state.
fn change_uplink(
    cli: &Cli,
    name: Option<&str>,
    work: impl FnOnce(&ListedUplink, &Netns) -> Result<()>,
) -> Result<()> {
    let netns = Netns::chosen(cli.netns.as_deref())?;
    let lock = CommandLock::take()?;
    sweep::sweep(&lock)?;
    let uplink = listed::choose(listed::all()?.uplinks, name, &netns)?;
    work(&uplink, &netns)?;
    let mut now = listed::all()?;
    now.uplinks.retain(|other| other.id() == uplink.id());
    drop(lock);
    // It may be needed to open windows again.
    helper::ensure_running();
    if cli.json {
        now.damaged.clear();
        return watch::print_text(&serde_json::to_string(&now)?);
    }
    let lines: Vec<_> = now.uplinks.iter().map(describe_uplink).collect();
    watch::print_text(&fold_text(&hint::in_netns(&lines.join("\n"), cli.netns.as_deref())))
}

fn put_settings(uplink: &ListedUplink, set: &cli::IncastSet, netns: &Netns) -> Result<()> {
    let name = &uplink.state.name;
    let device = netns.run(|| netdev::find_index(uplink.ifindex))?;
    let device = device.ok_or_else(|| {
        let ports = uplink.ports.join(" ");
        let text = format!(
            "uplink {name} is gone: `vsnoop detach {ports}`, then attach to the uplink that there is now"
        );
        unfit_error(Unfit::NoPort, text)
    })?;
    let rate = |rate: Rate| netns.run(|| bits_of(&device, rate, "--rate RATE"));
    let rate = set.rate.map(rate).transpose()?;
    let open = open_uplink(uplink)?;
    match (uplink.state.state, rate) {
        (UplinkControl::On | UplinkControl::Off, rate) => {
            if let Some(bytes) = set.buffer {
                open.set_buffer(bytes);
            }
            if let Some(bits) = rate {
                open.set_rate(bits);
            }
            Ok(())
        }
        (_, Some(bits_per_second)) => {
            let buffer_bytes = set.buffer.unwrap_or(uplink.state.buffer_bytes);
            attach_hook(&device, netns, UplinkSettings { bits_per_second, buffer_bytes })
        }
        (_, None) => Err(usage_error(format!(
            "uplink {name} has lost its hook: give --rate, and it is put on again"
        ))),
    }
}

fn attach_hook(device: &Device, netns: &Netns, settings: UplinkSettings) -> Result<()> {
    netns.run(|| {
        Uplink::attach(netns.inode, device.index, &device.name, &settings)
            .map(drop)
            .with_context(|| format!("uplink {}", device.name))
    })
}

fn open_uplink(uplink: &ListedUplink) -> Result<Uplink> {
    let name = &uplink.state.name;
    Uplink::open(uplink.netns, uplink.ifindex)?
        .with_context(|| format!("uplink {name} was taken away at this moment; repeat the command"))
}

/// State of an uplink after a change.
fn describe_uplink(uplink: &ListedUplink) -> String {
    let state = &uplink.state;
    let name = &state.name;
    let ports = units::plural(uplink.ports.len() as u64, "port");
    match state.state {
        UplinkControl::On => format!(
            "{name}: incast control at {}, {} of queue before it, for {ports}",
            units::bit_rate(state.rate_bits_per_second),
            units::bytes(state.buffer_bytes.into())
        ),
        UplinkControl::Off => format!(
            "{name}: incast control is off for {ports}, and windows are the VMs' own; `vsnoop incast set \
             --uplink {name} --rate RATE` turns it on"
        ),
        UplinkControl::Gone | UplinkControl::Unhooked => state.trouble().unwrap_or_default(),
    }
}

fn render_text(uplinks: &Uplinks) -> String {
    let mut parts = Vec::new();
    if uplinks.uplinks.is_empty() {
        parts.push(NOTHING.to_owned());
    } else {
        let mut rows = table::new(&[
            "uplink",
            "netns",
            ">rate",
            ">buffer",
            "ports",
            ">comes in",
            ">left",
            ">shaped",
            ">queued",
            ">granted",
        ]);
        for uplink in &uplinks.uplinks {
            rows.add_row(uplink_row(uplink));
        }
        parts.push(table::render_table(&rows));
        parts.extend(uplinks.uplinks.iter().filter_map(|uplink| uplink.state.trouble()));
    }
    for damaged in &uplinks.damaged {
        parts.push(format!(
            "damaged: {} ({}); `vsnoop off --all` removes it",
            damaged.path, damaged.reason
        ));
    }
    fold_text(&parts.join("\n"))
}

fn uplink_row(uplink: &ListedUplink) -> [String; 10] {
    let state = &uplink.state;
    let rate = |bits: Option<u64>| bits.map_or("-".into(), units::bit_rate);
    [
        state.name.clone(),
        uplink.netns_name.clone().unwrap_or_else(|| "-".into()),
        match state.state {
            UplinkControl::On => units::bit_rate(state.rate_bits_per_second),
            UplinkControl::Off => "off".into(),
            UplinkControl::Gone => "gone".into(),
            UplinkControl::Unhooked => "no hook".into(),
        },
        units::bytes(state.buffer_bytes.into()),
        uplink.ports.join(" "),
        rate(state.bandwidth.total_bits_per_second),
        rate(state.bandwidth.quota_bits_per_second),
        units::count(state.flows),
        units::count(state.waiting),
        match state.credit_bytes {
            Some(credit) => {
                format!("{} of {}", units::bytes(state.granted_bytes), units::bytes(credit.into()))
            }
            None => "-".into(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use vsnoop_host::incast::listed::DamagedUplink;

    use super::*;
    use crate::longest;

    #[test]
    fn the_table_of_uplinks_stays_narrow() {
        let states = [UplinkControl::On, UplinkControl::Off, UplinkControl::Unhooked];
        let uplink = |state| ListedUplink {
            state: longest::uplink(state),
            ifindex: 1,
            netns: 1,
            netns_name: longest::identity().netns_name,
            ports: vec![longest::INTERFACE.into(); 40],
        };
        let damaged = DamagedUplink {
            path: format!("/sys/fs/bpf/vsnoop/uplinks/{}-{}", u64::MAX, u32::MAX),
            reason: "its record has another size than that of this version".into(),
        };
        let uplinks =
            Uplinks { uplinks: states.map(uplink).into(), damaged: vec![damaged.clone(), damaged] };
        let text = render_text(&uplinks);
        longest::assert_narrow(&text);
        assert!(text.matches(longest::INTERFACE).count() > 120, "{text}");
        let lines: Vec<_> = uplinks.uplinks.iter().map(describe_uplink).collect();
        longest::assert_narrow(&fold_text(&lines.join("\n")));
    }
}
