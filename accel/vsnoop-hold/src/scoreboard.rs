//! SACK scoreboard (RFC 6675): which bytes beyond VM_SEQ the VM has reported.
//!
//! An ACK has room for three or four blocks, the latest ones. After a burst of losses there are
//! more, and a hole between two of the latest blocks may have arrived long ago. A receiver may drop
//! what it has reported (RFC 2018, section 8), so that a second
//! timeout in a row empties the scoreboard.

use vsnoop_flow::types::seq;

use crate::view::{BLOCKS, View};

/// Blocks beyond VM_SEQ, sorted, with a hole between each two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scoreboard(Vec<(seq, seq)>);

impl Scoreboard {
    /// The view with all blocks that were reported: of too many the first ones.
    pub fn complete(&mut self, view: &View) -> View {
        let mut all = std::mem::take(&mut self.0);
        all.extend_from_slice(view.blocks());
        all.retain(|&(left, right)| {
            left.diff(view.vm_seq) > 0 && right.diff(view.handed) <= 0 && right.diff(left) > 0
        });
        all.sort_by_key(|block| block.0.diff(view.vm_seq));
        for (left, right) in all {
            match self.0.last_mut() {
                Some(last) if left.diff(last.1) <= 0 => last.1 = last.1.max(right),
                _ => self.0.push((left, right)),
            }
        }
        self.0.truncate(BLOCKS);
        view.with_blocks(&self.0)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
