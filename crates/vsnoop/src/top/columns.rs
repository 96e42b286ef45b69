//! The columns of both tables: what each shows, and how it sorts.

use std::cmp::Ordering;

use vsnoop_host::units;

use super::column::{Column, Tone, by_number, column, number};
use super::rows::{Change, FlowRow, PortRow};

/// Of a value that is not known, or means nothing.
const UNKNOWN: &str = "-";

pub const EARLY: &str = "early/s";

pub static PORTS: [Column<PortRow>; 11] = [
    Column {
        meaning: "name of the tap",
        least_width: 6,
        ..column("port", |row| row.name.clone(), |a, b| a.name.cmp(&b.name))
    },
    Column {
        meaning: "its network namespace, for --netns",
        rank: 10,
        is_used: |row| row.netns.is_some(),
        ..column("netns", |row| or_unknown(row.netns.clone()), |a, b| a.netns.cmp(&b.netns))
    },
    Column {
        meaning: "active, paused, observing, or gone with its tap",
        rank: 4,
        least_width: 6,
        tone: state_tone,
        ..column("state", |row| row.state.to_owned(), |a, b| a.state.cmp(b.state))
    },
    Column {
        meaning: "the VM, or the process that holds the tap",
        rank: 5,
        is_used: |row| row.vm.is_some(),
        ..column("vm", |row| or_unknown(row.vm.clone()), |a, b| a.vm.cmp(&b.vm))
    },
    Column {
        meaning: "bytes acknowledged early, per second",
        rank: 1,
        least_width: 8,
        ..number(EARLY, |row| of_change(row, early_text), |a, b| by(a, b, Change::early_rate))
    },
    Column {
        meaning: "their part of all bytes to the VM, headers included: who gains",
        rank: 6,
        least_width: 5,
        ..number(
            "share",
            |row| of_change(row, |change| change.share().map(units::percent)),
            |a, b| by_known(a, b, Change::share),
        )
    },
    Column {
        meaning: "median time by which the host acknowledged sooner than the VM",
        rank: 2,
        least_width: 7,
        ..number(
            "masked",
            |row| of_change(row, |change| change.masked_ns().map(units::duration)),
            |a, b| by_known(a, b, |change| change.masked_ns().map(|ns| ns as f64)),
        )
    },
    Column {
        meaning: "memory with copies for the VM, of the most that it may have",
        rank: 3,
        least_width: 11,
        tone: hold_tone,
        ..number("hold", hold_text, |a, b| by_number(hold_bytes(a), hold_bytes(b)))
    },
    Column {
        meaning: "connections on record, counted in turn",
        rank: 7,
        least_width: 5,
        ..number(
            "flows",
            |row| or_unknown(row.flows.map(units::count)),
            |a, b| a.flows.cmp(&b.flows),
        )
    },
    Column {
        meaning: "new connections per second",
        rank: 9,
        least_width: 5,
        ..number(
            "new/s",
            |row| of_change(row, |change| Some(count_rate(change.new_rate()))),
            |a, b| by(a, b, Change::new_rate),
        )
    },
    Column {
        meaning: "connections that were reset, since the port was attached",
        rank: 8,
        tone: |row| if row.resets > 0 { Tone::Bad } else { Tone::Plain },
        ..number("resets", |row| units::count(row.resets), |a, b| a.resets.cmp(&b.resets))
    },
];

pub static FLOWS: [Column<FlowRow>; 9] = [
    Column {
        meaning: "the end that sends to the VM",
        least_width: 18,
        ..column(
            "sender",
            |row| row.flow.id.sender.to_string(),
            |a, b| a.flow.id.sender.cmp(&b.flow.id.sender),
        )
    },
    Column {
        meaning: "the VM's end",
        rank: 4,
        least_width: 16,
        ..column("vm", |row| row.flow.id.vm.to_string(), |a, b| a.flow.id.vm.cmp(&b.flow.id.vm))
    },
    Column {
        meaning: "as `vsnoop flows` shows it (docs/command.md)",
        rank: 3,
        least_width: 7,
        tone: mode_tone,
        ..column("mode", |row| row.flow.mode.to_owned(), |a, b| a.flow.mode.cmp(b.flow.mode))
    },
    Column {
        meaning: "bytes acknowledged early, per second",
        rank: 1,
        least_width: 8,
        ..number(
            EARLY,
            |row| or_unknown(row.early_rate.map(byte_rate)),
            |a, b| by_number(a.early_rate, b.early_rate),
        )
    },
    Column {
        meaning: "bytes acknowledged early in all",
        rank: 7,
        least_width: 8,
        ..number(
            "early",
            |row| units::bytes(row.flow.early_bytes),
            |a, b| a.flow.early_bytes.cmp(&b.flow.early_bytes),
        )
    },
    Column {
        meaning: "bytes acknowledged early, and not by the VM yet",
        rank: 5,
        least_width: 9,
        ..number(
            "on its way",
            |row| units::bytes(row.flow.outstanding_bytes),
            |a, b| a.flow.outstanding_bytes.cmp(&b.flow.outstanding_bytes),
        )
    },
    Column {
        meaning: "of these, what waits on this host for room in the VM",
        rank: 2,
        least_width: 8,
        ..number(
            "held",
            |row| or_unknown(row.flow.held_bytes.map(units::bytes)),
            |a, b| a.flow.held_bytes.cmp(&b.flow.held_bytes),
        )
    },
    Column {
        meaning: "bytes that the VM was handed again",
        rank: 8,
        least_width: 8,
        ..number(
            "again",
            |row| or_unknown(row.flow.resent_bytes.map(units::bytes)),
            |a, b| a.flow.resent_bytes.cmp(&b.flow.resent_bytes),
        )
    },
    Column {
        meaning: "time since the last packet that needed a decision",
        rank: 6,
        least_width: 7,
        ..number(
            "idle",
            |row| units::duration(row.flow.idle_ns),
            |a, b| a.flow.idle_ns.cmp(&b.flow.idle_ns),
        )
    },
];

fn or_unknown(text: Option<String>) -> String {
    text.unwrap_or_else(|| UNKNOWN.to_owned())
}

fn of_change(row: &PortRow, text: fn(&Change) -> Option<String>) -> String {
    or_unknown(row.change.as_ref().and_then(text))
}

fn by(a: &PortRow, b: &PortRow, value: fn(&Change) -> f64) -> Ordering {
    by_number(a.change.as_ref().map(value), b.change.as_ref().map(value))
}

fn by_known(a: &PortRow, b: &PortRow, value: fn(&Change) -> Option<f64>) -> Ordering {
    by_number(a.change.as_ref().and_then(value), b.change.as_ref().and_then(value))
}

fn early_text(change: &Change) -> Option<String> {
    Some(byte_rate(change.early_rate()))
}

/// For example "12.3 MiB".
pub fn byte_rate(bytes: f64) -> String {
    units::bytes(bytes.round() as u64)
}

/// For example "0.5" or "1,200".
fn count_rate(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { units::count(rate.round() as u64) }
}

fn hold_text(row: &PortRow) -> String {
    or_unknown(row.hold.map(|hold| units::bytes_part(hold.used_bytes, hold.size_bytes)))
}

fn hold_bytes(row: &PortRow) -> Option<f64> {
    row.hold.map(|hold| hold.used_bytes as f64)
}

fn hold_tone(row: &PortRow) -> Tone {
    match row.hold {
        Some(hold) if !hold.engine_is_alive => Tone::Bad,
        // Little is left of it.
        Some(hold) if hold.used_bytes * 10 >= hold.size_bytes * 9 => Tone::Unusual,
        _ => Tone::Plain,
    }
}

fn state_tone(row: &PortRow) -> Tone {
    match row.state {
        "active" => Tone::Good,
        "gone" => Tone::Bad,
        "paused" => Tone::Unusual,
        _ => Tone::Plain,
    }
}

fn mode_tone(row: &FlowRow) -> Tone {
    match row.flow.mode {
        "active" => Tone::Good,
        "holding" | "unexpected-seq" | "no-buf" => Tone::Unusual,
        "reset" => Tone::Bad,
        _ => Tone::Faint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_has_a_heading_of_its_own_a_meaning_and_a_rank() {
        fn check<R>(columns: &[Column<R>]) {
            let mut headings: Vec<_> = columns.iter().map(|column| column.heading).collect();
            let mut ranks: Vec<_> = columns.iter().map(|column| column.rank).collect();
            headings.sort_unstable();
            headings.dedup();
            ranks.sort_unstable();
            ranks.dedup();
            assert_eq!((headings.len(), ranks.len()), (columns.len(), columns.len()));
            assert!(columns.iter().all(|column| !column.meaning.is_empty()));
            assert_eq!(columns[0].rank, 0, "the first column stays");
            assert!(columns.iter().any(|column| column.heading == EARLY));
        }
        check(&PORTS);
        check(&FLOWS);
    }

    #[test]
    fn rates_of_few_connections_have_a_fraction() {
        assert_eq!((count_rate(0.0), count_rate(0.5)), ("0".into(), "0.5".into()));
        assert_eq!((count_rate(9.96), count_rate(1200.4)), ("10".into(), "1,200".into()));
    }
}
