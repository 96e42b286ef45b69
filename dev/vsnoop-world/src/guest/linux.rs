//! A VM whose TCP is like Linux's (`vsnoop_flow::testing::tcp`).

use std::collections::BTreeMap;

use fastrand::Rng;
use vsnoop_flow::testing::end::EndSettings;
use vsnoop_flow::testing::tcp::{Tcp, TcpState};

use super::tcp::{Guest, Progress};
use crate::frame::{Frame, Summed};
use crate::layout;
use crate::wire::{self, Path};

#[derive(Clone, Debug)]
pub struct Linux {
    ends: BTreeMap<usize, (Path, Tcp)>,
}

impl Linux {
    pub fn new(ends: &[(usize, Path, EndSettings)]) -> Self {
        let ends = ends.iter().map(|(c, path, end)| (*c, (path.clone(), Tcp::new(end.clone(), 1))));
        Self { ends: ends.collect() }
    }

    /// The end of connection `c`.
    pub fn tcp(&self, c: usize) -> &Tcp {
        &self.ends[&c].1
    }

    fn tcp_mut(&mut self, c: usize) -> &mut Tcp {
        &mut self.ends.get_mut(&c).expect("a connection of this VM").1
    }
}

impl Guest for Linux {
    fn open(&mut self, c: usize, now: u64) {
        self.tcp_mut(c).open(now);
    }

    fn abort(&mut self, c: usize) {
        self.tcp_mut(c).abort();
    }

    fn input(&mut self, now: u64, frame: &Frame, rng: &mut Rng) {
        let Some((from, to)) = layout::ports(&frame.bytes) else { return };
        let Some(segment) = wire::decode(frame) else { return };
        let end = self.ends.values_mut().find(|(p, _)| (p.sender.1, p.vm.1) == (from, to));
        if let Some((_, tcp)) = end {
            tcp.input(now, &segment, rng);
        }
    }

    fn timers(&mut self, now: u64, rng: &mut Rng) {
        self.ends.values_mut().for_each(|(_, tcp)| tcp.timers(now, rng));
    }

    fn next_timer(&mut self, now: u64) -> Option<u64> {
        self.ends.values().filter_map(|(_, tcp)| tcp.next_timer(now)).min()
    }

    fn has_memory(&mut self, now: u64, has_memory: bool) {
        self.ends.values_mut().for_each(|(_, tcp)| tcp.has_memory(now, has_memory));
    }

    fn output(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        for (path, tcp) in self.ends.values_mut() {
            let sent = tcp.out.drain(..);
            frames.extend(sent.map(|s| wire::encode(&s, path, false, Summed::Partial)));
        }
        frames
    }

    fn progress(&self, c: usize) -> Progress {
        let tcp = self.tcp(c);
        Progress {
            accepted: tcp.rcv_nxt,
            is_done: tcp.is_done(),
            is_reset: tcp.state == TcpState::Reset,
            is_open: tcp.state == TcpState::Open && !tcp.is_done(),
            early_fin: None,
        }
    }

    fn copy(&self) -> Box<dyn Guest> {
        Box::new(self.clone())
    }
}
