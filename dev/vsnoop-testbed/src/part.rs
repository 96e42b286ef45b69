//! Parts of a test program, which scripts/beside.sh runs side by side: a program that waits most of
//! the time, and whose tests run one after the other, would be the last to end.

use std::env;

/// Names the part that this run has: `2/3`, the second of three. Without it a run has all tests.
const PART: &str = "VSNOOP_TEST_PART";

/// The tests of this run: every Nth of all, so that neighbours, which take about as long, are in
/// different parts.
///
/// # Panics
/// If `VSNOOP_TEST_PART` names no part.
pub fn of_this_run<T>(all: Vec<T>) -> Vec<T> {
    let Ok(part) = env::var(PART) else { return all };
    let Some((which, count)) = parsed(&part) else {
        panic!("{PART} is {part:?}: say it as 2/3, the second of three parts");
    };
    chosen(all, which, count)
}

fn parsed(part: &str) -> Option<(usize, usize)> {
    let (which, count) = part.split_once('/')?;
    let (which, count) = (which.parse().ok()?, count.parse().ok()?);
    (1..=count).contains(&which).then_some((which, count))
}

fn chosen<T>(all: Vec<T>, which: usize, count: usize) -> Vec<T> {
    let numbered = all.into_iter().enumerate();
    numbered.filter(|(index, _)| index % count == which - 1).map(|(_, test)| test).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_is_in_one_part() {
        for count in 1..5 {
            let parts = (1..=count).map(|which| chosen((0..13).collect(), which, count));
            let mut all: Vec<i32> = parts.flatten().collect();
            all.sort_unstable();
            assert_eq!(all, (0..13).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_part_that_is_none_is_refused() {
        assert_eq!(parsed("2/3"), Some((2, 3)));
        for part in ["0/3", "4/3", "3", "a/b", "/", "1/0"] {
            assert_eq!(parsed(part), None, "{part}");
        }
    }
}
