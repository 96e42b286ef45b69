// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The two hooks on a VM's tap.
 *
 * to_vm (tcx egress) sees what the host sends to the VM, from_vm (tcx ingress)
 * what the VM sends.  Each reads: parse, decide (flow/), act.
 *
 * An early ACK: a clone of the segment is handed to the tap with
 * bpf_clone_redirect(), whose result tells whether the ring took it; then the
 * original is cut down to an ACK and sent in through the tap's ingress, as if
 * the VM had sent it.  Clone and ACK meet these hooks again; skb->mark, under a
 * mask, tells them apart.
 */
#define VSNOOP_BPF
#include "decide.h"
#include "line.h"
#include "reply.h"
#include "rewrite.h"
#include "setup.h"

char _license[] SEC("license") = "Dual BSD/GPL";

/* A TCP segment that its receiver will not drop for its checksums?  Of anything
 * else there is nothing to learn, and nothing to touch. */
static __always_inline bool is_tcp(struct __sk_buff *skb, bool to_vm, struct packet *p,
				   struct flow_key *key, struct segment *s, struct port_stats *st)
{
	switch (parse_packet(skb, to_vm, p, key, s)) {
	case PARSED_OTHER:
		return false;
	case PARSED_MALFORMED:
	case PARSED_SHORT:
		st->malformed++;
		return false;
	case PARSED_TCP:
		break;
	}
	if (checksum_is_good(skb, p, key, s))
		return true;
	st->bad_checksum++;
	return false;
}

/* A clone of the packet goes to the VM. True: the ring took it. */
static __always_inline bool hand_over(struct __sk_buff *skb, struct port *port,
				      struct port_stats *st)
{
	__u32 mark = skb->mark;
	bool taken;

	if (!handover_is_exact(skb)) {
		st->not_exact++;
		return false;
	}
	set_mark(skb, MARK_HANDED | (mark & ~MARK_MASK));
	taken = bpf_clone_redirect(skb, skb->ifindex, 0) == 0;
	set_mark(skb, mark);
	if (!taken)
		__sync_fetch_and_add(&port->state.ring_full, 1);
	return taken;
}

/* The packet, which the VM has been handed, leaves as the ACK of take_turn(). */
static __always_inline int send_turn(struct __sk_buff *skb, const struct packet *p)
{
	if (become_turn(skb, p))
		return HOOK_DROP;
	set_mark(skb, MARK_REPLY);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* The VM gets nothing of the packet but what it tells beside its data.  Cuts the packet. */
static __noinline int tell_vm(struct __sk_buff *skb, struct port *port, const struct packet *p,
			      const struct flow_key *key)
{
	struct ack_fields news = {};
	__u32 mark = skb->mark;

	if (!decide_news(port, key, &news))
		return 0;
	if (make_reply(skb, p, key, &news, TCP_ACK))
		return -1;
	set_mark(skb, MARK_HANDED | (mark & ~MARK_MASK));
	bpf_clone_redirect(skb, skb->ifindex, 0);
	set_mark(skb, mark);
	return 0;
}

/* TO_VM_KEEP: copies, hands over what lies within the VM's window, answers. */
static __always_inline int keep(struct __sk_buff *skb, struct port *port, const struct packet *p,
				const struct flow_key *key, const struct segment *s,
				struct outcome *out, bool waits, struct port_stats *st)
{
	__u32 bytes = s->len - out->skip;
	enum kept_verdict verdict;
	bool taken = false, copied;

	copied = !hold_copy(skb, port, s, out, p->l4 + p->tcp_len);
	if (copied && out->hand == HAND_AND_ACK)
		taken = hand_over(skb, port, st);
	verdict = decide_kept(port, key, s, (copied ? KEEP_COPIED : 0) | (taken ? KEEP_TAKEN : 0),
			      out);
	if (verdict != KEPT_PASS && out->events & EVENT_NEWS && !taken &&
	    tell_vm(skb, port, p, key))
		return HOOK_DROP;
	switch (verdict) {
	case KEPT_PASS:
		if (copied && out->hand == HAND_ON) {
			st->kept_bytes += bytes;
			st->early_bytes += bytes;
			st->thinned++;
		}
		return HOOK_NEXT;
	case KEPT_DROP:
		if (!taken)
			st->hold_dropped++;
		return HOOK_DROP;
	case KEPT_ACK:
		break;
	}
	st->kept_bytes += bytes;
	if (out->events & EVENT_AHEAD) {
		st->kept_ahead++;
		return reply_to_sender(skb, p, key, &out->ack, TCP_ACK);
	}
	st->early_acks++;
	st->early_bytes += bytes;
	if (!taken) {
		st->held_segments++;
		st->held_bytes += bytes;
	}
	/* What would close its window can wait until its turn. */
	if (INCAST_USED && waits && taken && take_turn(port, key))
		return send_turn(skb, p);
	return reply_to_sender(skb, p, key, &out->ack, TCP_ACK);
}

/* A segment that the engine made: it carries the sender's newest ACK at the moment of
 * writing, never one older than what was forwarded. */
static __noinline int freshen(struct __sk_buff *skb, struct port *port, const struct packet *p,
			      const struct flow_key *key, const struct segment *s)
{
	struct ack_fields ack = {};

	if (!decide_engine(port, key, s, &ack))
		return HOOK_NEXT;
	return rewrite_ack(skb, p, s, &ack) ? HOOK_DROP : HOOK_NEXT;
}

/* A segment that closed its flow's window goes to the VM, which may answer late: somebody in
 * line has a turn at once. */
static __noinline int pass_with_turn(struct __sk_buff *skb, struct port *port,
				     const struct packet *p, const struct flow_key *key,
				     struct port_stats *st)
{
	if (!incast_next(&uplink, &port->state.incast, bpf_ktime_get_ns()))
		return HOOK_NEXT;
	if (!hand_over(skb, port, st))
		return HOOK_NEXT;
	return take_turn(port, key) ? send_turn(skb, p) : HOOK_DROP;
}

SEC("tcx/egress")
int to_vm(struct __sk_buff *skb)
{
	struct outcome out = {};
	struct flow_key key = {};
	struct segment s = {};
	struct port_stats *st;
	struct packet p;
	struct port *port;
	bool waits = false, is_engine;
	enum to_vm_verdict verdict;

	if ((skb->mark & MARK_MASK) == MARK_HANDED) {
		set_mark(skb, skb->mark & ~MARK_MASK);
		return HOOK_NEXT;
	}
	is_engine = config.hold && (skb->mark & MARK_MASK) == MARK_ENGINE;
	if (is_engine)
		set_mark(skb, skb->mark & ~MARK_MASK);
	port = port_of(skb->cb[CB_SLOT]);
	if (!port)
		return HOOK_NEXT;
	st = stats_of(port);
	if (!st)
		return HOOK_NEXT;
	if (!is_engine) {
		st->to_vm_packets++;
		st->to_vm_bytes += skb->len;
	}
	if (!is_tcp(skb, true, &p, &key, &s, st))
		return HOOK_NEXT;
	if (is_engine)
		return freshen(skb, port, &p, &key, &s);
	if (incast_is_used()) {
		if (s.tcp_flags & TCP_SYN)
			incast_syn(port, &key, skb->ingress_ifindex);
		if (s.len)
			waits = incast_data(port, &key, &s, skb->ingress_ifindex);
	}
	verdict = decide_to_vm(port, &key, &s, &out);
	if (verdict == TO_VM_NO_FLOW && flow_for_sender(port, &key, &s, st)) {
		if (incast_is_used() && s.len)
			waits = incast_data(port, &key, &s, skb->ingress_ifindex);
		verdict = decide_locked(port, &key, &s, &out);
	}
	/* Of what is kept keep() tells it. */
	if (config.hold && verdict != TO_VM_KEEP && out.events & EVENT_NEWS &&
	    tell_vm(skb, port, &p, &key))
		return HOOK_DROP;
	switch (verdict) {
	case TO_VM_KEEP:
		return config.hold ? keep(skb, port, &p, &key, &s, &out, waits, st) : HOOK_DROP;
	case TO_VM_NO_FLOW:
	case TO_VM_PASS:
		if (out.events & EVENT_ASIDE)
			st->aside++;
		if (out.events & EVENT_EARLY_FIN && drop_fin(skb, &p))
			return HOOK_DROP;
		return INCAST_USED && waits ? pass_with_turn(skb, port, &p, &key, st) : HOOK_NEXT;
	case TO_VM_RESET:
		st->resets_sent++;
		return reply_to_sender(skb, &p, &key, &out.ack, TCP_RST);
	case TO_VM_REACK:
		st->reacked++;
		return reply_to_sender(skb, &p, &key, &out.ack, TCP_ACK);
	case TO_VM_FORWARD:
		return rewrite_seq(skb, &p, &s, &out.ack) ? HOOK_DROP : HOOK_NEXT;
	case TO_VM_DROP:
		break;
	}
	st->hold_dropped++;
	return HOOK_DROP;
}

/* The packet of the VM becomes two RST, one for each end. */
static __noinline int reset_both(struct __sk_buff *skb, const struct packet *p,
				 const struct flow_key *key, const struct ack_fields *to_vm)
{
	struct ack_fields to_sender = *to_vm;

	to_sender.seq = to_sender.ack = to_vm->ack;
	if (make_reply(skb, p, key, to_vm, TCP_RST))
		return HOOK_DROP;
	set_mark(skb, MARK_HANDED);
	bpf_clone_redirect(skb, skb->ifindex, 0);
	set_mark(skb, 0);
	return make_reply(skb, p, key, &to_sender, REPLY_TO_SENDER | TCP_RST) ? HOOK_DROP :
										HOOK_NEXT;
}

/* A packet of the VM that passes (HOOK_NEXT) brings along an ACK for a flow in line; a superfluous
 * one (HOOK_DROP) becomes it. */
static __noinline int bring_turn(struct __sk_buff *skb, struct port *port, const struct packet *p,
				 const struct flow_key *key, int hook)
{
	if (!take_turn(port, key))
		return hook;
	if (hook == HOOK_NEXT) {
		set_mark(skb, MARK_REPLY);
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	}
	/* The same way, or it would overtake an older ACK of its own flow. */
	return send_turn(skb, p);
}

/* What becomes of a packet of the VM; a pure ACK may bring a turn. */
static __always_inline int let_go(struct __sk_buff *skb, struct port *port, const struct packet *p,
				  const struct flow_key *key, const struct segment *s, int hook)
{
	if (!incast_has_line(port) || s->len || s->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST))
		return hook;
	return bring_turn(skb, port, p, key, hook);
}

SEC("tcx/ingress")
int from_vm(struct __sk_buff *skb)
{
	struct outcome out = {};
	struct flow_key key = {};
	struct segment s = {};
	struct port_stats *st;
	struct packet p;
	struct port *port;
	enum from_vm_verdict verdict;

	if ((skb->mark & MARK_MASK) == MARK_REPLY) {
		set_mark(skb, 0);
		return HOOK_NEXT;
	}
	port = port_of(skb->cb[CB_SLOT]);
	if (!port)
		return HOOK_NEXT;
	st = stats_of(port);
	if (!st)
		return HOOK_NEXT;
	st->from_vm_packets++;
	st->from_vm_bytes += skb->len;
	if (!is_tcp(skb, false, &p, &key, &s, st))
		return HOOK_NEXT;
	if (s.tcp_flags & TCP_SYN) {
		__u32 window = syn_of_vm(port, &key, &s);

		return window == s.window || !rewrite_window(skb, &p, window) ? HOOK_NEXT :
										HOOK_DROP;
	}
	if (incast_is_used())
		incast_answer(port, &key, &s);
	verdict = decide_from_vm(port, &key, &s, &out);
	if (verdict == FROM_VM_NO_FLOW) {
		if (!flow_for_vm(port, &key, &s, st))
			return HOOK_NEXT;
		if (incast_is_used())
			incast_answer(port, &key, &s);
		verdict = decide_from_vm(port, &key, &s, &out);
	}
	if (config.hold) {
		if (s.bits & SEG_SACK && out.events & EVENT_WAKE)
			hand_sack_on(skb, &p, port, out.hold);
		wake_engine(port, &out);
	}
	switch (verdict) {
	case FROM_VM_NO_FLOW:
		return HOOK_NEXT;
	case FROM_VM_PASS:
		return let_go(skb, port, &p, &key, &s, HOOK_NEXT);
	case FROM_VM_DROP:
		st->suppressed++;
		return let_go(skb, port, &p, &key, &s, HOOK_DROP);
	case FROM_VM_REWRITE:
		st->rewritten++;
		if (rewrite_ack(skb, &p, &s, &out.ack))
			return HOOK_DROP;
		return let_go(skb, port, &p, &key, &s, HOOK_NEXT);
	case FROM_VM_REPLACE:
		st->rewritten++;
		return make_reply(skb, &p, &key, &out.ack, REPLY_TO_SENDER | (s.tcp_flags & 0xff)) ?
			       HOOK_DROP :
			       HOOK_NEXT;
	case FROM_VM_RESET:
		st->resets_sent++;
		return reply_to_vm(skb, &p, &key, &out.ack, TCP_RST);
	case FROM_VM_RESET_BOTH:
		st->resets_sent += 2;
		return reset_both(skb, &p, &key, &out.ack);
	}
	return HOOK_NEXT;
}

/* Sends a packet that the userland made: run by BPF_PROG_TEST_RUN with the
 * tap's index in skb->ifindex.  cb[0]: 0 to the VM, 1 to the sender. */
SEC("tcx/egress")
int inject(struct __sk_buff *skb)
{
	bool to_sender = skb->cb[0];

	skb->cb[0] = 0;
	set_mark(skb, to_sender ? MARK_REPLY : MARK_HANDED);
	return bpf_clone_redirect(skb, skb->ifindex, to_sender ? BPF_F_INGRESS : 0);
}

/* Gives somebody who waits a turn where no packet comes that could: run by
 * BPF_PROG_TEST_RUN with a pure ACK of the form of the next one's, and the port in
 * cb[CB_SLOT] and cb[CB_ID]. */
SEC("tcx/egress")
int turn(struct __sk_buff *skb)
{
	struct port *port = port_of_run(skb);
	struct flow_key key = {};
	struct segment s = {};
	struct packet p;

	if (!port || parse_packet(skb, false, &p, &key, &s) != PARSED_TCP)
		return TURN_NOBODY;
	if (!take_turn(port, &key))
		return incast_next(&uplink, &port->state.incast, bpf_ktime_get_ns()) ? TURN_LATER :
										       TURN_NOBODY;
	if (become_turn(skb, &p))
		return TURN_LATER;
	set_mark(skb, MARK_REPLY);
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	return TURN_TAKEN;
}

/* Looks after a hold for the engine: run by BPF_PROG_TEST_RUN.  cb[0]: its number,
 * cb[1]: enum tend, cb[CB_SLOT] and cb[CB_ID]: the port. */
SEC("tcx/egress")
int tend(struct __sk_buff *skb)
{
	return hold_tend(port_of_run(skb), skb->cb[0], skb->cb[1]);
}
