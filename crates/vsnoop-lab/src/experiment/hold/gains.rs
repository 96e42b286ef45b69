//! What is gained for 100 KB, a line for each cell: within the VM's own window (the rule of the
//! vSnoop report), beyond it, and what the VM did until its answer.

use crate::experiment::spent::{self, RAN};
use crate::results::statistics::{ACKED, DELIVERED, Metric, TOTAL, percentile};
use crate::results::statistics::{ratio_of_medians, values};
use crate::results::table::{Style, grid, milliseconds, or_dash};
use crate::results::{Group, Results, size_text};

const SIZE_BYTES: u64 = 100_000;
const HEADER: [&str; 8] = [
    "cell",
    "acked, within\nthe VM's window\n(`ahead-0`)",
    "acked,\nbeyond it\n(`vsnoop`)",
    "delivered\n(`vsnoop`)",
    "total\nms",
    "the VM\nran ms",
    "it waited\nfor its\nCPU ms",
    "total with\n`priority`\nms",
];

/// How many times sooner than `off`.
struct Gain {
    group: Group,
    within: String,
    beyond: String,
    delivered: String,
}

fn gains(results: &Results) -> Vec<Gain> {
    let times = |group: &Group, name: &str, metric: &Metric| {
        let of = |name: &str| values(results, name, group, metric);
        Some(ratio_of_medians(&of("off"), &of(name))?.text())
    };
    let gain = |group: Group| {
        Some(Gain {
            group,
            within: times(&group, "ahead-0", &ACKED)?,
            beyond: times(&group, "vsnoop", &ACKED)?,
            delivered: times(&group, "vsnoop", &DELIVERED)?,
        })
    };
    let groups = results.groups().into_iter();
    groups.filter(|group| group.size_bytes == SIZE_BYTES).filter_map(gain).collect()
}

/// Times of `vsnoop` with the handshake; a VM with `priority` never waits for its turn.
pub fn table(results: &Results, style: Style) -> Option<String> {
    let row = |Gain { group, within, beyond, delivered }: Gain| {
        let total = |name: &str| percentile(&values(results, name, &group, &TOTAL), 50.0);
        let spent = [
            total("vsnoop"),
            spent::median(results, "vsnoop", &group, RAN),
            spent::waited(results, "vsnoop", &group),
            total("priority"),
        ];
        let row = [group.cell.to_string(), within, beyond, delivered].into_iter();
        row.chain(spent.map(or_dash(milliseconds))).collect()
    };
    let rows: Vec<_> = gains(results).into_iter().map(row).collect();
    let heading = format!("{} in all cells: how many times sooner than off", size_text(SIZE_BYTES));
    let heading = match style {
        Style::Terminal => heading,
        Style::Markdown => format!("### {heading}"),
    };
    (!rows.is_empty()).then(|| format!("{heading}\n\n{}", grid(style, &HEADER, 1, rows)))
}

/// How the first cell differs from the figure of the vSnoop report.
pub fn sentence(results: &Results) -> Option<String> {
    let Gain { group, within, beyond, delivered } = gains(results).into_iter().next()?;
    Some(format!(
        "{} to {}, how many times sooner than with off: acknowledged {within} where vsnoop shows the \
         sender no more than the VM's own window (`ahead-0`, as in the report), {beyond} where it \
         shows what the host can hold beyond that window (`vsnoop`); delivered {delivered} with \
         `vsnoop`. The last table of the results has all cells, with what the VM did until its \
         answer.",
        size_text(SIZE_BYTES),
        group.cell,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::spent::QUEUED;
    use crate::results::Sample;
    use crate::results::testing::{results, sample};

    #[test]
    fn the_gains_are_those_of_100_kb_in_each_cell_where_it_was_measured() {
        let mut samples = vec![sample("off", 90.0), sample("ahead-0", 30.0), sample("vsnoop", 9.0)];
        let small = results(samples.clone());
        assert_eq!((table(&small, Style::Markdown), sentence(&small)), (None, None), "10 KB");
        samples.iter_mut().for_each(|sample| sample.size_bytes = 100_000);
        samples[2].values = [(RAN.into(), 18.0), (QUEUED.into(), 31.0)].into();
        samples.push(Sample {
            size_bytes: 100_000,
            delivered_ms: Some(7.0),
            ..sample("priority", 6.0)
        });
        let results = results(samples);
        let text = sentence(&results).unwrap();
        assert!(text.contains("acknowledged 3.00 where") && text.contains("10 where"), "{text}");
        let text = table(&results, Style::Markdown).unwrap();
        let last: Vec<_> = text.lines().last().unwrap().split('|').map(str::trim).collect();
        assert_eq!(last[2..9], ["3.00", "10", "1.00", "51.0", "18.0", "31.0", "8.0"], "{text}");
        let text = table(&results, Style::Terminal).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}
