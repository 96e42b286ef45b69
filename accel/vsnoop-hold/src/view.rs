//! A snapshot of a connection: a [`hold`] as the engine interprets it.

use vsnoop_flow::types::{self, hold, seq};

/// SACK blocks that a view has at most.
pub(crate) const BLOCKS: usize = 32;

/// Fields are those of `struct hold` (flow/types/hold_record.h) unless they say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The VM has acknowledged everything below.
    pub vm_seq: seq,
    /// Right edge of the VM's window.
    pub right_edge: seq,
    /// The VM was handed all bytes below; includes the FIN.
    pub handed: seq,
    /// Copies begin here, or at VM_SEQ if that is more. There are none of segments that the VM was
    /// handed before the flow had a hold.
    pub first: seq,
    /// End of what is kept.
    pub tail: seq,
    /// The sender's FIN follows the last byte kept.
    pub fin: bool,
    /// The VM has sent nothing beyond its SYN-ACK.
    pub unconfirmed: bool,
    /// Payload of the largest segment that the sender sends, or that the path behind the VM takes,
    /// bytes; at least 1.
    pub mss: u32,
    /// How often the VM has reported a smaller path MTU.
    pub too_big: u32,
    /// The VM takes super-packets; otherwise a frame is one segment.
    pub super_packets: bool,
    /// The far end is one hop behind the VM: inside it, or on a path.
    pub neighbour: bool,
    /// Duplicate ACKs of the VM, which report a loss.
    pub duplicate_acks: u32,
    /// How often the VM opened a closed window, and had dropped what it was handed.
    pub dropped: u32,
    /// ACKs of the VM.
    pub vm_acks: u32,
    /// Segments of the VM in a row whose ACK is below VM_SEQ.
    pub old_acks: u32,
    /// The sender's ACK of the VM's data, and its raw window.
    pub sender: (seq, u16),
    /// The hooks have dropped a segment with it, because a frame was being written.
    pub ack_waits: bool,
    blocks: [(seq, seq); BLOCKS],
    block_count: usize,
}

/// Payload of a segment for the VM at most, bytes; at least 1.
pub(crate) fn segment_bytes(hold: &hold) -> u32 {
    let path = if hold.path_mss > 0 { hold.path_mss } else { u16::MAX };
    u32::from(hold.mss.min(path)).max(1)
}

impl View {
    /// The hold as read from shared memory, of a VM that takes super-packets.
    pub fn new(hold: &hold) -> Self {
        // Without a chunk at most a FIN is held.
        let is_empty = hold.chunks == 0 && hold.vm_seq != hold.tail;
        let tail = if is_empty { hold.vm_seq } else { hold.tail };
        // The flag may be of a later moment than `tail`: a FIN there would end the stream too soon.
        let has_fin = u32::from(hold.flags) & types::HOLD_FIN != 0 && hold.fin_at == hold.tail;
        let fin = has_fin && !is_empty;
        let end = tail.add(fin.into());
        // high_seq, or `handed` if that is later. An old `handed`, from before the hooks handed
        // over by themselves for a while, is behind high_seq, or beyond the end after a wrap.
        let ahead = hold.handed.diff(hold.high_seq) > 0 && hold.handed.diff(end) <= 0;
        let handed = if ahead { hold.handed } else { hold.high_seq };
        // The VM may acknowledge bytes that a killed engine handed over without noting it.
        let handed = if hold.vm_seq.diff(handed) > 0 { hold.vm_seq } else { handed };
        let mut view = Self {
            vm_seq: hold.vm_seq,
            right_edge: hold.right_edge,
            handed,
            first: if hold.chunks == 0 { tail } else { hold.first },
            tail,
            fin,
            unconfirmed: u32::from(hold.flags) & types::HOLD_UNCONFIRMED != 0,
            mss: segment_bytes(hold),
            super_packets: true,
            neighbour: hold.neighbour != 0,
            duplicate_acks: hold.duplicate_acks,
            dropped: hold.dropped,
            vm_acks: hold.vm_acks,
            old_acks: hold.old_acks,
            too_big: hold.too_big,
            sender: (hold.snd_una, hold.sender_window),
            ack_waits: hold.ack_waits != 0,
            blocks: Default::default(),
            block_count: 0,
        };
        view.sort_blocks(hold);
        view
    }

    /// Was everything handed over?
    pub fn is_all_handed(&self) -> bool {
        self.handed.diff(self.end()) >= 0
    }

    /// Are there copies of the byte at VM_SEQ and all that follow? If not, the host has not
    /// acknowledged it early: the sender retransmits.
    pub fn is_kept(&self) -> bool {
        self.vm_seq.diff(self.first) >= 0
    }

    /// Has the VM acknowledged everything?
    pub fn is_done(&self) -> bool {
        self.vm_seq.diff(self.end()) >= 0
    }

    /// Should the VM accept the byte at VM_SEQ? It was handed that byte, there is a copy of it, and
    /// the window has room for a segment, or for all that is held.
    pub fn has_room(&self) -> bool {
        let room = self.right_edge.diff(self.vm_seq);
        let rest = self.tail.diff(self.vm_seq).clamp(1, self.mss as i32);
        self.is_kept() && self.handed.diff(self.vm_seq) > 0 && room >= rest
    }

    /// SEQ after the last byte, or after the FIN.
    pub fn end(&self) -> seq {
        self.tail.add(self.fin.into())
    }

    /// The VM's latest SACK blocks, sorted, without any beyond `handed`.
    pub fn blocks(&self) -> &[(seq, seq)] {
        &self.blocks[..self.block_count]
    }

    /// Replaces the SACK blocks. `blocks`: sorted, and at most [`BLOCKS`].
    pub(crate) fn with_blocks(mut self, blocks: &[(seq, seq)]) -> Self {
        self.block_count = blocks.len();
        self.blocks[..blocks.len()].copy_from_slice(blocks);
        self
    }

    fn sort_blocks(&mut self, hold: &hold) {
        let reported = hold.sack.chunks_exact(2).take(hold.sack_count as usize);
        for (&left, &right) in reported.map(|edges| (&edges[0], &edges[1])) {
            let is_valid = left.diff(self.vm_seq) > 0 && right.diff(left) > 0;
            if is_valid && right.diff(self.handed) <= 0 {
                self.blocks[self.block_count] = (left, right);
                self.block_count += 1;
            }
        }
        let vm_seq = self.vm_seq;
        self.blocks[..self.block_count].sort_by_key(|block| block.0.diff(vm_seq));
    }
}
