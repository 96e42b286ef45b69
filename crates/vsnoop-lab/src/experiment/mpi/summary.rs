//! Tables, figures and plots of the runner `mpi`.

use std::path::Path;

use anyhow::Result;

use crate::results::bars::{self, Bar, Bars};
use crate::results::drawing::{COLOURS, Drawing};
use crate::results::statistics::{Ratio, named, percentile, ratio_of_medians};
use crate::results::table::{Style, grid, milliseconds, or_dash, ratio};
use crate::results::{Figure, Group, Results, size_text};

/// As the program that times them prints their names.
pub const COLLECTIVES: [&str; 2] = ["bcast", "alltoall"];
/// The names of values of a sample.
pub const HPL: &str = "hpl_mflops";
/// What the machines had of the core while a program ran: those of the ranks, the loaded ones.
pub const RANKS_CPU: &str = "ranks_cpu_percent";
pub const LOADED_CPU: &str = "loaded_cpu_percent";

const OFF: &str = "off";
const VSNOOP: &str = "vsnoop";
const FILE: &str = "normalised";

/// The name of the time of a collective.
pub fn time(collective: &str, bytes: u64) -> String {
    format!("{collective}_{bytes}_ms")
}

/// A value that programs of both configurations have.
struct Value {
    group: Group,
    name: String,
    /// For people.
    text: String,
    /// Times, of which less is better, and not rates.
    is_time: bool,
}

impl Value {
    /// By collective and size; Systems of equations are last.
    fn all(results: &Results) -> Vec<Self> {
        results.groups().into_iter().flat_map(|group| Self::of(results, group)).collect()
    }

    fn of(results: &Results, group: Group) -> Vec<Self> {
        if group.size_bytes > 0 {
            let text = format!("HPL N = {}", group.size_bytes);
            return vec![Self { group, name: HPL.into(), text, is_time: false }];
        }
        let samples = [OFF, VSNOOP].into_iter().flat_map(|name| {
            results.of(name, &group).flat_map(|sample| sample.values.keys()).collect::<Vec<_>>()
        });
        let sized = |name: &String| {
            let mut words = name.split('_');
            let first = words.next()?;
            let collective = COLLECTIVES.iter().position(|one| *one == first)?;
            Some((collective, words.next()?.parse().ok()?))
        };
        let mut found: Vec<(usize, u64)> = samples.filter_map(sized).collect();
        found.sort_unstable();
        found.dedup();
        let value = |(collective, bytes): (usize, u64)| {
            let collective = COLLECTIVES[collective];
            let text = format!("{collective} {}", size_text(bytes));
            Self { group, name: time(collective, bytes), text, is_time: true }
        };
        found.into_iter().map(value).collect()
    }

    fn measured(&self, results: &Results, configuration: &str) -> Vec<f64> {
        named(results, configuration, &self.group, &self.name)
    }

    /// How many times faster with vsnoop.
    fn faster(&self, results: &Results) -> Option<Ratio> {
        let [off, vsnoop] = [OFF, VSNOOP].map(|name| self.measured(results, name));
        if self.is_time { ratio_of_medians(&off, &vsnoop) } else { ratio_of_medians(&vsnoop, &off) }
    }
}

pub fn tables(results: &Results, style: Style) -> String {
    let header = ["program", "unit", "n", "off p50", "vsnoop p50", "times faster\n(95 %)"];
    let row = |value: Value| {
        let median =
            |name: &str| or_dash(milliseconds)(percentile(&value.measured(results, name), 50.0));
        let faster = value.faster(results).map_or("-".into(), |ratio| ratio.text());
        let n = value.measured(results, OFF).len().to_string();
        let unit = if value.is_time { "ms" } else { "Mflop/s" };
        vec![value.text.clone(), unit.into(), n, median(OFF), median(VSNOOP), faster]
    };
    let cells = results.cells().into_iter().map(|cell| {
        let of_cell = Value::all(results).into_iter().filter(|value| value.group.cell == cell);
        format!("{cell}\n\n{}", grid(style, &header, 2, of_cell.map(row).collect()))
    });
    cells.collect::<Vec<_>>().join("\n\n")
}

pub fn figures(results: &Results) -> Vec<Figure> {
    let figure = |value: Value| {
        let size = match value.group.size_bytes {
            0 => String::new(),
            n => format!("_{n}"),
        };
        let name = value.name.trim_end_matches("_ms").trim_end_matches("_mflops");
        Some(Figure {
            name: format!("mpi_faster_{name}{size}_{}", value.group.cell.suffix()),
            value: value.faster(results)?.value,
            unit: "times".into(),
            better: "higher".into(),
        })
    };
    Value::all(results).into_iter().filter_map(figure).collect()
}

/// Normalised as in the paper: times with vsnoop by those without.
pub fn plots(results: &Results, dir: &Path) -> Result<Vec<String>> {
    const GROUPS: [bars::Group; 3] = [
        bars::Group { name: "Broadcast", colour: COLOURS[0] },
        bars::Group { name: "Alltoall", colour: COLOURS[1] },
        bars::Group { name: "HPL", colour: COLOURS[2] },
    ];
    let bar = |value: Value| {
        let group = COLLECTIVES.iter().position(|one| value.name.starts_with(one));
        let group = group.unwrap_or(COLLECTIVES.len());
        Some(Bar { value: 1.0 / value.faster(results)?.value, name: value.text, group })
    };
    let bars = Value::all(results).into_iter().filter_map(bar).collect();
    let title = "Time with vsnoop, as a share of the time without".to_owned();
    Bars { title, unit: "", groups: &GROUPS, bars }.draw(dir, FILE)?;
    Ok(vec![FILE.to_owned()])
}

pub fn difference(results: &Results) -> Option<String> {
    let faster = |value: Value| Some((value.faster(results)?, value.text));
    let (ratios, names): (Vec<_>, Vec<_>) =
        Value::all(results).into_iter().filter_map(faster).unzip();
    let first = ratios.first()?;
    let those = |is_it: fn(&Ratio) -> bool| {
        let found = ratios.iter().zip(&names).filter(|(ratio, _)| is_it(ratio));
        found.map(|(_, name)| name.as_str()).collect::<Vec<_>>()
    };
    let clear = those(|ratio| !ratio.is_noise()).len();
    let mut clear = match ratios.iter().any(Ratio::has_interval) {
        true => format!("{clear} differ beyond the noise"),
        false => "none has rounds enough for an interval".to_owned(),
    };
    let noise = those(|ratio| ratio.has_interval() && ratio.is_noise());
    if !noise.is_empty() {
        clear += &format!(", not {}", noise.join(", "));
    }
    let few = those(|ratio| !ratio.has_interval());
    if few.len() < ratios.len() && !few.is_empty() {
        clear += &format!(" ({} have too few rounds for an interval)", few.join(", "));
    }
    let (low, high) = ratios.iter().fold((first.value, first.value), |(low, high), one| {
        (low.min(one.value), high.max(one.value))
    });
    let all = || results.samples.iter();
    let mean = |name: &str| {
        let values: Vec<_> = all().filter_map(|sample| sample.values.get(name)).collect();
        values.iter().copied().sum::<f64>() / values.len().max(1) as f64
    };
    Some(format!(
        "of {} programs and sizes {clear}; by medians vsnoop is {} to {} times as \
         fast; the paper has a gain in all. Collectives ran beside {} load (in the paper 60 %), HPL \
         beside {} (30 %). Here all eight machines share one core: those of the ranks, which poll while \
         they wait, had {:.0} % of it, the loaded ones {:.0} %.",
        ratios.len(),
        ratio(low),
        ratio(high),
        loads(results, |group| group.size_bytes == 0),
        loads(results, |group| group.size_bytes > 0),
        mean(RANKS_CPU),
        mean(LOADED_CPU),
    ))
}

/// The loads beside which programs ran.
fn loads(results: &Results, are_of: fn(&Group) -> bool) -> String {
    let mut percents: Vec<String> = Vec::new();
    for group in results.groups().into_iter().filter(are_of) {
        let percent = format!("{:.0} %", group.cell.load * 100.0);
        percents.extend((!percents.contains(&percent)).then_some(percent));
    }
    if percents.is_empty() { "no".into() } else { percents.join(" and ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Sample;
    use crate::results::testing::results;

    #[test]
    fn less_time_and_more_flops_are_both_faster() {
        let sample = |configuration: &str, n: u64, name: &str, value: f64| Sample {
            configuration: configuration.into(),
            size_bytes: n,
            values: [(name.to_owned(), value)].into(),
            ..Sample::default()
        };
        let results = results(vec![
            sample(OFF, 0, &time("alltoall", 65_536), 60.0),
            sample(VSNOOP, 0, &time("alltoall", 65_536), 20.0),
            sample(OFF, 400, HPL, 0.1),
            sample(VSNOOP, 400, HPL, 0.2),
        ]);
        let figures: Vec<_> = figures(&results).into_iter().map(|f| (f.name, f.value)).collect();
        assert_eq!(figures[0], ("mpi_faster_alltoall_65536_0vms_load0".into(), 3.0));
        assert_eq!(figures[1], ("mpi_faster_hpl_400_0vms_load0".into(), 2.0));
        let table = tables(&results, Style::Markdown);
        assert!(table.contains("alltoall 66 KB") || table.contains("alltoall 65"), "{table}");
        let difference = difference(&results).unwrap();
        assert!(difference.contains("of 2 programs") && difference.contains("2.00 to 3.00"));
        assert!(difference.contains("none has rounds enough"), "{difference}");
        assert!(difference.contains("beside 0 % load (in the paper 60 %)"), "{difference}");
    }

    #[test]
    fn the_difference_names_what_shows_no_gain_and_what_has_too_few_rounds() {
        let mut samples = Vec::new();
        for (configuration, ms) in [(OFF, 60.0), (VSNOOP, 20.0)] {
            let values = [(time("bcast", 1000), 50.0), (time("bcast", 4000), ms)].into();
            let one = Sample { configuration: configuration.into(), values, ..Sample::default() };
            samples.extend(vec![one; 6]);
            let values = [(HPL.into(), 1.0)].into();
            let configuration = configuration.into();
            samples.push(Sample { configuration, size_bytes: 800, values, ..Sample::default() });
        }
        let text = difference(&results(samples)).unwrap();
        let part = "of 3 programs and sizes 1 differ beyond the noise, not bcast 1 KB (HPL N = 800 \
                    have too few rounds for an interval);";
        assert!(text.contains(part), "{text}");
    }
}
