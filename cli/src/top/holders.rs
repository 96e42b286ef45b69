//! Names of the VMs behind ports.
//!
//! To find the process that holds a tap means to read the descriptors of all processes, so the
//! result is kept: while its process lives, a name is looked up again only once a minute.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use vsnoop_host::system::holder;
use vsnoop_host::system::process::{self, Process};

/// Time between two searches while a port has no known VM.
const SEARCH: Duration = Duration::from_secs(5);
/// Time after which names are looked up in any case: a process may give its tap away.
const AGAIN: Duration = Duration::from_secs(60);
/// A search of this share of the time, 1/N, is the most.
const SHARE: u32 = 20;

/// A tap: its name and the inode of its network namespace.
pub type Tap = (String, u64);

#[derive(Default)]
pub struct Holders {
    known: HashMap<Tap, Holder>,
    /// When the last search began, and how long it took.
    searched: Option<(Instant, Duration)>,
}

struct Holder {
    process: Process,
    name: String,
}

impl Holders {
    /// Forgets processes that have ended, and searches if a tap has none.
    pub fn update<'a>(&mut self, mut taps: impl Iterator<Item = &'a Tap>) {
        self.known.retain(|_, holder| holder.process.is_alive());
        let is_complete = taps.all(|tap| self.known.contains_key(tap));
        let now = Instant::now();
        if self.searched.is_some_and(|last| now < next_due(last, is_complete)) {
            return;
        }
        let found = holder::of_all_taps().into_iter().map(|(tap, found)| {
            let process = found.process;
            let name = process::vm_name(process.pid).unwrap_or_else(|| process.name.clone());
            (tap, Holder { process, name })
        });
        self.known = found.collect();
        self.searched = Some((now, now.elapsed()));
    }

    /// The VM's name, or that of the process that holds the tap.
    pub fn name(&self, tap: &Tap) -> Option<&str> {
        self.known.get(tap).map(|holder| holder.name.as_str())
    }
}

/// When the next search is due after one that began and took so much time.
fn next_due((began, took): (Instant, Duration), is_complete: bool) -> Instant {
    let gap = if is_complete { AGAIN } else { SEARCH };
    began + gap.max(took * SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_takes_a_small_share_of_the_time() {
        let began = Instant::now();
        assert_eq!(next_due((began, Duration::ZERO), false), began + SEARCH);
        assert_eq!(next_due((began, Duration::ZERO), true), began + AGAIN);
        assert_eq!(
            next_due((began, Duration::from_secs(4)), false),
            began + Duration::from_secs(80)
        );
    }
}
