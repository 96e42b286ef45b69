//! Properties of one end of a connection, drawn by proptest.

use proptest::prelude::*;

/// One end of the connection.
#[derive(Clone, Debug)]
pub struct EndSettings {
    pub iss: u32,
    pub mss: u16,
    /// Most segments in a super-packet.
    pub units: u16,
    /// Bytes that this end sends.
    pub bytes: u64,
    /// Number of writes, `write_gap_ms` apart.
    pub writes: u64,
    pub write_gap_ms: u64,
    pub rcvbuf: u64,
    pub scale: Option<u8>,
    pub timestamps: bool,
    pub ts_offset: u32,
    pub sack: bool,
    pub ecn: bool,
    /// Bytes of each read of the application, and their interval.
    pub read: u64,
    pub read_gap_ms: u64,
    pub rto_ms: u64,
    /// Timeouts in a row after which it gives up (tcp_retries2).
    pub retries: u32,
    /// Probes a closed window with a byte of data, not with a keep-alive probe.
    pub data_probes: bool,
    /// Accepts the part of a segment that lies within the window.
    pub trims: bool,
    /// Reports duplicates (RFC 2883).
    pub dsack: bool,
    /// Closes only after its peer.
    pub closes_last: bool,
    pub delayed_ack: bool,
    /// Per thousand of segments: tiny ones, urgent ones.
    pub tiny: u32,
    pub urgent: u32,
}

/// A rate that is zero half of the time, so that both calm and stormy runs occur.
pub fn rate(most: u32) -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 1..=most]
}

/// A 32-bit number, often shortly before it wraps.
pub fn near_wrap() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), (0u32..100_000).prop_map(|n| 0u32.wrapping_sub(n)), Just(0x7fff_f000)]
}

/// Any end.
pub fn end() -> impl Strategy<Value = EndSettings> {
    let shape = (
        near_wrap(),
        prop_oneof![Just(1448u16), Just(536), Just(8948), 100u16..1460],
        prop_oneof![Just(1u16), 2u16..44],
        prop_oneof![Just(0u64), 1u64..3_000, 3_000u64..60_000, 60_000u64..200_000],
        prop_oneof![Just(1u64), 2u64..12],
        prop_oneof![0u64..20, 20u64..400, Just(1_500)],
    );
    let receiver = (
        prop_oneof![Just(65_535u64), 3_000u64..20_000, 20_000u64..300_000],
        proptest::option::of(0u8..15),
        prop_oneof![4 => Just(1_000_000u64), 1 => 200u64..20_000],
        prop_oneof![3 => Just(1u64), 1 => 1u64..40],
        any::<bool>(),
        prop::bool::weighted(0.8),
        any::<bool>(),
    );
    let options = (
        prop::bool::weighted(0.7),
        near_wrap(),
        prop::bool::weighted(0.7),
        prop::bool::weighted(0.4),
        200u64..1_000,
        any::<bool>(),
        prop::bool::weighted(0.2),
        rate(100),
        prop_oneof![9 => Just(0u32), 1 => 1u32..20],
    );
    (shape, receiver, options).prop_map(|(shape, receiver, options)| {
        let (iss, mss, units, bytes, writes, write_gap_ms) = shape;
        let (rcvbuf, scale, read, read_gap_ms, trims, delayed_ack, dsack) = receiver;
        let (timestamps, ts_offset, sack, ecn, rto_ms, data_probes, closes_last, tiny, urgent) =
            options;
        let rcvbuf = rcvbuf.max(u64::from(mss) + 200);
        EndSettings {
            iss,
            mss,
            units: units.min(65_000 / mss),
            bytes,
            writes,
            write_gap_ms,
            rcvbuf,
            // A unit of the window that is a small part of the buffer.
            scale: scale.map(|s| s.min(rcvbuf.ilog2() as u8 - 2)),
            timestamps,
            ts_offset,
            sack,
            ecn,
            read,
            read_gap_ms,
            rto_ms,
            retries: u32::MAX,
            data_probes,
            trims,
            dsack,
            closes_last,
            delayed_ack,
            tiny,
            urgent,
        }
    })
}
