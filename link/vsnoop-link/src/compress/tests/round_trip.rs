//! Decoding returns the encoded messages, also when flows replace each other's contexts.

use proptest::prelude::*;

use super::*;

/// Bound on the growth of a message in a dictionary: its header and zstd's framing.
const DICTIONARY_MORE_BYTES: usize = 24;

#[derive(Clone, Debug)]
struct Message {
    flow: u64,
    owner: u32,
    method: &'static str,
    dictionary: bool,
    kind: Kind,
    seed: u64,
    bytes: usize,
    link_rate: Option<u64>,
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let method = prop::sample::select(vec!["off", "lz4", "zstd", "zstd:3", "zstd:-2", "auto"]);
    let kind = prop::sample::select(vec![Kind::Text, Kind::Text, Kind::Random, Kind::Zeros]);
    let bytes = prop_oneof![0..300usize, 300..5000usize, 5000..70_000usize];
    let rate =
        prop::sample::select(vec![None, Some(1_000_000), Some(50_000_000), Some(10_000_000_000)]);
    let one = (0..6u64, 0..3u32, method, any::<bool>(), kind, 0..4u64, bytes, rate);
    let one =
        one.prop_map(|(flow, owner, method, dictionary, kind, seed, bytes, link_rate)| Message {
            flow,
            owner,
            method,
            dictionary: dictionary && flow == 0,
            kind,
            seed,
            bytes,
            link_rate,
        });
    prop::collection::vec(one, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_of_flows_comes_out_as_it_went_in(messages in messages()) {
        let (mut encoder, mut decoder) = (super::encoder(tight()), super::decoder(tight()));
        for (number, message) in messages.iter().enumerate() {
            let mut policy = policy(message.method, message.owner);
            policy.dictionary = message.dictionary.then_some(1 << 20);
            encoder.set_link_rate(message.link_rate);
            let head = [number as u8; 66];
            let payload = payload(message.kind, message.seed, message.bytes);
            let mut body = Vec::new();
            let now_ns = number as u64 * 300_000_000;
            let parts = [&head[..], &payload];
            let flow = FlowHash(message.flow);
            if encoder.encode(flow, &policy, &parts, now_ns, &mut body) == Encoded::Raw {
                prop_assert!(body.is_empty());
                continue;
            }
            let whole = parts.concat();
            // A dictionary takes in what it cannot shrink.
            let more_bytes = if message.dictionary { DICTIONARY_MORE_BYTES + 1 } else { 0 };
            prop_assert!(body.len() < whole.len() + more_bytes);
            prop_assert!(whole.len() <= tight().message_bytes as usize);
            prop_assert_eq!(decoded(&mut decoder, &body), whole);
        }
        prop_assert!(decoder.memory_bytes() as u64 <= tight().decoder_bytes_max());
    }
}

#[test]
fn a_flow_refers_to_its_earlier_messages_and_another_does_not() {
    let mut encoder = super::encoder(CompressionLimits::MOST);
    let message = payload(Kind::Text, 1, 20_000);
    let first = body(&mut encoder, 1, &policy("zstd", 1), &message).unwrap();
    let again = body(&mut encoder, 1, &policy("zstd", 1), &message).unwrap();
    assert!(again.len() < 100, "a repeated message is a reference, not {} bytes", again.len());
    let other = body(&mut encoder, 2, &policy("zstd", 1), &message).unwrap();
    assert!(other.len() > first.len() - 10);
}

/// Everything after the head, which names the slot, is what an encoder makes that has seen nothing.
fn assert_learned_nothing(body: &[u8], policy: &Policy, message: &[u8], limits: CompressionLimits) {
    let fresh = super::body(&mut super::encoder(limits), 1, policy, message).unwrap();
    assert_eq!(body[6..], fresh[6..]);
}

#[test]
fn what_one_owner_sent_does_not_show_in_the_bytes_of_another() {
    // Letters at random: little is gained but by repetition.
    let secret: Vec<u8> = payload(Kind::Random, 1, 30_000).iter().map(|b| b'A' + b % 32).collect();
    for dictionary in [None, Some(1 << 20)] {
        let policy_of = |owner| Policy { dictionary, ..policy("zstd", owner) };
        let limits = CompressionLimits { dictionaries: 2, flow_window_log: 17, ..tight() };
        let mut encoder = super::encoder(limits);
        body(&mut encoder, 1, &policy_of(1), &secret).unwrap();
        // The same flow's number, the same bytes, another owner.
        let other = body(&mut encoder, 1, &policy_of(2), &secret).unwrap();
        assert_learned_nothing(&other, &policy_of(2), &secret, limits);
        let own = body(&mut encoder, 1, &policy_of(1), &secret).unwrap();
        assert!(own.len() * 4 < other.len(), "{} of {}", own.len(), other.len());
    }
}

#[test]
fn who_takes_the_place_of_another_flow_inherits_nothing() {
    let secret = payload(Kind::Text, 1, 30_000);
    for dictionary in [None, Some(1 << 20)] {
        let policy_of = |owner| Policy { dictionary, ..policy("zstd", owner) };
        let limits = CompressionLimits { flows: 1, ..tight() };
        let (mut encoder, mut decoder) = (super::encoder(limits), super::decoder(limits));
        for owner in [1, 2, 1] {
            let body = body(&mut encoder, 1, &policy_of(owner), &secret).unwrap();
            assert_learned_nothing(&body, &policy_of(owner), &secret, limits);
            assert_eq!(decoded(&mut decoder, &body), secret);
        }
        assert_eq!(encoder.stats().evictions, 2);
        assert_eq!((encoder.stats().contexts, decoder.stats().contexts), (1, 1));
    }
}

#[test]
fn the_flow_that_was_silent_longest_gives_way() {
    let mut encoder = super::encoder(tight());
    let message = payload(Kind::Text, 1, 10_000);
    for flow in [1, 2, 3, 1, 3, 4] {
        body(&mut encoder, flow, &policy("zstd", 1), &message).unwrap();
    }
    for (flow, remembered) in [(1, true), (3, true), (4, true), (2, false)] {
        let body = body(&mut encoder, flow, &policy("zstd", 1), &message).unwrap();
        assert_eq!(body.len() < 100, remembered, "flow {flow}");
    }
}

#[test]
fn a_raw_message_in_between_does_not_disturb_its_flow() {
    let (mut encoder, mut decoder) = (super::encoder(tight()), super::decoder(tight()));
    let mut raw = 0;
    for round in 0..30 {
        let kind = if round % 3 == 2 { Kind::Random } else { Kind::Text };
        let message = payload(kind, round, 9000);
        match body(&mut encoder, 1, &policy("zstd", 1), &message) {
            Some(body) => assert_eq!(decoded(&mut decoder, &body), message),
            None => raw += 1,
        }
    }
    // Random ones, and those that pass before the next look.
    assert!((10..=25).contains(&raw), "{raw}");
    assert_eq!(encoder.stats().raw_messages, raw);
}

#[test]
fn a_method_that_changes_in_mid_flow_disturbs_nothing() {
    let (mut encoder, mut decoder) = (super::encoder(tight()), super::decoder(tight()));
    for (round, method) in ["zstd", "off", "lz4", "zstd", "zstd:3", "zstd:3", "auto", "zstd"]
        .iter()
        .cycle()
        .take(40)
        .enumerate()
    {
        encoder.set_link_rate(Some(1_000_000));
        let message = payload(Kind::Text, round as u64, 30_000);
        let body = body(&mut encoder, 1, &policy(method, 1), &message);
        assert_eq!(body.is_none(), *method == "off");
        if let Some(body) = body {
            assert_eq!(decoded(&mut decoder, &body), message);
        }
    }
}

#[test]
fn a_dictionary_knows_what_another_flow_has_sent_long_before() {
    let limits = CompressionLimits { dictionary_window_log: 23, ..tight() };
    let (mut encoder, mut decoder) = (super::encoder(limits), super::decoder(limits));
    let shared = Policy { dictionary: Some(8 << 20), ..policy("zstd", 1) };
    // Incompressible in itself: only the repetition can be gained.
    let file = payload(Kind::Random, 1, 3_000_000);
    let mut transfer = |flow| -> usize {
        let send = |message| {
            let body = body(&mut encoder, flow, &shared, message).unwrap();
            assert_eq!(decoded(&mut decoder, &body), message);
            body.len()
        };
        file.chunks(60_000 + flow as usize).map(send).sum()
    };
    let (first, again) = (transfer(1), transfer(2));
    assert!(first < file.len() + 51 * DICTIONARY_MORE_BYTES, "{first}");
    assert!(again < file.len() / 100, "{again}");
}

#[test]
fn a_message_grows_in_a_dictionary_by_a_few_bytes_at_most() {
    let mut encoder = super::encoder(tight());
    let shared = Policy { dictionary: Some(1 << 20), ..policy("zstd:3", 1) };
    for (seed, bytes) in [128, 129, 1000, 4096, 60_000, 65_663, 65_663, 500].iter().enumerate() {
        let message = payload(Kind::Random, seed as u64, *bytes);
        let body = body(&mut encoder, 1, &shared, &message).unwrap();
        assert!(body.len() <= bytes + DICTIONARY_MORE_BYTES, "{bytes} became {}", body.len());
    }
}

#[test]
fn a_dictionary_that_the_receiver_has_no_room_for_is_not_used() {
    let limits = CompressionLimits { dictionaries: 0, ..tight() };
    let (mut encoder, mut decoder) = (super::encoder(limits), super::decoder(limits));
    let shared = Policy { dictionary: Some(8 << 20), ..policy("zstd", 1) };
    let message = payload(Kind::Text, 1, 10_000);
    let body = body(&mut encoder, 1, &shared, &message).unwrap();
    assert_eq!(decoded(&mut decoder, &body), message);
}

#[test]
fn no_flows_at_all_is_a_limit_too() {
    let limits = CompressionLimits { flows: 0, dictionaries: 0, ..tight() };
    let mut encoder = super::encoder(limits);
    let message = payload(Kind::Text, 1, 10_000);
    assert_eq!(body(&mut encoder, 1, &policy("zstd", 1), &message), None);
    assert!(body(&mut encoder, 2, &policy("lz4", 1), &message).is_some());
}

#[test]
fn the_counters_tell_what_went_in_and_out() {
    let (mut encoder, mut decoder) = (super::encoder(tight()), super::decoder(tight()));
    let message = payload(Kind::Text, 1, 10_000);
    let body = body(&mut encoder, 1, &policy("zstd", 1), &message).unwrap();
    decoded(&mut decoder, &body);
    let sent = *encoder.stats();
    assert_eq!((sent.messages, sent.bytes_in, sent.bytes_out), (1, 10_000, body.len() as u64));
    let received = *decoder.stats();
    assert_eq!((received.bytes_in, received.bytes_out), (sent.bytes_out, sent.bytes_in));
    assert!(encoder.memory_bytes() > 0 && decoder.memory_bytes() > 0);
}
