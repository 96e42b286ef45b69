//! The columns of both tables.

use vsnoop_host::units;

use super::column::{Column, Tone, Value, column, number};
use super::rows::{Change, FlowRow, PortRow};

pub const EARLY: &str = "early/s";

pub static PORTS: [Column<PortRow>; 11] = [
    Column {
        meaning: "name of the tap",
        least_width: 6,
        ..column("port", |row| Value::Text(&row.name))
    },
    Column {
        meaning: "its network namespace, for --netns",
        rank: 10,
        is_used: |row| row.netns.is_some(),
        ..column("netns", |row| Value::from_text(row.netns.as_deref()))
    },
    Column {
        meaning: "active, paused, observing, or gone with its tap",
        rank: 4,
        least_width: 6,
        tone: state_tone,
        ..column("state", |row| Value::Text(row.state))
    },
    Column {
        meaning: "the VM, or the process that holds the tap",
        rank: 5,
        is_used: |row| row.vm.is_some(),
        ..column("vm", |row| Value::from_text(row.vm.as_deref()))
    },
    Column {
        meaning: "bytes acknowledged early, per second",
        rank: 1,
        least_width: 8,
        ..number(EARLY, |row| Value::from_number(of_change(row, Change::early_rate), byte_rate))
    },
    Column {
        meaning: "their part of all bytes to the VM, headers included: who gains",
        rank: 6,
        least_width: 5,
        ..number("share", |row| {
            Value::from_number(of_change(row, Change::share).flatten(), units::percent)
        })
    },
    Column {
        meaning: "median time by which the host acknowledged sooner than the VM",
        rank: 2,
        least_width: 7,
        ..number("masked", |row| {
            Value::from_whole(of_change(row, Change::masked_ns).flatten(), units::duration)
        })
    },
    Column {
        meaning: "memory with copies for the VM, of the most that it may have",
        rank: 3,
        least_width: 11,
        tone: hold_tone,
        ..number("hold", hold_value)
    },
    Column {
        meaning: "connections on record, counted in turn",
        rank: 7,
        least_width: 5,
        ..number("flows", |row| Value::from_whole(row.flows, units::count))
    },
    Column {
        meaning: "new connections per second",
        rank: 9,
        least_width: 5,
        ..number("new/s", |row| Value::from_number(of_change(row, Change::new_rate), count_rate))
    },
    Column {
        meaning: "connections that were reset, since the port was attached",
        rank: 8,
        tone: |row| if row.resets > 0 { Tone::Bad } else { Tone::Plain },
        ..number("resets", |row| Value::Whole(row.resets, units::count))
    },
];

pub static FLOWS: [Column<FlowRow>; 9] = [
    Column {
        meaning: "the end that sends to the VM",
        least_width: 18,
        ..column("sender", |row| Value::End(row.flow.id.sender))
    },
    Column {
        meaning: "the VM's end",
        rank: 4,
        least_width: 16,
        ..column("vm", |row| Value::End(row.flow.id.vm))
    },
    Column {
        meaning: "as `vsnoop flows` shows it (docs/reference/command.md)",
        rank: 3,
        least_width: 7,
        tone: mode_tone,
        ..column("mode", |row| Value::Text(row.flow.mode))
    },
    Column {
        meaning: "bytes acknowledged early, per second",
        rank: 1,
        least_width: 8,
        ..number(EARLY, |row| Value::from_number(row.early_rate, byte_rate))
    },
    Column {
        meaning: "bytes acknowledged early in all",
        rank: 7,
        least_width: 8,
        ..number("early", |row| Value::Whole(row.flow.early_bytes, units::bytes))
    },
    Column {
        meaning: "bytes acknowledged early, and not by the VM yet",
        rank: 5,
        least_width: 9,
        ..number("on its way", |row| Value::Whole(row.flow.outstanding_bytes, units::bytes))
    },
    Column {
        meaning: "of these, what waits on this host for room in the VM",
        rank: 2,
        least_width: 8,
        ..number("held", |row| Value::from_whole(row.flow.held_bytes, units::bytes))
    },
    Column {
        meaning: "bytes that the VM was handed again",
        rank: 8,
        least_width: 8,
        ..number("again", |row| Value::from_whole(row.flow.resent_bytes, units::bytes))
    },
    Column {
        meaning: "time since the last packet that needed a decision",
        rank: 6,
        least_width: 7,
        ..number("idle", |row| Value::Whole(row.flow.idle_ns, units::duration))
    },
];

fn of_change<T>(row: &PortRow, value: fn(&Change) -> T) -> Option<T> {
    row.change.as_ref().map(value)
}

/// For example "12.3 MiB".
pub fn byte_rate(bytes: f64) -> String {
    units::bytes(bytes.round() as u64)
}

/// For example "0.5" or "1,200".
fn count_rate(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { units::count(rate.round() as u64) }
}

fn hold_value(row: &PortRow) -> Value<'_> {
    row.hold.map_or(Value::Unknown, |hold| Value::Part(hold.used_bytes, hold.size_bytes))
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
        "active" | "split" => Tone::Good,
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
