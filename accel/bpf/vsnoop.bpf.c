// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The two hooks on a VM's tap.
 *
 * to_vm (tcx egress) gets the packets that the host sends to the VM, from_vm (tcx ingress) those
 * that the VM sends. Both parse, decide (flow/), and act.
 *
 * Early ACK: bpf_clone_redirect() hands a clone of the segment to the tap; its result says whether
 * the ring took it. The original is then cut down to an ACK and sent in through the tap's ingress,
 * as if the VM had sent it. Clone and ACK pass these hooks again, which tell them apart by
 * skb->mark under a mask.
 */
#define VSNOOP_BPF
#include "decide.h"
#include "grant_queue.h"
#include "path_mtu.h"
#include "reply.h"
#include "rewrite.h"
#include "records.h"

char _license[] SEC("license") = "Dual BSD/GPL";

_Static_assert(__builtin_offsetof(struct __sk_buff, mark) == CONTEXT_MARK &&
		       __builtin_offsetof(struct __sk_buff, ingress_ifindex) ==
			       CONTEXT_INGRESS_IFINDEX &&
		       __builtin_offsetof(struct __sk_buff, ifindex) == CONTEXT_IFINDEX &&
		       __builtin_offsetof(struct __sk_buff, cb) == CONTEXT_CB &&
		       __builtin_offsetof(struct __sk_buff, cb) +
				       sizeof(((struct __sk_buff *)0)->cb) ==
			       CONTEXT_BYTES,
	       "user space writes the context of a program that it runs by these offsets");

/* The packet's port, and its counters. Returns these, or null if the slot is empty. Not stats_of():
 * the CPU would have to wait for port->slot first. */
static __always_inline struct port_stats *port_and_stats(const struct __sk_buff *skb,
							 struct port **port)
{
	__u32 slot = skb->cb[CB_SLOT];
	struct port_stats *st;

	*port = port_in(&slot);
	st = stats_in(&slot);
	if (!*port || !st)
		return 0;
	touch((*port)->slot);
	return st;
}

/* Parses a TCP segment with good checksums. Other packets pass untouched, and change no state
 * here (but see fast_path.h). */
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

/* Hands a clone of the packet to the VM. Returns whether the ring took it. */
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

/* Turns the packet, which is not needed any more, into the ACK of a grant (grant_next()), and sends
 * it. */
static __always_inline int send_grant(struct __sk_buff *skb, const struct packet *p)
{
	if (write_grant(skb, p))
		return HOOK_DROP;
	set_mark(skb, MARK_REPLY);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* Turns the packet, of which the VM has a clone or the hold a copy, into the ACK for its sender. If
 * a queued flow can get a grant, perhaps the same one, another packet follows with that. */
static __noinline int send_ack_and_grant(struct __sk_buff *skb, struct port *port,
					 const struct packet *p, const struct flow_key *key,
					 const struct ack_fields *a)
{
	/* Once: clang would compute its address for both uses, which the verifier refuses. */
	__u32 ifindex = skb->ifindex;

	barrier_var(ifindex);
	if (make_reply(skb, p, key, a, REPLY_TO_SENDER | TCP_ACK))
		return HOOK_DROP;
	set_mark(skb, MARK_REPLY);
	if (!next_waiting(port))
		return bpf_redirect(ifindex, BPF_F_INGRESS);
	/* Before the grant is made, or that could overtake it on another CPU. */
	bpf_clone_redirect(skb, ifindex, BPF_F_INGRESS);
	return grant_next(port, key) ? send_grant(skb, p) : HOOK_DROP;
}

/* Sends the VM a pure ACK with the sender's ACK and window (hold_fill_sender_ack()), instead of the
 * packet, which is cut down to it. Returns 0, or -1 if the packet is unusable. */
static __noinline int send_sender_ack(struct __sk_buff *skb, struct port *port,
				      const struct packet *p, const struct flow_key *key)
{
	struct ack_fields ack = {};
	__u32 mark = skb->mark;

	if (!decide_sender_ack(port, key, &ack))
		return 0;
	if (make_reply(skb, p, key, &ack, TCP_ACK))
		return -1;
	set_mark(skb, MARK_HANDED | (mark & ~MARK_MASK));
	bpf_clone_redirect(skb, skb->ifindex, 0);
	set_mark(skb, mark);
	return 0;
}

/* A parsed segment for the VM. */
struct arrival {
	const struct packet *p;
	const struct flow_key *key;
	const struct segment *s;
};

/* TO_VM_KEEP: copies, hands over data within the VM's window, answers. */
static __always_inline int keep(struct __sk_buff *skb, struct port *port,
				const struct arrival *arrival, struct outcome *out,
				struct port_stats *st)
{
	const struct flow_key *key = arrival->key;
	const struct packet *p = arrival->p;
	const struct segment *s = arrival->s;
	__u32 bytes = s->len - out->skip;
	enum kept_verdict verdict;
	__u32 done = hold_copy(skb, port, s, out, p->l4 + p->tcp_len);
	bool taken = false, copied = done & KEEP_COPIED;

	if (copied && out->hand == HAND_AND_ACK)
		taken = hand_over(skb, port, st);
	verdict = decide_kept(port, key, s, done | (taken ? KEEP_TAKEN : 0), out);
	if (verdict != KEPT_PASS && out->events & EVENT_SENDER_ACK && !taken &&
	    send_sender_ack(skb, port, p, key))
		return HOOK_DROP;
	switch (verdict) {
	case KEPT_PASS:
		if (copied && out->hand == HAND_ON) {
			st->kept_bytes += bytes;
			st->early_bytes += bytes;
			st->stretch_acked++;
		}
		return HOOK_NEXT;
	case KEPT_DROP:
		if (!taken)
			st->hold_dropped++;
		return HOOK_DROP;
	case KEPT_REACK:
		st->hold_dropped++;
		return reply_to_sender(skb, p, key, &out->ack, TCP_ACK);
	case KEPT_WAIT:
	case KEPT_ACK:
		break;
	}
	st->kept_bytes += bytes;
	if (out->events & EVENT_OUT_OF_ORDER) {
		st->kept_out_of_order++;
		return reply_to_sender(skb, p, key, &out->ack, TCP_ACK);
	}
	st->early_bytes += bytes;
	if (!taken) {
		st->held_segments++;
		st->held_bytes += bytes;
	}
	if (verdict == KEPT_WAIT) {
		st->stretch_acked++;
		return HOOK_DROP;
	}
	st->early_acks++;
	/* Credit may have returned. */
	if (incast_has_waiting(port))
		return send_ack_and_grant(skb, port, p, key, &out->ack);
	return reply_to_sender(skb, p, key, &out->ack, TCP_ACK);
}

/* Puts the sender's latest ACK and window into a segment of the engine, just before the VM gets it:
 * it must not carry an ACK older than one that was forwarded. */
static __noinline int freshen(struct __sk_buff *skb, struct port *port, const struct packet *p,
			      const struct flow_key *key, const struct segment *s)
{
	struct ack_fields ack = {};

	if (!decide_engine(port, key, s, &ack))
		return HOOK_NEXT;
	return rewrite_ack(skb, p, s, &ack) ? HOOK_DROP : HOOK_NEXT;
}

/* Passes a segment with data, which may have returned credit. The VM may acknowledge it late, so a
 * flow that waits gets its grant now. */
static __noinline int pass_with_grant(struct __sk_buff *skb, struct port *port,
				      const struct packet *p, const struct flow_key *key,
				      struct port_stats *st)
{
	if (!next_waiting(port))
		return HOOK_NEXT;
	if (!hand_over(skb, port, st))
		return HOOK_NEXT;
	return grant_next(port, key) ? send_grant(skb, p) : HOOK_DROP;
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
	bool is_engine;
	enum to_vm_verdict verdict;
	enum incast_path path;

	if ((skb->mark & MARK_MASK) == MARK_HANDED) {
		set_mark(skb, skb->mark & ~MARK_MASK);
		return HOOK_NEXT;
	}
	is_engine = config.hold && (skb->mark & MARK_MASK) == MARK_ENGINE;
	if (is_engine)
		set_mark(skb, skb->mark & ~MARK_MASK);
	st = port_and_stats(skb, &port);
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
	if (incast_is_used() && s.tcp_flags & TCP_SYN)
		incast_syn(port, &key, skb->ingress_ifindex);
	path = incast_path_of(&s, skb->ingress_ifindex);
	if (path)
		incast_tick(port);
	verdict = decide_to_vm(port, &key, &s, &out, path);
	if (verdict == TO_VM_NO_FLOW && flow_for_sender(port, &key, &s, st))
		verdict = decide_locked(port, &key, &s, &out, path);
	/* For TO_VM_KEEP keep() does this. */
	if (config.hold && verdict != TO_VM_KEEP && out.events & EVENT_SENDER_ACK &&
	    send_sender_ack(skb, port, &p, &key))
		return HOOK_DROP;
	switch (verdict) {
	case TO_VM_KEEP:
		return config.hold ? keep(skb, port, &(struct arrival){ &p, &key, &s }, &out, st) :
				     HOOK_DROP;
	case TO_VM_NO_FLOW:
	case TO_VM_PASS:
		if (out.events & EVENT_PASSIVE)
			st->passive++;
		if (out.events & EVENT_EARLY_FIN && drop_fin(skb, &p))
			return HOOK_DROP;
		return verdict == TO_VM_PASS && s.len && incast_has_waiting(port) ?
			       pass_with_grant(skb, port, &p, &key, st) :
			       HOOK_NEXT;
	case TO_VM_RESET:
		st->resets_sent++;
		return reply_to_sender(skb, &p, &key, &out.ack, TCP_RST);
	case TO_VM_REACK:
		st->reacked++;
		return reply_to_sender(skb, &p, &key, &out.ack, TCP_ACK);
	case TO_VM_FORWARD:
		return rewrite_seq(skb, &p, &s, &out.ack) ? HOOK_DROP : HOOK_NEXT;
	case TO_VM_DROP:
		if (out.events & EVENT_ACK_WAITS)
			return HOOK_DROP;
		break;
	}
	st->hold_dropped++;
	return HOOK_DROP;
}

/* Turns the packet of the VM into two RSTs, one for each end. */
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

/* Sends the ACK of a grant with a packet of the VM: a packet that passes (HOOK_NEXT) is cloned, a
 * superfluous one (HOOK_DROP) is turned into it. */
static __noinline int piggyback_grant(struct __sk_buff *skb, struct port *port,
				      const struct packet *p, const struct flow_key *key, int hook)
{
	if (!grant_next(port, key))
		return hook;
	if (hook == HOOK_NEXT) {
		set_mark(skb, MARK_REPLY);
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	}
	/* By the same path as the clone, or it could overtake an older ACK of the same flow. */
	return send_grant(skb, p);
}

/* Returns the action for a packet of the VM; a pure ACK may carry a grant. */
static __always_inline int let_go(struct __sk_buff *skb, struct port *port, const struct packet *p,
				  const struct flow_key *key, const struct segment *s, int hook)
{
	if (!incast_has_waiting(port) || s->len || s->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST))
		return hook;
	return piggyback_grant(skb, port, p, key, hook);
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
	st = port_and_stats(skb, &port);
	if (!st)
		return HOOK_NEXT;
	st->from_vm_packets++;
	st->from_vm_bytes += skb->len;
	if (!is_tcp(skb, false, &p, &key, &s, st))
		return config.hold ? report_of_vm(skb, port, &p, &key, &out) : HOOK_NEXT;
	if (s.tcp_flags & TCP_SYN) {
		__u32 window = syn_of_vm(port, &key, &s);

		return window == s.window || !rewrite_window(skb, &p, window) ? HOOK_NEXT :
										HOOK_DROP;
	}
	verdict = decide_from_vm(port, &key, &s, &out);
	if (verdict == FROM_VM_NO_FLOW) {
		if (!flow_for_vm(port, &key, &s, st))
			return HOOK_NEXT;
		verdict = decide_from_vm(port, &key, &s, &out);
	}
	if (INCAST_USED && verdict == FROM_VM_ACCOUNT) {
		out.now = incast_answer(port, &key, &s);
		verdict = decide_from_vm(port, &key, &s, &out);
	}
	if (config.hold) {
		if (s.bits & SEG_SACK && out.events & (EVENT_WAKE | EVENT_NOTE))
			hand_sack_on(skb, &p, port, out.hold);
		wake_engine(port, &out);
	}
	switch (verdict) {
	case FROM_VM_NO_FLOW:
	case FROM_VM_ACCOUNT:
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

/* Sends a packet of user space: run by BPF_PROG_TEST_RUN with the interface's index in
 * skb->ifindex. cb[0]: enum inject_way. Only the tap's hooks take marks off. */
SEC("tcx/egress")
int inject(struct __sk_buff *skb)
{
	__u32 way = skb->cb[0];

	skb->cb[0] = 0;
	if (way == INJECT_TO_VM)
		set_mark(skb, MARK_HANDED);
	else if (way == INJECT_TO_SENDER)
		set_mark(skb, MARK_REPLY);
	return bpf_clone_redirect(skb, skb->ifindex,
				  way == INJECT_TO_SENDER || way == INJECT_IN ? BPF_F_INGRESS : 0);
}

/* Grants a window to the next waiting flow where no packet passes that could: run by
 * BPF_PROG_TEST_RUN with a segment without payload that has that flow's IP version and VLAN tags,
 * and the port in cb[CB_SLOT] and cb[CB_ID]. Returns enum incast_grant_result. */
SEC("tcx/egress")
int grant(struct __sk_buff *skb)
{
	struct port *port = port_of_run(skb);
	struct flow_key key = {};
	struct segment s = {};
	struct packet p;

	if (!port || parse_packet(skb, false, &p, &key, &s) != PARSED_TCP)
		return GRANT_NONE;
	if (!grant_next(port, &key))
		return next_waiting(port) ? GRANT_RETRY : GRANT_NONE;
	if (write_grant(skb, &p))
		return GRANT_RETRY;
	set_mark(skb, MARK_REPLY);
	bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	return GRANT_SENT;
}

/* Reclaims the memory of a hold for the engine: run by BPF_PROG_TEST_RUN. cb[0]: its number, cb[1]:
 * enum reclaim, cb[CB_SLOT] and cb[CB_ID]: the port. Returns enum reclaimed. */
SEC("tcx/egress")
int reclaim(struct __sk_buff *skb)
{
	return hold_reclaim(port_of_run(skb), skb->cb[0], skb->cb[1]);
}
