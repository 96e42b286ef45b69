//! Well-formed frames must be parsed exactly, rewritten frames must be such as a VM could have
//! sent, and no input may lead the code outside of the frame or into undefined behaviour (which
//! traps here).

mod frame;

use proptest::prelude::*;
use vsnoop_flow::packets::{Meta, parse, rewrite};
use vsnoop_flow::{ack_fields, seq, types::*};

use frame::{DST_MAC, Guarded, SRC_MAC, TcpOption, TestFrame, frame, option};

fn all(bytes: &[u8], to_vm: bool) -> Meta {
    Meta { linear: bytes.len(), to_vm, ..Meta::default() }
}

fn bit(bits: u16, bit: u32) -> bool {
    u32::from(bits) & bit != 0
}

/// A window scale, timestamps and SACK as the last such option says.
fn check_options(f: &TestFrame, s: &vsnoop_flow::segment) {
    let options = f.fitting();
    let timestamps = options.iter().rev().find_map(|o| match o {
        TcpOption::Timestamps(v, e) => Some((*v, *e)),
        _ => None,
    });
    let sack = options.iter().rev().find_map(|o| match o {
        TcpOption::Sack(blocks) => {
            blocks.iter().map(|b| seq::new(b.1)).reduce(|a, b| if b.diff(a) > 0 { b } else { a })
        }
        _ => None,
    });
    let scale = options.iter().rev().find_map(|o| match o {
        TcpOption::Scale(shift) => Some((*shift).min(14)),
        _ => None,
    });
    let mut at = 0;
    let mut unaligned = false;
    for option in &options {
        unaligned |= matches!(option, TcpOption::Sack(_)) && at % 4 != 2;
        at += option.bytes().len();
    }
    let is_foreign = |option: &&TcpOption| matches!(option, TcpOption::Foreign(..));
    let foreign = options.iter().any(is_foreign) || f.reserved != 0;
    let permitted = options.iter().any(|o| matches!(o, TcpOption::SackPermitted));
    assert_eq!(bit(s.bits, SEG_TIMESTAMPS), timestamps.is_some());
    assert_eq!((s.tsval, s.tsecr), timestamps.unwrap_or_default());
    assert_eq!(bit(s.bits, SEG_SACK), sack.is_some());
    assert_eq!(s.sack_end, sack.unwrap_or(seq::new(0)));
    assert_eq!(bit(s.bits, SEG_SCALE), scale.is_some());
    assert_eq!(s.scale, scale.unwrap_or(0));
    assert_eq!(bit(s.bits, SEG_FOREIGN), foreign);
    assert_eq!(bit(s.bits, SEG_SACK_ODD), unaligned);
    assert_eq!(bit(s.bits, SEG_SACK_PERMITTED), permitted);
}

/// A VM's ACK with SACK blocks as TCPs send them: aligned by two NOPs.
fn with_sack() -> impl Strategy<Value = TestFrame> {
    (
        frame(),
        prop::option::of(any::<(u32, u32)>()),
        prop::collection::vec(any::<(u32, u32)>(), 1..4),
    )
        .prop_map(|(mut f, timestamps, blocks)| {
            f.options.clear();
            f.options.extend([TcpOption::Nop, TcpOption::Nop]);
            if let Some((v, e)) = timestamps {
                f.options.push(TcpOption::Timestamps(v, e));
                f.options.extend([TcpOption::Nop, TcpOption::Nop]);
            }
            f.options.push(TcpOption::Sack(blocks));
            f
        })
}

fn cases() -> ProptestConfig {
    ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok()).unwrap_or(4_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_well_formed_frame_is_understood_as_it_was_meant(
        f in frame(), to_vm in any::<bool>(), linear in 0usize..200, gso in 0u32..400,
        beside in proptest::option::of(any::<u16>()),
    ) {
        // With a tag in the metadata the frame itself has one at most.
        let mut f = f;
        if beside.is_some() {
            f.tags.truncate(1);
        }
        let bytes = f.bytes();
        let mut memory = Guarded::new(&bytes);
        let meta = Meta { linear, to_vm, gso_size: gso, vlan_tci: beside };
        let parsed = parse(memory.bytes(), meta).expect("it is TCP");
        let (key, s) = (parsed.key(), parsed.segment());

        let (sender, vm) = if to_vm { (f.src, f.dst) } else { (f.dst, f.src) };
        let (sender_port, vm_port) = if to_vm { (f.sport, f.dport) } else { (f.dport, f.sport) };
        prop_assert_eq!((key.sender_addr, key.vm_addr), (sender, vm));
        prop_assert_eq!(key.sender_port, sender_port.to_be());
        prop_assert_eq!(key.vm_port, vm_port.to_be());
        prop_assert_eq!(key.vm_mac, if to_vm { DST_MAC } else { SRC_MAC });
        let tags: Vec<u16> = beside
            .into_iter()
            .chain(f.tags.iter().copied())
            // VID 0 is a priority tag.
            .filter(|tci| tci & 0xfff != 0)
            .map(|tci| tci & 0xfff | VLAN_PRESENT as u16)
            .collect();
        prop_assert_eq!(key.vlan_outer, tags.first().copied().unwrap_or(0));
        prop_assert_eq!(key.vlan_inner, tags.get(1).copied().unwrap_or(0));

        let len = f.payload.len() as u32;
        prop_assert_eq!((s.seq, s.ack), (seq::new(f.seq), seq::new(f.ack)));
        prop_assert_eq!((s.len, s.window, s.tcp_flags), (len, f.window, f.flags));
        prop_assert_eq!(u32::from(s.unit_len), if gso > 0 && gso < len { gso } else { len });
        prop_assert_eq!(bit(s.bits, SEG_CE), f.ecn == 3);
        prop_assert_eq!(s.ttl, 64);
        prop_assert_eq!(parsed.tcp(), f.tcp_at());
        prop_assert_eq!(parsed.tcp_len(), 20 + f.options_bytes().len());
        check_options(&f, s);
        prop_assert_eq!(memory.bytes(), &bytes[..], "parsing changes nothing");
    }

    #[test]
    fn a_truncated_frame_passes_untouched(f in frame(), cut in 0.0f64..1.0) {
        let bytes = f.bytes();
        let whole = bytes.len() - f.padding;
        let keep = (whole as f64 * cut) as usize;
        let mut memory = Guarded::new(&bytes[..keep]);
        let meta = all(&bytes[..keep], true);
        prop_assert!(parse(memory.bytes(), meta).is_none());
    }

    #[test]
    fn fragments_ip_options_and_other_protocols_pass_untouched(
        f in frame(), fragment in 1u16..0x4000, header in 6u8..16, protocol in 0u8..=255,
    ) {
        let bytes = f.bytes();
        let ip = f.tcp_at() - f.ip_len();
        let parses = |at: usize, with: &[u8]| {
            let mut changed = bytes.clone();
            changed[at..at + with.len()].copy_from_slice(with);
            f.mend_ip(&mut changed);
            let mut memory = Guarded::new(&changed);
            parse(memory.bytes(), all(&changed, true)).is_some()
        };
        if f.ipv6 {
            prop_assert_eq!(parses(ip + 6, &[protocol]), protocol == 6);
            prop_assert!(!parses(ip, &[0x45]));
        } else {
            prop_assert!(!parses(ip + 6, &fragment.to_be_bytes()));
            prop_assert!(!parses(ip, &[0x40 | header]));
            prop_assert_eq!(parses(ip + 9, &[protocol]), protocol == 6);
        }
    }

    #[test]
    fn a_damaged_ip_header_passes_untouched(f in frame(), at in 0usize..20, flip in 1u8..=255) {
        let f = f.over_ipv4();
        let mut bytes = f.bytes();
        bytes[f.tcp_at() - 20 + at] ^= flip;
        let mut memory = Guarded::new(&bytes);
        prop_assert!(parse(memory.bytes(), all(&bytes, true)).is_none());
    }

    #[test]
    fn three_tags_pass_untouched(f in frame(), tags in any::<[u16; 3]>(), beside in any::<bool>()) {
        let mut f = f;
        let tags = tags.map(|tci| tci | 1);
        f.tags = tags[1..].to_vec();
        let mut bytes = f.bytes();
        if !beside {
            let [high, low] = tags[0].to_be_bytes();
            bytes.splice(12..12, [0x88, 0xa8, high, low]);
        }
        let mut memory = Guarded::new(&bytes);
        let meta = Meta { vlan_tci: beside.then_some(tags[0]), ..all(&bytes, true) };
        prop_assert!(parse(memory.bytes(), meta).is_none());
    }

    #[test]
    fn a_damaged_frame_does_no_harm(
        f in frame(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        mended in any::<bool>(),
        linear in 0usize..200, gso in any::<u32>(), to_vm in any::<bool>(),
        beside in proptest::option::of(any::<u16>()), ack in any::<(u32, u16)>(),
    ) {
        let mut bytes = f.bytes();
        for (at, value) in damage {
            // Mostly in the headers.
            let headers = bytes.len().min(120);
            bytes[at.index(headers)] = value;
        }
        if mended {
            f.mend_ip(&mut bytes);
        }
        harmless(&bytes, Meta { linear, to_vm, gso_size: gso, vlan_tci: beside }, ack);
    }

    #[test]
    fn an_option_of_impossible_length_is_foreign(
        f in frame(), kind in 2u8..=255, len in prop_oneof![Just(0u8), Just(1), 5u8..=255],
        before in 0usize..9,
    ) {
        let mut f = f;
        // The last four bytes of the options: nothing longer fits.
        f.options = vec![TcpOption::Nop; 4 * before];
        f.options.extend([TcpOption::Nop, TcpOption::Nop, TcpOption::Nop, TcpOption::Nop]);
        let mut bytes = f.bytes();
        let at = f.tcp_at() + 20 + 4 * before;
        bytes[at..at + 2].copy_from_slice(&[kind, len]);
        let mut memory = Guarded::new(&bytes);
        let parsed = parse(memory.bytes(), all(&bytes, true)).expect("it is TCP");
        prop_assert!(bit(parsed.segment().bits, SEG_FOREIGN));
    }

    /// Kinds of the IANA registry "TCP Option Kind Numbers".
    #[test]
    fn signatures_mptcp_and_accurate_ecn_are_foreign(f in frame(), at in 0usize..9) {
        const MD5: (u8, usize) = (19, 16);
        const TCP_AO: (u8, usize) = (29, 14);
        const MPTCP: (u8, usize) = (30, 10);
        const ACCURATE_ECN: [(u8, usize); 2] = [(172, 9), (174, 9)];
        for (kind, bytes) in [MD5, TCP_AO, MPTCP].into_iter().chain(ACCURATE_ECN) {
            let mut f = f.clone();
            f.reserved = 0;
            f.options = vec![TcpOption::Nop; at];
            let mut memory = Guarded::new(&f.bytes());
            let parsed = parse(memory.bytes(), all(&f.bytes(), true)).expect("it is TCP");
            prop_assert!(!bit(parsed.segment().bits, SEG_FOREIGN));
            f.options.push(TcpOption::Foreign(kind, vec![0xa5; bytes]));
            let mut memory = Guarded::new(&f.bytes());
            let parsed = parse(memory.bytes(), all(&f.bytes(), true)).expect("it is TCP");
            prop_assert!(bit(parsed.segment().bits, SEG_FOREIGN), "kind {kind}");
        }
    }

    #[test]
    fn random_options_do_no_harm(
        f in frame(),
        options in prop::collection::vec(any::<u8>(), 0..41),
        ack in any::<(u32, u16)>(),
    ) {
        let mut f = f;
        f.options.clear();
        let mut bytes = f.bytes();
        let at = f.tcp_at();
        bytes.truncate(at + 20);
        bytes.extend(&options);
        bytes.resize(at + 20 + options.len().next_multiple_of(4), 0);
        let tcp_len = bytes.len() - at;
        bytes[at + 12] = (tcp_len / 4) as u8 * 16;
        let ip = at - f.ip_len();
        if f.ipv6 {
            bytes[ip + 4..ip + 6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
        } else {
            bytes[ip + 2..ip + 4].copy_from_slice(&(20 + tcp_len as u16).to_be_bytes());
            f.mend_ip(&mut bytes);
        }
        let meta = all(&bytes, false);
        prop_assert!(harmless(&bytes, meta, ack), "options do not make it malformed");
    }

    #[test]
    fn random_bytes_do_no_harm(
        bytes in prop::collection::vec(any::<u8>(), 0..200), linear in 0usize..200,
        ack in any::<(u32, u16)>(),
    ) {
        harmless(&bytes, Meta { linear, ..Meta::default() }, ack);
    }

    #[test]
    fn a_rewritten_ack_is_whole_and_has_no_stale_sack(
        f in with_sack(), ack in any::<u32>(), window in any::<u16>(),
    ) {
        let before = f.bytes();
        let mut memory = Guarded::new(&before);
        let meta = all(&before, false);
        let parsed = parse(memory.bytes(), meta).expect("it is TCP");
        let fields = ack_fields { ack: seq::new(ack), window, ..ack_fields::default() };
        prop_assert!(rewrite(memory.bytes(), meta, &parsed, &fields));
        let after = memory.bytes().to_vec();
        prop_assert!(f.checksum_is_good(&before) && f.checksum_is_good(&after));

        let again = parse(memory.bytes(), meta).expect("it is still TCP");
        let (old, new) = (parsed.segment(), again.segment());
        prop_assert_eq!((new.ack, new.window), (seq::new(ack), window));
        prop_assert_eq!((new.seq, new.len, new.tcp_flags), (old.seq, old.len, old.tcp_flags));
        prop_assert_eq!((new.tsval, new.tsecr), (old.tsval, old.tsecr));
        prop_assert!(!bit(new.bits & !old.bits, SEG_FOREIGN), "the options are still options");

        // What is left: the blocks above the ACK, in their order.
        let Some(TcpOption::Sack(blocks)) = f.options.last() else { unreachable!() };
        let kept: Vec<(u32, u32)> = blocks
            .iter()
            .copied()
            .filter(|b| ack == f.ack || seq::new(b.0).diff(seq::new(ack)) > 0)
            .collect();
        let mut expected = f.clone();
        expected.options.pop();
        if !kept.is_empty() {
            expected.options.push(TcpOption::Sack(kept));
        }
        check_options(&expected, new);
        let payload_at = f.tcp_at() + parsed.tcp_len();
        prop_assert_eq!(&after[payload_at..], &before[payload_at..]);
    }

    #[test]
    fn an_odd_order_of_options_survives_a_rewrite(
        f in frame(), more in prop::collection::vec(option(), 0..6), ack in any::<u32>(),
    ) {
        let mut f = f;
        f.options.extend(more);
        let bytes = f.bytes();
        let mut memory = Guarded::new(&bytes);
        let meta = all(&bytes, false);
        let parsed = parse(memory.bytes(), meta).expect("it is TCP");
        let fields = ack_fields { ack: seq::new(ack), ..ack_fields::default() };
        prop_assert!(rewrite(memory.bytes(), meta, &parsed, &fields));
        prop_assert!(f.checksum_is_good(memory.bytes()));
        let again = parse(memory.bytes(), meta).expect("it is still TCP");
        let (old, new) = (parsed.segment(), again.segment());
        prop_assert_eq!((new.tsval, new.tsecr, new.scale), (old.tsval, old.tsecr, old.scale));
        prop_assert_eq!(bit(new.bits, SEG_FOREIGN), bit(old.bits, SEG_FOREIGN));
    }
}

/// Parses and rewrites, and checks that all offsets lie within the frame. True if it is TCP.
fn harmless(bytes: &[u8], meta: Meta, (ack, window): (u32, u16)) -> bool {
    let mut memory = Guarded::new(bytes);
    let Some(parsed) = parse(memory.bytes(), meta) else { return false };
    let end = parsed.tcp() + parsed.tcp_len() + parsed.segment().len as usize;
    assert!(end <= bytes.len(), "the segment ends outside of the frame");
    assert!(u32::from(parsed.segment().unit_len) <= parsed.segment().len);
    assert!(parsed.segment().scale <= 14);
    let fields = ack_fields { ack: seq::new(ack), window, ..ack_fields::default() };
    let _ = rewrite(memory.bytes(), meta, &parsed, &fields);
    assert_eq!(&memory.bytes()[..parsed.tcp()], &bytes[..parsed.tcp()], "nothing but TCP changes");
    true
}
