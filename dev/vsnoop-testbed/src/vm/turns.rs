//! Decides whose turn it is on a shared core: the rules of `slices`, without clocks and threads.

use std::time::Duration;

/// The time slice of the credit scheduler of the vSnoop report's Xen.
pub const SLICE: Duration = Duration::from_millis(30);

/// The VMs of a core take turns. A turn lasts a slice, or until its VM sleeps; then the next VM in
/// the circle that has work gets one. A VM that works alone goes on.
#[derive(Debug)]
pub struct Turns {
    turn: usize,
    began: Duration,
    /// Since when each VM has work.
    since: Vec<Option<Duration>>,
    /// How long each VM had work in the turns of others, from when it was last asked to `looked`.
    waited: Vec<Duration>,
    looked: Duration,
}

/// The beginning of a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Begin {
    pub vm: usize,
    /// How long it has waited since it had work, or since its turn before.
    pub waited: Duration,
}

impl Turns {
    pub fn new(vms: usize) -> Self {
        Self {
            turn: 0,
            began: Duration::ZERO,
            since: vec![None; vms],
            waited: vec![Duration::ZERO; vms],
            looked: Duration::ZERO,
        }
    }

    pub fn current(&self) -> usize {
        self.turn
    }

    /// How long each VM has waited for its turns since the last call, the present wait included.
    pub fn take_waited(&mut self) -> Vec<Duration> {
        let none = vec![Duration::ZERO; self.waited.len()];
        std::mem::replace(&mut self.waited, none)
    }

    /// Moves the clock to `now`, when these VMs have work; returns the turn that begins.
    pub fn tick(&mut self, now: Duration, works: &[bool]) -> Option<Begin> {
        let passed = now.saturating_sub(self.looked);
        self.looked = now;
        for (vm, waited) in self.waited.iter_mut().enumerate() {
            if vm != self.turn && self.since[vm].is_some() {
                *waited += passed;
            }
        }
        for (since, works) in self.since.iter_mut().zip(works) {
            *since = works.then(|| since.unwrap_or(now));
        }
        let over = now.saturating_sub(self.began) >= SLICE;
        if works[self.turn] && !over {
            return None;
        }
        let count = works.len();
        let next = (1..=count).map(|step| (self.turn + step) % count).find(|&vm| works[vm])?;
        if next == self.turn {
            // It is alone: no wait, but a new slice.
            self.began = now;
            return None;
        }
        // The preempted VM waits from now on.
        if let Some(since) = &mut self.since[self.turn] {
            *since = now;
        }
        let since = self.since[next].unwrap_or(now);
        (self.turn, self.began) = (next, now);
        Some(Begin { vm: next, waited: now.saturating_sub(since) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn busy_vms_wait_for_the_slices_of_the_others() {
        let mut turns = Turns::new(3);
        let begins: Vec<_> =
            (0..200).filter_map(|at| Some((at, turns.tick(ms(at), &[true; 3])?))).collect();
        let vms: Vec<_> = begins.iter().map(|(_, begin)| begin.vm).collect();
        assert_eq!(vms[..4], [1, 2, 0, 1]);
        for pair in begins.windows(2) {
            assert_eq!(pair[1].0 - pair[0].0, 30);
        }
        assert!(begins[3..].iter().all(|(_, begin)| begin.waited == ms(60)), "{begins:?}");
    }

    #[test]
    fn a_vm_that_sleeps_gives_up_its_turn_and_waits_for_the_next() {
        let mut turns = Turns::new(2);
        assert_eq!(turns.tick(ms(0), &[true, true]), None);
        let handed = turns.tick(ms(5), &[false, true]);
        assert_eq!(handed, Some(Begin { vm: 1, waited: ms(5) }));
        // It has work again, but the slice of the other one lasts.
        assert_eq!(turns.tick(ms(6), &[true, true]), None);
        assert_eq!(turns.tick(ms(34), &[true, true]), None);
        assert_eq!(turns.tick(ms(35), &[true, true]), Some(Begin { vm: 0, waited: ms(29) }));
    }

    #[test]
    fn a_wait_counts_while_it_lasts_and_neither_an_own_turn_nor_sleep_does() {
        let mut turns = Turns::new(3);
        // The third one sleeps.
        for at in 0..=50 {
            turns.tick(ms(at), &[true, true, false]);
        }
        assert_eq!(turns.take_waited(), [ms(20), ms(30), ms(0)]);
        for at in 51..=65 {
            turns.tick(ms(at), &[true, true, false]);
        }
        assert_eq!(turns.take_waited(), [ms(10), ms(5), ms(0)]);
    }

    #[test]
    fn a_vm_that_is_alone_goes_on_and_one_that_wakes_on_an_idle_core_does_not_wait() {
        let mut turns = Turns::new(2);
        assert!((0..100).all(|at| turns.tick(ms(at), &[true, false]).is_none()));
        assert_eq!(turns.tick(ms(100), &[false, false]), None);
        assert_eq!(turns.tick(ms(101), &[false, true]), Some(Begin { vm: 1, waited: ms(0) }));
    }
}
