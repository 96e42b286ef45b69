/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A segment after it was copied: NEXT_SEQ moves, and the sender gets its ACK.
 */
#ifndef VSNOOP_FLOW_HOLD_KEPT_H
#define VSNOOP_FLOW_HOLD_KEPT_H

#include "hold_to_vm.h"

/* A flow in HOLDING must keep all its data: has the hold room for the window that the sender was
 * shown? */
static __always_inline bool hold_has_room_for_window(const struct flow *f,
						     const struct port_state *port,
						     const struct policy *p)
{
	__s64 chunks = (__s64)hold_chunks_there(port, p) - port->chunks_used;

	return seq_diff(f->adv_edge, f->next_seq) <= chunks * HOLD_CHUNK;
}

/* May the copied segment still be acknowledged, now that the lock is held again? */
static __always_inline bool hold_may_acknowledge(const struct flow *f, const struct segment *s,
						 bool handed, const struct decision_context *c)
{
	if (!flow_may_accelerate(f, c->policy) || !flow_accepts_segment(f, s) ||
	    seq_diff(f->next_seq, s->seq) >= (__s32)s->len)
		return false;
	if (f->mode != FLOW_HOLDING && f->mode != FLOW_ACTIVE && !hold_may_enter_holding(f))
		return false;
	if (handed)
		return true;
	/* A segment beyond the VM's window, or refused by the ring, needs an engine. */
	if (!hold_engine_lives(c->port, c->now))
		return false;
	/* The VM itself can take an out-of-order segment within its window, which may be far larger
	 * than the hold. */
	return f->mode == FLOW_HOLDING || seq_le(s->seq, f->next_seq) ||
	       seq_gt(seq_add(s->seq, s->len), f->right_edge) ||
	       hold_has_room_for_window(f, c->port, c->policy);
}

/* The segment is dropped. An ACK of NEXT_SEQ says so, as Linux sends one when it has no memory: a
 * sender without SACK repeats the segment after three of them, and not only after a timeout. */
static __always_inline enum kept_verdict hold_drop(struct flow *f, struct hold *h,
						   const struct segment *s,
						   const struct decision_context *c,
						   struct outcome *out)
{
	f->reacked++;
	h->unanswered = 0;
	flow_fill_ack(f, h, s, c, out);
	return KEPT_REACK;
}

/* The segment cannot be acknowledged. The VM acknowledges it if it gets it; else the sender repeats
 * it. */
static __always_inline enum kept_verdict
hold_leave_to_vm(struct flow *f, struct hold *h, const struct segment *s, struct seq end,
		 bool taken, const struct decision_context *c, struct outcome *out)
{
	if (f->mode == FLOW_HOLDING)
		return hold_drop(f, h, s, c, out);
	flow_offline(f, FLOW_NO_BUF, EVENT_OFFLINE_NO_BUF, out);
	if (!taken && flow_is_beyond_vm(f, s, end))
		return hold_drop(f, h, s, c, out);
	flow_passed(f, end, c->now);
	return taken ? KEPT_DROP : KEPT_PASS;
}

/* A copy in order, up to `end`: moves NEXT_SEQ, and returns by how many bytes. */
static __always_inline __u32 hold_extend(struct flow *f, struct hold *h, const struct segment *s,
					 struct seq end, const struct decision_context *c,
					 struct outcome *out)
{
	__u32 bytes;

	flow_note_timestamp(f, s);
	if (f->mode == FLOW_HOLDING && s->tcp_flags & TCP_FIN)
		hold_note_later_fin(h, end);
	bytes = hold_append(f, h, end, c->now, out);
	hold_tell_engine(f, h);
	hold_grow_window(f, h, bytes, c);
	if (f->ramp < FLOW_RAMP_MOST)
		f->ramp++;
	return bytes;
}

/* A copy in order, up to `end`, in the last memory of the hold, while the VM has yet to take others
 * of this flow: should the sender wait for its ACK? A sender whose segments are dropped repeats one
 * after ever longer times, and nothing but the ACK of a whole segment ends that. So the host has
 * one to acknowledge as soon as there is room (hold_note_vm_ack()). */
static __always_inline bool hold_withholds(const struct flow *f, const struct segment *s,
					   __u32 done, bool handed)
{
	return done & KEEP_LAST && !handed && f->mode == FLOW_HOLDING &&
	       seq_le(s->seq, f->next_seq) && flow_outstanding(f);
}

static __always_inline enum kept_verdict hold_withhold(struct flow *f, struct hold *h,
						       const struct segment *s, struct seq end,
						       const struct decision_context *c,
						       struct outcome *out)
{
	h->reach = seq_max(h->reach, end);
	if (s->tcp_flags & TCP_FIN)
		hold_note_later_fin(h, end);
	out->events |= EVENT_HOLD_FULL;
	return hold_drop(f, h, s, c, out);
}

/* A copy beyond a hole: adds the range, and acknowledges NEXT_SEQ again. */
static __always_inline enum kept_verdict
hold_answer_out_of_order(struct flow *f, struct hold *h, const struct segment *s, struct seq end,
			 const struct decision_context *c, struct outcome *out)
{
	bool is_known = hold_has_range(h, s->seq, end);

	/* Its TSval does not become TS.Recent (RFC 7323, section 4.3). */
	f->ramp = 0;
	h->unanswered = 0;
	out->events |= EVENT_OUT_OF_ORDER;
	hold_note_range(h, s->seq, end);
	if (s->tcp_flags & TCP_FIN)
		hold_note_later_fin(h, end);
	flow_fill_ack(f, h, s, c, out);
	if (is_known)
		flow_fill_repeated(f, s, end, out);
	return KEPT_ACK;
}

/*
 * Second half of TO_VM_KEEP; ends the claim on the chain.
 *
 * `done`: KEEP_*. With HAND_ON the segment passes to the VM after this call. KEPT_ACK comes with
 * out->ack.
 */
static __always_inline enum kept_verdict flow_kept(struct flow *f, struct hold *h,
						   const struct segment *s, __u32 done,
						   const struct decision_context *c,
						   struct outcome *out)
{
	bool copied = done & KEEP_COPIED, taken = done & KEEP_TAKEN;
	struct seq end = seq_add(s->seq, s->len);
	__u32 bytes, hand = out->hand;
	bool out_of_order = seq_gt(s->seq, f->next_seq);
	/* If the VM has shrunk its window meanwhile, it drops the clone. */
	bool within = seq_le(end, f->right_edge);
	bool handed = within && (taken || hand == HAND_ON);

	out->events &= EVENT_SENDER_ACK | EVENT_WAKE | EVENT_TELL;
	h->claimed = 0;
	flow_note_data(f, s, c->now, out);
	if (!copied)
		out->events |= done & KEEP_NO_MEMORY ? EVENT_HOLD_FULL : EVENT_NOT_COPIED;
	if (!copied || !hold_may_acknowledge(f, s, handed, c))
		return hold_leave_to_vm(f, h, s, end, taken, c, out);
	if (s->bits & SEG_CE)
		h->marked++;
	if (hold_withholds(f, s, done, handed))
		return hold_withhold(f, h, s, end, c, out);
	if (handed) {
		flow_handed_over(f, end, true, c->now);
		if (taken)
			h->sure = end;
		out->events &= ~EVENT_SENDER_ACK;
	} else if (f->mode != FLOW_HOLDING) {
		hold_enter_holding(f, h, c->now);
		/* The engine learns of the hold, also while the VM has no room. */
		out->events |= EVENT_WAKE;
	}
	hold_note_pause(f, h, s, c->now);
	if (out_of_order)
		return hold_answer_out_of_order(f, h, s, end, c, out);
	bytes = hold_extend(f, h, s, end, c, out);
	if (handed && hand == HAND_ON) {
		/* Rounded up, so that the ACK does not wait for a fifth segment. */
		h->unanswered += (bytes + 15) / 16;
		return KEPT_PASS;
	}
	if (!handed && hand == HAND_NOTHING && hold_ack_of_held_may_wait(f, h, s, bytes, c->now)) {
		h->unanswered += (bytes + 15) / 16;
		return KEPT_WAIT;
	}
	h->unanswered = 0;
	h->acked_at = flow_stamp(c->now);
	f->early_acks++;
	flow_fill_ack(f, h, s, c, out);
	return KEPT_ACK;
}

#endif
