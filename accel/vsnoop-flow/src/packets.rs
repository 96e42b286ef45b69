//! The sources are bpf/packet.h and bpf/rewrite.h; native/packets.c gives them a socket buffer to
//! work on.

use crate::types::{self, ack_fields, flow_key, frame, parsed_frame, segment};

/// A frame's metadata in its socket buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meta {
    /// Bytes in the linear part; the rest must be pulled first.
    pub linear: usize,
    /// Payload bytes of one segment of a super-packet; 0: none.
    pub gso_size: u32,
    /// The VLAN tag in the metadata, not in the frame.
    pub vlan_tci: Option<u16>,
    /// The frame goes to the VM.
    pub to_vm: bool,
}

/// A TCP segment found in a frame.
#[derive(Clone, Copy, Debug)]
pub struct Parsed(parsed_frame);

impl Parsed {
    /// The flow's key, from the sender to the VM.
    pub fn key(&self) -> &flow_key {
        &self.0.key
    }

    /// The segment.
    pub fn segment(&self) -> &segment {
        &self.0.segment
    }

    /// Offset of the TCP header.
    pub fn tcp(&self) -> usize {
        self.0.l4 as usize
    }

    /// Length of the TCP header with options, bytes.
    pub fn tcp_len(&self) -> usize {
        self.0.tcp_len as usize
    }
}

fn view(bytes: &mut [u8], meta: Meta) -> frame {
    frame {
        linear: meta.linear.min(bytes.len()) as u32,
        len: bytes.len() as u32,
        bytes: bytes.as_mut_ptr(),
        gso_size: meta.gso_size,
        vlan_tci: meta.vlan_tci.unwrap_or(0),
        vlan_present: meta.vlan_tci.is_some(),
        to_vm: meta.to_vm,
    }
}

/// Parses a frame; `None` if the hooks pass it untouched.
pub fn parse(bytes: &mut [u8], meta: Meta) -> Option<Parsed> {
    let frame = view(bytes, meta);
    let mut out = parsed_frame::default();
    // SAFETY: `frame` describes `bytes`, which outlives the call; the C code
    // stays within its lengths, keeps no pointer, and writes to `out` alone.
    (unsafe { types::vsnoop_parse(&frame, &mut out) } == 0).then_some(Parsed(out))
}

/// Rewrites ACK and window of a frame of the VM in place. `false` on failure: the hook drops the
/// frame.
pub fn rewrite(bytes: &mut [u8], meta: Meta, parsed: &Parsed, ack: &ack_fields) -> bool {
    let frame = view(bytes, meta);
    // SAFETY: as in parse(); the C code writes within `bytes`.
    unsafe { types::vsnoop_rewrite(&frame, &parsed.0, ack) == 0 }
}
