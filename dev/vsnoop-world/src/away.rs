//! A VM that has moved to another port of its host's bridge: its frames do not pass the programs on
//! its tap. What goes by that port, and what the engine knows of it.

use std::collections::VecDeque;

use vsnoop_hold::moves::Moves;

use crate::frame::Frame;

/// The other port.
pub const PORT: u32 = 99;

/// Who sends a frame at the other port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    Vm,
    Sender,
}

/// The other port of a VM, and what the engine knows of it.
#[derive(Clone, Debug, Default)]
pub struct Away {
    /// The VM is behind the other port.
    pub has_moved: bool,
    /// Its ring there.
    pub ring: VecDeque<Frame>,
    /// The frames that it has sent there, on their way to the senders.
    pub sent: VecDeque<Frame>,
    /// The engine has heard these frames, each with its speaker.
    pub heard: VecDeque<(Speaker, Frame)>,
    pub moves: Moves,
    /// When it asks the bridge again.
    pub look_at: u64,
}

impl Away {
    /// The VM sends a frame.
    pub fn send(&mut self, frame: Frame) {
        self.is_heard(Speaker::Vm, &frame);
        self.sent.push_back(frame);
    }

    /// The engine hears a frame at that port, if it has found the VM there.
    pub fn is_heard(&mut self, speaker: Speaker, frame: &Frame) {
        if !self.moves.followed().is_empty() {
            self.heard.push_back((speaker, frame.clone()));
        }
    }

    /// The engine dies, and its sockets with it.
    pub fn forget_engine(&mut self) {
        (self.moves, self.look_at) = (Moves::default(), 0);
        self.heard.clear();
    }

    pub fn is_followed(&self) -> bool {
        self.moves.are_any()
    }
}
