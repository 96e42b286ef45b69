/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Decisions about a segment to the VM of which no copy is made (the report's vSnoop_ingress): the
 * VM answers it, and the host updates the record.
 *
 * The host acknowledges only bytes that it has copied: hold_to_vm.h decides about those, and
 * calls flow_to_vm() for all other segments.
 *
 * The host acknowledges nothing that the VM would not accept: a segment must carry an acceptable
 * ACK (RFC 9293, section 3.10.7.4) and an acceptable timestamp (RFC 7323, PAWS). A segment that the
 * VM would refuse altogether changes no state.
 */
#ifndef VSNOOP_FLOW_TO_VM_H
#define VSNOOP_FLOW_TO_VM_H

#include "state.h"

/* Would the VM accept this in-order segment, given room in its window? */
static __always_inline bool flow_accepts_segment(const struct flow *f, const struct segment *s)
{
	if (seq_gt(s->ack, f->snd_nxt) || seq_lt(s->ack, f->snd_una))
		return false;
	if (f->flags & FLOW_F_TIMESTAMPS) {
		if (!(s->bits & SEG_TIMESTAMPS))
			return false;
		if ((__s32)(s->tsval - f->ts_recent) < 0)
			return false;
	}
	return true;
}

/* Would the VM refuse the segment whatever it carries? Its SEQ is beyond the right edge that the
 * sender was shown, or its ACK is beyond SND.NXT or too old (RFC 5961, section 5.2). */
static __always_inline bool flow_refuses_segment(const struct flow *f, const struct segment *s)
{
	struct seq edge = f->flags & FLOW_F_SCALE_KNOWN ? seq_max(f->right_edge, f->adv_edge) :
							  seq_add(f->vm_seq, FLOW_MAX_WINDOW);

	return seq_gt(s->seq, edge) || seq_gt(s->ack, f->snd_nxt) ||
	       seq_diff(f->snd_una, s->ack) > (__s32)FLOW_MAX_WINDOW;
}

static __always_inline bool flow_accepts_within_window(const struct flow *f,
						       const struct segment *s, struct seq end)
{
	return seq_le(end, f->right_edge) && flow_accepts_segment(f, s);
}

/* Does a segment beyond a hole end beyond the VM's own window? Its sender was shown more. No stack
 * keeps such bytes, and lwIP cannot handle the first such segment. */
static __always_inline bool flow_is_beyond_vm(const struct flow *f, const struct segment *s,
					      struct seq end)
{
	return f->flags & FLOW_F_SCALE_KNOWN && seq_gt(s->seq, f->high_seq) &&
	       seq_gt(end, f->right_edge) && seq_gt(f->adv_edge, f->right_edge);
}

/* A segment passes untouched, and without a copy. The VM may cut it at its window, so that nothing
 * beyond counts as handed over. */
static __always_inline void flow_passed(struct flow *f, struct seq end, __u64 now)
{
	if (f->flags & FLOW_F_SCALE_KNOWN)
		end = seq_min(end, seq_max(f->right_edge, f->high_seq));
	flow_handed_over(f, end, false, now);
}

/* May the host leave this segment to a prompt VM? Not where the sender could be waiting for the
 * ACK: near the right edge, during the ramp, and on PSH or a segment below MSS, unless the VM has a
 * backlog of this flow (senders set PSH on every super-packet of a bulk transfer). */
static __always_inline bool flow_may_be_passive(const struct flow *f, const struct segment *s,
						struct seq end, const struct decision_context *c)
{
	bool may_wait = s->tcp_flags & TCP_PSH || s->unit_len < f->mss;

	if (!c->policy->passive || f->ramp < FLOW_RAMP ||
	    (may_wait && seq_le(f->high_seq, f->vm_seq)))
		return false;
	if (seq_diff(f->right_edge, end) < 2 * (__s32)f->mss)
		return false;
	/* The sender was shown more than the VM's own window. */
	if (seq_diff(f->adv_edge, f->right_edge) >= 2 * (__s32)f->mss)
		return false;
	return port_is_prompt(c->port, c->now);
}

/* Answers a segment in a flow that was reset. A SYN passes: it begins a new connection. */
static __always_inline enum to_vm_verdict
flow_answer_reset(const struct flow *f, const struct segment *s, struct outcome *out)
{
	if (s->tcp_flags & (TCP_RST | TCP_SYN) || !(s->tcp_flags & TCP_ACK))
		return TO_VM_PASS;
	out->ack.seq = s->ack;
	out->ack.ack = seq_add(s->seq, s->len);
	flow_fill_route(f, &out->ack);
	return TO_VM_RESET;
}

static __always_inline void flow_fill_ack(struct flow *f, const struct hold *h,
					  const struct segment *s, const struct decision_context *c,
					  struct outcome *out)
{
	out->ack.seq = f->snd_nxt;
	out->ack.ack = f->next_seq;
	out->ack.window = flow_advertise(f, h, f->next_seq, c->port, c->policy);
	out->ack.timestamps = !!(f->flags & FLOW_F_TIMESTAMPS);
	/* The VM's last TSval: with a later one PAWS would drop the VM's next segment. */
	out->ack.tsval = f->vm_tsval;
	out->ack.tsecr = s->tsval;
	flow_fill_route(f, &out->ack);
	out->ack.sack = h && h->range_count && f->flags & FLOW_F_SACK ? f->hold : 0;
	out->ack.repeated = 0;
}

/* The ACK reports which bytes of the segment came again, up to `end` (D-SACK, RFC 2883): a sender
 * that has repeated them needlessly can undo its slow-down. Called after flow_fill_ack(). */
static __always_inline void flow_fill_repeated(const struct flow *f, const struct segment *s,
					       struct seq end, struct outcome *out)
{
	__s32 bytes = seq_diff(end, s->seq);

	if (f->flags & FLOW_F_SACK && s->len && bytes > 0)
		out->ack.repeated = bytes < 0xffff ? bytes : 0xffff;
}

/* SEQ behind the bytes of a segment that are below NEXT_SEQ. */
static __always_inline struct seq flow_end_of_old(const struct flow *f, const struct segment *s)
{
	return seq_min(seq_add(s->seq, s->len), f->next_seq);
}

/* A pure ACK of the VM's data, with nothing else to decide. May be called, and noted, without the
 * lock: snd_una may step back for a moment, and an older value only makes
 * flow_accepts_within_window() more lenient. */
static __always_inline bool flow_is_plain_ack(const struct flow *f, const struct segment *s)
{
	return s->len == 0 && (s->tcp_flags & ~(TCP_PSH | TCP_ECE)) == TCP_ACK &&
	       !(s->bits & SEG_FOREIGN) && f->mode != FLOW_RESET && f->mode != FLOW_HOLDING &&
	       !(f->flags & FLOW_F_FIN_SENDER) && seq_ge(s->seq, f->next_seq) &&
	       !flow_refuses_segment(f, s);
}

static __always_inline void flow_note_ack(struct flow *f, const struct segment *s)
{
	if (seq_gt(s->ack, f->snd_una) && seq_le(s->ack, f->snd_nxt))
		f->snd_una = s->ack;
}

/* Does this segment continue a backlog that was left to a prompt VM? Then only high_seq moves, and
 * may be moved without the lock: at worst it is behind for a moment, and nothing is acknowledged
 * early before the VM's own ACK has reached it. Not while acknowledged bytes are outstanding: the
 * engine may send them again, with the ACK that this segment brings (hold_note_sender()). Nor for a
 * segment that is to be timed (FLOW_TIMED_NS). */
static __always_inline bool flow_continues_passive(const struct flow *f, const struct segment *s,
						   const struct decision_context *c)
{
	const __u8 touched = TCP_FIN | TCP_SYN | TCP_RST | TCP_URG | TCP_ACK | TCP_CWR;
	struct seq end = seq_add(s->seq, s->len);

	return f->mode == FLOW_PASSIVE && s->len && (s->tcp_flags & touched) == TCP_ACK &&
	       !(s->bits & (SEG_FOREIGN | SEG_CE)) && seq_eq(s->seq, f->high_seq) &&
	       seq_le(f->next_seq, f->vm_seq) && seq_gt(f->high_seq, f->vm_seq) &&
	       (f->sample || since_ns(c->now, f->sample_ns) < FLOW_TIMED_NS) &&
	       flow_accepts_within_window(f, s, end) && s->unit_len <= f->mss &&
	       !flow_is_late(f, c->now) &&
	       (!flow_may_accelerate(f, c->policy) || flow_may_be_passive(f, s, end, c));
}

static __always_inline void flow_note_passive(struct flow *f, const struct segment *s)
{
	flow_note_ack(f, s);
	f->high_seq = seq_add(s->seq, s->len);
}

/* Updates the record from a segment with data. */
static __always_inline void flow_note_data(struct flow *f, const struct segment *s, __u64 now,
					   struct outcome *out)
{
	flow_touch(f, now);
	flow_note_ack(f, s);
	if (s->unit_len > f->mss)
		f->mss = s->unit_len;
	if (s->tcp_flags & TCP_CWR)
		f->ramp = 0;
	if (flow_is_late(f, now))
		flow_saw_late(f, out);
}

/* Notes a RST or SYN of the sender, which passes: the VM may answer it with a challenge ACK. */
static __always_inline void flow_note_rst_or_syn(struct flow *f, const struct segment *s)
{
	/* SEQ is NEXT_SEQ, and the VM was handed nothing beyond: the ring keeps the order, so that
	 * this is the VM's RCV.NXT when it gets the RST, and the VM accepts it (RFC 5961,
	 * section 3.2). Otherwise, or after a loss in the guest, the VM sends a challenge ACK. */
	if (s->tcp_flags & TCP_RST && seq_eq(s->seq, f->next_seq) && flow_caught_up(f))
		flow_closed(f);
	f->flags |= FLOW_F_CHALLENGE_DUE;
}

/* Notes a FIN of the sender that the VM has not received yet, with SEQ `end` - 1. The VM ignores a
 * FIN beyond its window, and keeps one behind a hole. */
static __always_inline void flow_note_fin(struct flow *f, const struct segment *s, struct seq end,
					  bool is_beyond, struct outcome *out)
{
	if (seq_le(end, seq_add(f->right_edge, 1)))
		f->flags |= is_beyond ? 0 : FLOW_F_FIN_SENDER;
	else if (s->len && f->early_bytes && seq_gt(f->adv_edge, f->right_edge))
		out->events |= EVENT_EARLY_FIN;
}

/* Passes a segment without data or FIN: a pure ACK, or below NEXT_SEQ a keep-alive or window probe,
 * which the VM must answer. */
static __always_inline enum to_vm_verdict flow_pass_empty(struct flow *f, const struct segment *s,
							  struct outcome *out)
{
	if (seq_lt(s->seq, f->next_seq)) {
		flow_note_timestamp(f, s);
		f->flags |= FLOW_F_REPLY_DUE;
	}
	if (flow_is_finished(f))
		out->events |= EVENT_CLOSED;
	return TO_VM_PASS;
}

/* Is there nothing in this segment that the VM itself must process, besides its data? */
static __always_inline bool flow_is_plain_data(const struct segment *s)
{
	return !(s->tcp_flags & (TCP_FIN | TCP_URG)) && !(s->bits & (SEG_FOREIGN | SEG_CE));
}

/* Answers a segment with nothing new for the VM: its bytes are below NEXT_SEQ, or beyond a hole and
 * the VM's own window. The VM has been handed bytes between VM_SEQ and NEXT_SEQ, and would answer a
 * second copy with an ACK below NEXT_SEQ, so the host answers. The VM answers if all of it is below
 * VM_SEQ, or it must process more than the data (`needs_vm`), or if it is silent. */
static __always_inline enum to_vm_verdict
flow_answer_old_data(struct flow *f, const struct hold *h, const struct segment *s, bool needs_vm,
		     const struct decision_context *c, struct outcome *out)
{
	f->ramp = 0;
	if (!needs_vm && !flow_vm_is_silent(f, h, c->policy, c->now)) {
		flow_fill_ack(f, h, s, c, out);
		flow_fill_repeated(f, s, flow_end_of_old(f, s), out);
		f->reacked++;
		return TO_VM_REACK;
	}
	flow_note_timestamp(f, s);
	f->flags |= FLOW_F_REPLY_DUE;
	return TO_VM_PASS;
}

/* Event for a flow that goes to FLOW_UNEXPECTED_SEQ because of this segment; 0: none is counted. */
static __always_inline __u32 flow_offline_event(const struct flow *f, const struct segment *s)
{
	if (s->bits & SEG_CE)
		return EVENT_OFFLINE_CE;
	return seq_eq(s->seq, f->high_seq) ? 0 : EVENT_OFFLINE_SEQ;
}

/* Mode of a flow after a segment with new data that was not copied. `is_next`: the segment
 * continues what the VM was handed, and the VM will accept it. In bypass the VM's own TCP does the
 * work. */
static __always_inline void flow_mode_by_data(struct flow *f, const struct segment *s,
					      struct seq end, bool is_next,
					      const struct decision_context *c, struct outcome *out)
{
	if (flow_is_bypassed(f))
		return;
	if (!is_next || !flow_is_plain_data(s)) {
		flow_offline(f, FLOW_UNEXPECTED_SEQ, flow_offline_event(f, s), out);
	} else if (!flow_may_accelerate(f, c->policy) || flow_may_be_passive(f, s, end, c)) {
		if (f->mode == FLOW_ACTIVE) {
			f->mode = FLOW_PASSIVE;
			/* A lease of before is for what was outstanding then. */
			f->lease_jiffy = 0;
		}
		out->events |= EVENT_PASSIVE;
	} else if (f->mode == FLOW_ACTIVE) {
		/* There is no memory for a copy. */
		flow_offline(f, FLOW_NO_BUF, EVENT_OFFLINE_NO_BUF, out);
	}
}

/* Passes a segment with new data that was not copied, and sets the flow's mode. */
static __always_inline enum to_vm_verdict flow_pass_data(struct flow *f, const struct segment *s,
							 struct seq end,
							 const struct decision_context *c,
							 struct outcome *out)
{
	bool is_next = seq_eq(s->seq, f->high_seq) && flow_accepts_within_window(f, s, end);

	flow_note_data(f, s, c->now, out);
	if (!is_next)
		flow_note_timestamp(f, s);
	flow_mode_by_data(f, s, end, is_next, c, out);
	flow_passed(f, end, c->now);
	return TO_VM_PASS;
}

/*
 * Decides about a segment to the VM that is not kept. `h`: the flow's hold, or null (see
 * hold_to_vm()). Returns TO_VM_PASS, or TO_VM_REACK or TO_VM_RESET with out->ack.
 */
static __always_inline enum to_vm_verdict flow_to_vm(struct flow *f, const struct hold *h,
						     const struct segment *s,
						     const struct decision_context *c,
						     struct outcome *out)
{
	__u8 flags = s->tcp_flags;
	struct seq end = seq_add(s->seq, s->len + !!(flags & TCP_FIN));
	/* Entirely below RCV.NXT: the VM drops it, and answers. */
	bool is_old = seq_lt(end, f->vm_seq), is_beyond, needs_vm;

	out->events = 0;
	if (f->mode == FLOW_RESET)
		return flow_answer_reset(f, s, out);
	flow_touch(f, c->now);
	if (flags & (TCP_RST | TCP_SYN)) {
		flow_note_rst_or_syn(f, s);
		return TO_VM_PASS;
	}
	if (!(flags & TCP_ACK))
		return TO_VM_PASS;
	if (flow_refuses_segment(f, s)) {
		f->flags |= seq_gt(s->ack, f->snd_nxt) ? FLOW_F_CHALLENGE_DUE : FLOW_F_REPLY_DUE;
		return TO_VM_PASS;
	}
	if (s->bits & SEG_FOREIGN && !is_old)
		flow_bypass(f, FLOW_F_FOREIGN, out);
	flow_note_ack(f, s);
	is_beyond = h && !(s->bits & SEG_FOREIGN) && flow_is_beyond_vm(f, s, end);
	if (flags & TCP_FIN && !is_old)
		flow_note_fin(f, s, end, is_beyond, out);
	if (seq_eq(s->seq, end))
		return flow_pass_empty(f, s, out);
	if (seq_le(end, f->next_seq) || is_beyond) {
		needs_vm = seq_le(end, f->vm_seq) || !(is_beyond || flow_is_plain_data(s));
		return flow_answer_old_data(f, h, s, needs_vm, c, out);
	}
	return flow_pass_data(f, s, end, c, out);
}

#endif
