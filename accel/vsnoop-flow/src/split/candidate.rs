//! A connection that may be split, as the hooks have followed it.

use crate::types::{
    self, SPLIT_F_NEVER, SPLIT_F_SACK, SPLIT_F_SCALES, SPLIT_F_TIMESTAMPS, split_candidate,
    split_state,
};

/// A candidate, as read at some moment.
#[derive(Clone, Copy, Debug)]
pub struct Candidate(pub split_candidate);

/// State of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its segments pass.
    Passes,
    /// The splitter was asked.
    Wanted,
    /// It is split.
    Done,
    /// Not in this epoch.
    Refused,
}

impl Candidate {
    pub fn state(&self) -> State {
        match (self.0.sent >> 32) as types::split_state::Type {
            split_state::SPLIT_WANTED => State::Wanted,
            split_state::SPLIT_DONE => State::Done,
            split_state::SPLIT_REFUSED => State::Refused,
            _ => State::Passes,
        }
    }

    /// SEQ behind the last byte that the VM has sent.
    pub fn sent(&self) -> u32 {
        self.0.sent as u32
    }

    /// The numbers, windows and options.
    pub fn numbers(&self) -> &split_candidate {
        &self.0
    }

    /// Both ends use RFC 7323 timestamps.
    pub fn has_timestamps(&self) -> bool {
        self.has(SPLIT_F_TIMESTAMPS)
    }

    pub fn has_sack(&self) -> bool {
        self.has(SPLIT_F_SACK)
    }

    pub fn has_scales(&self) -> bool {
        self.has(SPLIT_F_SCALES)
    }

    /// Has it an option or a flag by which only its VM can go on?
    pub fn is_unfit(&self) -> bool {
        self.has(SPLIT_F_NEVER)
    }

    fn has(&self, flag: u32) -> bool {
        u32::from(self.0.flags) & flag != 0
    }
}
