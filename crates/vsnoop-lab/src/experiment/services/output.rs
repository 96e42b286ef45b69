//! What the load generators print.

use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::results::statistics::{ascending, percentile};

/// Who printed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Output {
    /// `wrk --latency`.
    Wrk,
    /// `redis-benchmark --csv`, one test.
    RedisBenchmark,
    /// The transactions that `pgbench --log` has logged.
    Pgbench,
    /// A line for each operation: `us MICROSECONDS`, or `failed`.
    Times,
}

/// What a load generator has measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub operations_per_s: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub errors: f64,
}

impl Output {
    /// `elapsed_s`: how long the load generator ran, for those that do not say it.
    pub fn read(self, text: &str, elapsed_s: f64) -> Result<Measured> {
        let measured = match self {
            Self::Wrk => wrk(text),
            Self::RedisBenchmark => redis_benchmark(text),
            Self::Pgbench => times(text, elapsed_s, |line| {
                // client, transaction, microseconds, script, second, microsecond
                let numbers = line.split(' ').all(|word| word.parse::<u64>().is_ok());
                line.split(' ').nth(2).filter(|_| numbers)
            }),
            Self::Times => times(text, elapsed_s, |line| line.strip_prefix("us ")),
        };
        measured.with_context(|| format!("{self:?} printed {text:?}"))
    }
}

fn wrk(text: &str) -> Result<Measured> {
    let after = |word: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(word));
        line.with_context(|| format!("there is no line {word:?}"))
    };
    let failed = after("Non-2xx or 3xx responses:").map_or(Ok(0.0), number)?;
    // Socket errors: connect 0, read 0, write 0, timeout 0
    let broken = after("Socket errors:").unwrap_or_default();
    let broken = broken.split([' ', ',']).filter_map(|word| word.parse::<f64>().ok()).sum::<f64>();
    Ok(Measured {
        operations_per_s: number(after("Requests/sec:")?)?,
        p50_ms: wrk_ms(after("50%")?)?,
        p99_ms: wrk_ms(after("99%")?)?,
        errors: failed + broken,
    })
}

/// `1.23ms`, `240.00us`, `1.05s`, `1.10m`.
fn wrk_ms(text: &str) -> Result<f64> {
    const UNITS: [(&str, f64); 4] = [("us", 1e-3), ("ms", 1.0), ("s", 1e3), ("m", 60e3)];
    let text = text.trim();
    let unit = UNITS.iter().find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)));
    let (value, ms) = unit.with_context(|| format!("{text:?} has no unit of time"))?;
    Ok(number(value)? * ms)
}

fn redis_benchmark(text: &str) -> Result<Measured> {
    let mut lines = text.lines().filter(|line| line.starts_with('"'));
    let mut fields = || {
        let line = lines.next().context("a line is missing")?;
        Ok::<_, anyhow::Error>(line.split(',').map(|field| field.trim_matches('"')))
    };
    let (names, values) = (fields()?, fields()?);
    let values: Vec<_> = names.zip(values).collect();
    let value = |name: &str| {
        let found = values.iter().find(|(known, _)| *known == name);
        number(found.with_context(|| format!("there is no {name}"))?.1)
    };
    Ok(Measured {
        operations_per_s: value("rps")?,
        p50_ms: value("p50_latency_ms")?,
        p99_ms: value("p99_latency_ms")?,
        // It ends with the first one.
        errors: 0.0,
    })
}

fn times(
    text: &str,
    elapsed_s: f64,
    microseconds: impl Fn(&str) -> Option<&str>,
) -> Result<Measured> {
    let errors = text.lines().filter(|line| *line == "failed").count();
    let times = text.lines().filter(|line| *line != "failed").filter_map(microseconds);
    let times = times.map(number).collect::<Result<Vec<_>>>()?;
    ensure!(!times.is_empty(), "no operation was finished");
    let times = ascending(times.into_iter().map(|us| us / 1e3));
    let at = |percent| percentile(&times, percent).context("no operation was finished");
    Ok(Measured {
        operations_per_s: times.len() as f64 / elapsed_s,
        p50_ms: at(50.0)?,
        p99_ms: at(99.0)?,
        errors: errors as f64,
    })
}

fn number(text: &str) -> Result<f64> {
    f64::from_str(text.trim()).with_context(|| format!("{text:?} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRK: &str = "Running 4s test @ http://10.77.0.10/page
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    12.03ms    3.15ms   1.10s    95.21%
    Req/Sec   331.00    101.15   450.00     80.00%
  Latency Distribution
     50%  980.00us
     75%   12.42ms
     90%   14.51ms
     99%    1.02s
  1323 requests in 4.01s, 1.54MB read
  Socket errors: connect 0, read 1, write 0, timeout 2
  Non-2xx or 3xx responses: 4
Requests/sec:    329.92
Transfer/sec:    392.33KB
";

    #[test]
    fn wrk_is_read_with_its_units_and_all_kinds_of_errors() {
        let measured = Output::Wrk.read(WRK, 1.0).unwrap();
        let expected =
            Measured { operations_per_s: 329.92, p50_ms: 0.98, p99_ms: 1020.0, errors: 7.0 };
        assert_eq!(measured, expected);
        let without: Vec<_> = WRK.lines().filter(|line| !line.contains("rrors:")).collect();
        let without = without.join("\n").replace("Non-2xx or 3xx responses: 4", "");
        assert_eq!(Output::Wrk.read(&without, 1.0).unwrap().errors, 0.0);
        assert!(Output::Wrk.read("unable to connect", 1.0).is_err());
    }

    #[test]
    fn columns_of_redis_benchmark_are_found_by_their_names() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
            \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
            \"SET\",\"512.82\",\"1.5\",\"0.2\",\"0.7\",\"2.0\",\"71.1\",\"99.9\"\n";
        let expected =
            Measured { operations_per_s: 512.82, p50_ms: 0.7, p99_ms: 71.1, errors: 0.0 };
        assert_eq!(Output::RedisBenchmark.read(text, 1.0).unwrap(), expected);
    }

    #[test]
    fn single_times_give_percentiles_and_those_that_failed_are_errors() {
        let text = "us 1000\nfailed\nus 3000\nus 2000\n";
        let expected = Measured { operations_per_s: 1.5, p50_ms: 2.0, p99_ms: 2.98, errors: 1.0 };
        assert_eq!(Output::Times.read(text, 2.0).unwrap(), expected);
        let text = "progress is shown\n0 1 4000 0 1795500000 1\n1 1 6000 0 1795500000 2\n";
        let measured = Output::Pgbench.read(text, 4.0).unwrap();
        assert_eq!((measured.operations_per_s, measured.p50_ms), (0.5, 5.0));
        assert!(Output::Times.read("failed\n", 1.0).is_err());
    }
}
