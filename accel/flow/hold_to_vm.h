/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Verdict on a segment to a VM, of a flow with a hold: keep it, answer it, drop it, or leave it to
 * flow_to_vm(). See hold.h for the table.
 */
#ifndef VSNOOP_FLOW_HOLD_TO_VM_H
#define VSNOOP_FLOW_HOLD_TO_VM_H

#include "hold_sender.h"
#include "to_vm.h"
#include "vm_lease.h"

/* In a bulk transfer every fourth segment is acknowledged: a sender has less than four segments in
 * flight only for moments (BBR's minimum window is four). */
#define HOLD_ACK_SEGMENTS 4
/* Every second one (RFC 5681) with incast control, whose windows of a few segments keep a sender's
 * congestion window small after a loss, and while the segments wait in the hold: the VM, which
 * would acknowledge the last ones, has not got them. */
#define HOLD_ACK_SEGMENTS_FEW 2
/* After this time without an answer a listener takes no data: later segments wait in the hold. */
#define HOLD_UNCONFIRMED_NS (200 * NSEC_PER_MSEC)

/* May the ACK of this segment wait for a later one, so that most segments of a bulk transfer bring
 * none? Not for PSH or FIN, for a segment below MSS, during the ramp, for the last of `few` bytes,
 * and within `near` bytes of the edge that the sender was shown. */
static __always_inline bool hold_ack_may_wait(const struct flow *f, const struct hold *h,
					      const struct segment *s, struct seq end, __u32 few,
					      __u32 near)
{
	return !(s->tcp_flags & (TCP_PSH | TCP_FIN)) && s->unit_len >= f->mss &&
	       f->ramp >= FLOW_RAMP && h->unanswered * 16u + s->len < few &&
	       seq_diff(f->adv_edge, end) >= (__s32)near;
}

/* How a segment within the VM's window goes to the VM. Incast control shows small windows, so that
 * near is less than a segment there; an early ACK brings along a grant where one is due. */
static __always_inline enum hand hold_choose_hand(const struct flow *f, const struct hold *h,
						  const struct segment *s, struct seq end)
{
	bool shaped = flow_is_shaped(f);
	__u32 few = (shaped ? HOLD_ACK_SEGMENTS_FEW : HOLD_ACK_SEGMENTS) * f->mss,
	      near = shaped ? f->mss : few;

	if (!hold_ack_may_wait(f, h, s, end, few, near) || (shaped && f->incast.waiting))
		return HAND_AND_ACK;
	return HAND_ON;
}

/* An ACK that waits for a second segment does so for one that follows at once: a sender with a
 * single segment in flight would wait for its timeout. Time since the last ACK, 2^20 ns. */
#define HOLD_ACK_WAITS 1
/* After as much the sender may have waited for an ACK ... */
#define HOLD_ACK_WAITED 4
/* ... or for its timeout (200 ms at least with Linux, whatever was lost). */
#define HOLD_ACK_TIMEOUT 180

/* May the ACK of a segment wait that stays in the hold, `bytes` of it new? Not while there is a
 * hole, nor if the segment has filled one (RFC 5681, section 4.2). Not soon after a loss: a sender
 * with few segments in flight would wait for its timeout where the path loses a single ACK. */
static __always_inline bool hold_ack_of_held_may_wait(const struct flow *f, const struct hold *h,
						      const struct segment *s, __u32 bytes,
						      __u64 now)
{
	__u32 few = HOLD_ACK_SEGMENTS_FEW * f->mss;

	return f->ramp >= FLOW_RAMP_MOST && bytes <= s->len && !h->range_count &&
	       !(h->flags & (HOLD_ACK_EACH | HOLD_FIN | HOLD_FIN_WAITS)) && !flow_is_shaped(f) &&
	       flow_stamp(now) - h->acked_at <= HOLD_ACK_WAITS &&
	       hold_ack_may_wait(f, h, s, f->next_seq, few, few);
}

/* Before a segment is acknowledged, or not: had the sender nothing to go on with? One with an
 * unfinished segment sends it when all before is acknowledged (RFC 896). */
static __always_inline void hold_note_pause(struct flow *f, struct hold *h, const struct segment *s,
					    __u64 now)
{
	__u32 since = flow_stamp(now) - h->acked_at;

	if (h->unanswered && since > HOLD_ACK_WAITED && s->unit_len < f->mss)
		h->flags |= HOLD_ACK_EACH;
	if (since > HOLD_ACK_TIMEOUT && f->ramp > FLOW_RAMP)
		f->ramp = FLOW_RAMP;
}

/* Has a listener not answered for HOLD_UNCONFIRMED_NS? Its accept queue may be full; then the VM
 * gets only the data that complete the handshake, since it could take more for an attack. */
static __always_inline bool flow_listener_is_silent(const struct flow *f, __u64 now)
{
	return f->flags & FLOW_F_UNCONFIRMED && flow_outstanding(f) &&
	       since_ns(now, f->progress_ns) > HOLD_UNCONFIRMED_NS;
}

/* Is this a segment that may be kept at all? Plain data that the VM's TCP would accept, up to the
 * edge that the sender was shown, for a VM that is not silent. `end`: SEQ behind its last byte. */
static __always_inline bool hold_accepts_segment(const struct flow *f, const struct hold *h,
						 const struct segment *s, struct seq end,
						 const struct policy *p, __u64 now)
{
	const __u8 touched = TCP_SYN | TCP_RST | TCP_URG | TCP_ACK;

	return flow_may_accelerate(f, p) && s->len && (s->tcp_flags & touched) == TCP_ACK &&
	       !(s->bits & SEG_FOREIGN) && !(h->flags & HOLD_FIN) && flow_accepts_segment(f, s) &&
	       seq_le(end, seq_max(f->adv_edge, f->right_edge)) && !flow_vm_is_silent(f, h, p, now);
}

/* May this segment be kept for a flow that is not in HOLDING? `skip`: its bytes below NEXT_SEQ,
 * negative beyond a hole; `within`: it can be handed over at once. */
static __always_inline bool hold_may_start_with(const struct flow *f, const struct segment *s,
						struct seq end, __s32 skip, bool within)
{
	if (skip > 0 || !hold_may_enter_holding(f))
		return false;
	if (f->mode != FLOW_ACTIVE)
		return !skip && !within;
	/* A segment with FIN is left to the VM, unless the data lie beyond its window: it would
	 * then get the FIN only after a timeout of the sender. */
	return !(s->bits & SEG_CE) &&
	       !(s->tcp_flags & TCP_FIN && (skip || seq_le(end, f->right_edge)));
}

/* Should this segment be kept? Sets out->skip and out->hand. */
static __always_inline bool hold_keeps_segment(const struct flow *f, const struct hold *h,
					       const struct segment *s,
					       const struct decision_context *c,
					       struct outcome *out)
{
	struct seq end = seq_add(s->seq, s->len);
	__s32 skip = seq_diff(f->next_seq, s->seq);

	if (!hold_accepts_segment(f, h, s, end, c->policy, c->now))
		return false;
	out->skip = 0;
	out->hand = HAND_NOTHING;
	if (f->mode != FLOW_HOLDING) {
		bool within =
			!skip && seq_le(end, f->right_edge) && !flow_listener_is_silent(f, c->now);

		if (!hold_may_start_with(f, s, end, skip, within))
			return false;
		if (within) {
			out->hand = hold_choose_hand(f, h, s, end);
			return !flow_may_be_passive(f, s, end, c);
		}
	} else if (skip >= (__s32)s->len) {
		return false;
	}
	out->skip = skip > 0 ? skip : 0;
	return hold_engine_lives(c->port, c->now) &&
	       seq_le(end, flow_shown_edge(f, h, c->port, c->policy));
}

/* The sender has filled its window, and asks for more: RCV_WIN is at least two segments. */
static __always_inline void hold_open_for_probe(const struct flow *f, struct hold *h)
{
	if (h->rcv_win < 2u * f->mss)
		h->rcv_win = 2 * f->mss;
}

/* A probe of a sender that was shown room, of a flow with nothing outstanding: a keep-alive probe,
 * or a window update was lost. The VM is asked first (FLOW_F_REPLY_DUE), because only the VM knows
 * whether its connection still exists: it may have been rolled back, or rebooted. */
static __always_inline bool hold_asks_vm_first(const struct flow *f)
{
	return !flow_outstanding(f) && !(f->flags & FLOW_F_REPLY_DUE) &&
	       seq_diff(f->adv_edge, f->next_seq) >= (__s32)f->mss;
}

/* Does the host answer this keep-alive or window probe of the sender? It does where the VM's window
 * or the hold has room: the VM's own window update may have been lost, and not every VM answers a
 * segment below its window. */
static __always_inline bool hold_answers_probe(struct flow *f, struct hold *h,
					       const struct segment *s,
					       const struct decision_context *c)
{
	__s32 own = seq_diff(f->right_edge, f->next_seq);

	if (f->mode != FLOW_ACTIVE || !flow_caught_up(f) || !flow_may_accelerate(f, c->policy) ||
	    s->len || (s->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK ||
	    !seq_lt(s->seq, f->next_seq) || flow_refuses_segment(f, s) ||
	    flow_vm_is_silent(f, h, c->policy, c->now) || hold_asks_vm_first(f))
		return false;
	if (own >= (__s32)f->mss)
		return true;
	if (!c->policy->ahead || !hold_engine_lives(c->port, c->now))
		return false;
	hold_open_for_probe(f, h);
	return seq_gt(flow_shown_edge(f, h, c->port, c->policy), f->next_seq);
}

/* Data that only the VM can process: with urgent data or an option that is not understood. */
static __always_inline bool segment_needs_vm(const struct segment *s)
{
	return s->len && (s->bits & SEG_FOREIGN || s->tcp_flags & TCP_URG);
}

/* Does the segment start at or below NEXT_SEQ, and fill bytes of the first hole? */
static __always_inline bool segment_fills_first_hole(const struct flow *f, const struct segment *s)
{
	return seq_le(s->seq, f->next_seq) && seq_gt(seq_add(s->seq, s->len), f->next_seq);
}

/* Answers a RST of the sender for a flow in HOLDING. out->ack has the SEQ and TSval of a segment to
 * the VM. */
static __always_inline enum to_vm_verdict hold_answer_rst(struct flow *f, struct hold *h,
							  const struct segment *s,
							  const struct decision_context *c,
							  struct outcome *out)
{
	if (seq_gt(s->seq, f->high_seq) && !seq_eq(s->seq, f->next_seq)) {
		/* Beyond the VM's window: the VM would not even send a challenge ACK (RFC 5961). */
		flow_fill_ack(f, h, s, c, out);
		return TO_VM_REACK;
	}
	f->flags |= FLOW_F_CHALLENGE_DUE;
	if (!seq_eq(s->seq, f->next_seq))
		return TO_VM_PASS;
	flow_closed(f);
	h->flags |= HOLD_OVER;
	return TO_VM_FORWARD;
}

/* Verdict on a segment of a flow in HOLDING that is not kept. */
static __always_inline enum to_vm_verdict hold_answer_not_kept(struct flow *f, struct hold *h,
							       const struct segment *s,
							       const struct decision_context *c,
							       struct outcome *out)
{
	bool is_silent = flow_vm_is_silent(f, h, c->policy, c->now);
	struct seq end = seq_add(s->seq, s->len);
	__u8 flags = s->tcp_flags;

	out->ack.seq = hold_seq_for_vm(f);
	out->ack.tsval = h->handed_tsval;
	if (flags & TCP_RST)
		return hold_answer_rst(f, h, s, c, out);
	if (flags & TCP_SYN) {
		f->flags |= FLOW_F_CHALLENGE_DUE;
		return TO_VM_PASS;
	}
	if (!(flags & TCP_ACK) || segment_needs_vm(s))
		return TO_VM_DROP;
	if (flow_refuses_segment(f, s)) {
		/* An unacceptable segment is answered (RFC 9293, section 3.10.7.4): its sender
		 * learns what is wanted. One without data may itself be such an answer. */
		if (!s->len || is_silent)
			return TO_VM_DROP;
		f->reacked++;
		flow_fill_ack(f, h, s, c, out);
		return TO_VM_REACK;
	}
	if (!s->len && !(flags & TCP_FIN)) {
		if (seq_ge(s->seq, f->next_seq))
			return TO_VM_FORWARD;
		if (is_silent) {
			/* A silent VM must answer the probe itself (RFC 9293, section 3.8.4). */
			if (!(f->flags & FLOW_F_UNCONFIRMED))
				out->ack.seq = seq_add(f->vm_seq, (__u32)-1);
			return TO_VM_FORWARD;
		}
	} else if (is_silent) {
		return TO_VM_DROP;
	} else if (flags & TCP_FIN && seq_eq(end, f->next_seq) &&
		   flow_may_accelerate(f, c->policy)) {
		if (!(h->flags & HOLD_FIN))
			out->events |= EVENT_WAKE;
		hold_note_fin(f, h);
		return TO_VM_DROP;
	} else if (!s->len && seq_gt(s->seq, f->next_seq) && flow_may_accelerate(f, c->policy) &&
		   flow_accepts_segment(f, s) && !(h->flags & HOLD_FIN)) {
		hold_note_later_fin(h, s->seq);
	}
	if (s->len && seq_le(end, f->next_seq)) {
		f->ramp = 0;
		/* Its ACK waited, and the sender for it. */
		if (seq_gt(end, seq_add(f->next_seq, -(h->unanswered * 16u))))
			h->flags |= HOLD_ACK_EACH;
	}
	h->unanswered = 0;
	/* The edge stayed while the VM was prompt (hold_grow_window()), and the VM has stopped
	 * since. */
	if (!port_is_prompt(c->port, c->now) && hold_engine_lives(c->port, c->now) &&
	    flow_may_accelerate(f, c->policy))
		hold_open_for_probe(f, h);
	f->reacked++;
	flow_fill_ack(f, h, s, c, out);
	flow_fill_repeated(f, s, flow_end_of_old(f, s), out);
	return TO_VM_REACK;
}

/* Claims the chain for a copy. Fails while another CPU has it. */
static __always_inline bool hold_claim_chain(struct flow *f, struct hold *h)
{
	if (h->claimed)
		return false;
	h->claimed = 1;
	if (!seq_eq(h->tail, f->next_seq) && !h->range_count) {
		/* Segments since the last copy were left to the VM. */
		h->first = h->tail = h->reach = h->sure = f->next_seq;
		h->rcv_win = 0;
	}
	return true;
}

/* No engine is left to hand over the held bytes: resets the flow, and answers the sender. */
static __always_inline enum to_vm_verdict hold_reset_without_engine(struct flow *f, struct hold *h,
								    const struct segment *s,
								    __u64 now, struct outcome *out)
{
	f->retired = flow_outstanding(f);
	f->mode = FLOW_RESET;
	h->flags |= HOLD_OVER;
	flow_touch(f, now);
	out->events = EVENT_ENGINE_GONE;
	return flow_answer_reset(f, s, out);
}

/* The VM does not get a segment with a new ACK: who brings it the ACK? An EVENT_ bit. */
static __always_inline __u32 hold_bring_ack(const struct flow *f, struct hold *h, __u64 now)
{
	return hold_leaves_ack_to_engine(f, h, now) ? EVENT_WAKE : EVENT_SENDER_ACK;
}

/* Is there nothing in this segment besides ACK and window? */
static __always_inline bool segment_is_pure_ack(const struct flow *f, const struct segment *s)
{
	return !s->len && (s->tcp_flags & ~(TCP_PSH | TCP_ECE)) == TCP_ACK &&
	       !(s->bits & SEG_FOREIGN) && seq_ge(s->seq, f->next_seq);
}

/* Decides as flow_to_vm() does. For a flow with a hold (`h`) it may also return TO_VM_KEEP,
 * TO_VM_DROP and TO_VM_FORWARD. */
static __always_inline enum to_vm_verdict hold_to_vm(struct flow *f, struct hold *h,
						     const struct segment *s,
						     const struct decision_context *c,
						     struct outcome *out)
{
	enum to_vm_verdict verdict;
	bool has_new_ack = false, is_busy = false;

	out->events = 0;
	flow_end_vm_lease(f, h);
	flow_judge_far_end(f, h, c->port, c->now);
	if (h) {
		/* Only the VM can fill the hole with this segment, which it gets once the engine
		 * has handed over all; with other copies it never has. */
		if (segment_needs_vm(s) && segment_fills_first_hole(f, s) &&
		    !flow_refuses_segment(f, s))
			hold_forget_unacknowledged(h);
		hold_note_engine(f, h, c);
		has_new_ack = hold_note_sender(f, h, s);
		if (hold_has_lost_engine(f, h, c->port, c->now))
			return hold_reset_without_engine(f, h, s, c->now, out);
		if (hold_keeps_segment(f, h, s, c, out)) {
			if (hold_claim_chain(f, h)) {
				out->events |= has_new_ack ? hold_bring_ack(f, h, c->now) : 0;
				if (out->events & EVENT_WAKE)
					out->hand = HAND_NOTHING;
				return TO_VM_KEEP;
			}
			is_busy = true;
		}
	}
	if (h && hold_answers_probe(f, h, s, c)) {
		f->reacked++;
		flow_fill_ack(f, h, s, c, out);
		verdict = TO_VM_REACK;
	} else if (!h || f->mode != FLOW_HOLDING) {
		verdict = flow_to_vm(f, h, s, c, out);
	} else {
		flow_touch(f, c->now);
		if (!flow_refuses_segment(f, s))
			flow_note_ack(f, s);
		verdict = hold_answer_not_kept(f, h, s, c, out);
	}
	if (is_busy)
		out->events |= EVENT_HOLD_BUSY;
	if (!has_new_ack)
		return verdict;
	if (verdict == TO_VM_REACK || verdict == TO_VM_DROP) {
		out->events |= hold_bring_ack(f, h, c->now);
	} else if (verdict != TO_VM_RESET && segment_is_pure_ack(f, s) &&
		   hold_leaves_ack_to_engine(f, h, c->now)) {
		out->events |= EVENT_WAKE | EVENT_ACK_WAITS;
		return TO_VM_DROP;
	}
	return verdict;
}

#endif
