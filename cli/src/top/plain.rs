//! Tables of the ports, where there is no terminal.

use std::time::{Duration, Instant};

use anyhow::Result;
use vsnoop_host::units;

use super::columns::{EARLY, PORTS};
use super::list::{Browse, List};
use super::rows::{self, PortRow, Total};
use super::source::Source;
use crate::output::fold::fold_text;
use crate::output::table::{self, NOTHING};
use crate::output::watch::{Interrupt, print_text};

/// Prints a table for each interval: one, or until the end of `duration` or a signal.
pub fn run_plain(mut source: Source, interval: Duration, duration: Option<Duration>) -> Result<()> {
    let interrupt = Interrupt::catch_signals()?;
    let start = Instant::now();
    let mut before = source.take_sample()?;
    loop {
        interrupt.sleep_until(before.at + interval);
        if interrupt.is_set() {
            return Ok(());
        }
        let now = source.take_sample()?;
        print_text(&render_text(rows::of_ports(Some(&before), &now)))?;
        before = now;
        if duration.is_none_or(|duration| start.elapsed() >= duration) {
            return Ok(());
        }
    }
}

fn render_text(rows: Vec<PortRow>) -> String {
    if rows.is_empty() {
        return fold_text(NOTHING);
    }
    let total = Total::sum_rows(&rows);
    let mut list = List::new(&PORTS, EARLY);
    list.replace_rows(rows);
    let used: Vec<_> = list.used_columns().into_iter().map(|index| &PORTS[index]).collect();
    let headings: Vec<_> = used
        .iter()
        .map(|column| format!("{}{}", if column.is_number { ">" } else { "" }, column.heading))
        .collect();
    let mut table = table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>());
    for row in list.iter() {
        table.add_row(
            used.iter().map(|column| (column.value)(row).show_value()).collect::<Vec<_>>(),
        );
    }
    let troubles = total.without_engine.iter().map(|port| format!("\n{port}: no engine serves it"));
    let troubles: String = troubles.collect();
    let ports = units::plural(total.ports as u64, "port");
    fold_text(&format!(
        "{ports}, {} active\n{}{troubles}",
        total.active,
        table::render_table(&table)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::longest;
    use crate::top::sample::HoldSample;
    use crate::top::testing::{port, sample};

    #[test]
    fn the_table_of_an_interval_stays_narrow_whatever_its_values() {
        let mut before = sample(vec![port(1, longest::INTERFACE), port(2, "tap0")]);
        before.ports[0].netns = longest::identity().netns_name;
        before.ports[0].vm = Some("a-name-of-a-vm-as-long-as-one-may-be".into());
        before.ports[0].state = "observing";
        let mut now = before.clone();
        now.at += Duration::from_millis(1);
        let port = &mut now.ports[0];
        (port.early_bytes, port.to_vm_bytes, port.flows_created) = (u64::MAX, u64::MAX, u64::MAX);
        (port.flows, port.resets) = (Some(u64::MAX), u64::MAX);
        port.masked_ns[39] = u64::MAX;
        let hold = HoldSample {
            used_bytes: (255 << 20) - 1,
            size_bytes: 255 << 20,
            engine_is_alive: false,
        };
        port.hold = Some(hold);
        let text = render_text(rows::of_ports(Some(&before), &now));
        longest::assert_narrow(&text);
        for word in ["2 ports, 1 active", "100 %", "255/255 MiB", "masked"] {
            assert!(text.contains(word), "{word:?} is not in:\n{text}");
        }
    }

    #[test]
    fn without_ports_it_says_how_to_find_some() {
        assert!(render_text(Vec::new()).contains("no port is attached"));
    }
}
