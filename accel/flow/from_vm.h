/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Decisions about a segment that the VM sends (the report's vSnoop_egress).
 *
 * The VM's ACKs move VM_SEQ and the right edge. An ACK below NEXT_SEQ is old to the sender and is
 * dropped, unless it opens the window or answers a probe; it is then sent as an ACK of NEXT_SEQ.
 * The ACK of exactly NEXT_SEQ passes (the report's exception, section III-C). Data of the VM always
 * pass, with the ACK field raised to NEXT_SEQ. (The report raises it to NEXT_SEQ - 1; senders
 * ignore the window of such an old ACK.)
 *
 * flow_from_vm() has three steps, each with the results of the one before:
 *
 *   learn    flow_note_vm(), flow_note_vm_ack()   what the VM has received, accepts and sends
 *   mode     flow_mode_by_vm()                    offline, online, closed
 *   answer   flow_answer_vm()                     the verdict, and out->ack
 *
 * A RST, a segment without ACK, and any segment of a reset flow are answered before these steps.
 *
 * Loss inside the guest: a VM that sends a duplicate ACK below NEXT_SEQ and reports later bytes
 * has lost one, and so has a VM that opens a closed window below what it was handed. The hold has a
 * copy of every byte that the host acknowledged; the engine is woken, and sends it again.
 */
#ifndef VSNOOP_FLOW_FROM_VM_H
#define VSNOOP_FLOW_FROM_VM_H

#include "hold.h"

/* The VM's ACK moved VM_SEQ forward. */
static __always_inline void flow_vm_advanced(struct flow *f, struct hold *h, struct seq ack,
					     __u64 now, struct outcome *out)
{
	bool is_due = seq_diff(f->high_seq, f->vm_seq) >= 2 * (__s32)f->mss;

	if (flow_is_late(f, now))
		flow_saw_late(f, out);
	else if (since_ns(now, f->progress_ns) <= FLOW_PROMPT_NS)
		out->events |= EVENT_PROMPT;
	/* The ring keeps the order: an ACK of the first byte that the record has seen covers all
	 * segments that were in the ring before it. */
	if (seq_gt(f->high_seq, f->vm_seq) && seq_ge(ack, f->high_seq))
		flow_clear(f, FLOW_F_UNPROVEN);
	f->vm_seq = ack;
	f->progress_ns = now;
	f->next_seq = seq_max(f->next_seq, ack);
	if (seq_gt(ack, f->high_seq)) /* see flow_continues_passive() */
		f->high_seq = ack;
	if (f->sample && seq_ge(ack, f->sample_seq)) {
		out->sample_ns = since_ns(now, f->sample_ns);
		out->events |= EVENT_SAMPLE;
		if (f->sample == FLOW_SAMPLE_EARLY)
			out->events |= EVENT_SAMPLE_EARLY;
		if (h && is_due)
			hold_note_due_ack(h, out->sample_ns);
		f->sample = FLOW_SAMPLE_NONE;
	}
}

/* Is a window update worth an ACK of its own? Only if it at least doubles the window that the
 * sender has left; a smaller one waits for the next early ACK or the ACK of NEXT_SEQ (silly window
 * syndrome, RFC 9293, section 3.8.6.2). */
static __always_inline bool flow_window_opens(const struct flow *f, const struct hold *h,
					      const struct decision_context *c)
{
	struct seq edge = flow_shown_edge(f, h, c->port, c->policy);
	__s32 growth = seq_diff(edge, f->adv_edge);

	/* Incast control may grant no more than two segments: any growth opens a closed window. */
	if (flow_is_shaped(f) && seq_diff(f->adv_edge, f->incast.received) < (__s32)f->mss)
		return growth >= 1 << (f->scale & 15);
	return growth >= 2 * (__s32)f->mss && growth >= seq_diff(f->adv_edge, f->next_seq);
}

/* Has the sender an ACK of everything below `ack`? `next` is NEXT_SEQ before this ACK of the VM.
 * Not acknowledged yet: segments passed to the VM since the host's last ACK (HAND_ON), and a hole
 * that the VM has filled. */
static __always_inline bool flow_sender_has_ack(const struct hold *h, struct seq next,
						struct seq ack)
{
	__s32 bytes = seq_diff(next, ack);

	/* `unanswered` is rounded up, once for each segment. */
	return !h || (bytes >= 0 && bytes + HOLD_ACK_SEGMENTS * 16 >= h->unanswered * 16);
}

/* A duplicate ACK (RFC 5681) of VM_SEQ while acknowledged bytes are outstanding: does it prove that
 * the guest lost a segment? With SACK it must report bytes above the hole. Without SACK it must
 * repeat the window, and must not be a probe of the VM, which has a SEQ below SND.NXT. */
static __always_inline bool flow_repeats_for_a_hole(const struct flow *f, const struct segment *s,
						    struct seq edge)
{
	if (f->flags & FLOW_F_SACK)
		return s->bits & SEG_SACK && seq_gt(s->sack_end, s->ack);
	return seq_eq(edge, f->right_edge) && seq_eq(s->seq, f->snd_nxt);
}

/* No engine is left to hand over the held bytes: resets both ends. */
static __always_inline enum from_vm_verdict flow_reset_without_engine(struct flow *f,
								      struct hold *h,
								      const struct segment *s,
								      struct outcome *out)
{
	h->flags |= HOLD_OVER;
	f->retired = flow_outstanding(f);
	f->mode = FLOW_RESET;
	out->events |= EVENT_ENGINE_GONE;
	out->ack.seq = s->ack;
	out->ack.ack = f->snd_nxt;
	flow_fill_route(f, &out->ack);
	return FROM_VM_RESET_BOTH;
}

/* Answers a segment of the VM with a RST that is exact for it. */
static __always_inline enum from_vm_verdict
flow_reset_vm(const struct flow *f, const struct segment *s, struct outcome *out)
{
	out->ack.seq = s->ack;
	out->ack.ack = seq_add(s->seq, s->len + !!(s->tcp_flags & TCP_FIN));
	flow_fill_route(f, &out->ack);
	out->ack.ttl = FAR_TTL_MOST;
	return FROM_VM_RESET;
}

/* May the sender accept a RST with this SEQ? It accepts its RCV.NXT only, which lies between
 * SND.UNA and SND.NXT, and ignores or challenges any other (RFC 9293, section 3.10.7.4). */
static __always_inline bool flow_rst_is_acceptable(const struct flow *f, const struct segment *s)
{
	return seq_ge(s->seq, f->snd_una) && seq_le(s->seq, f->snd_nxt);
}

/* The host's part in a RST of the VM while bytes are outstanding: an EVENT_ bit, or 0. */
static __always_inline __u32 flow_blame_for_rst(const struct flow *f, const struct hold *h,
						const struct segment *s)
{
	/* The sender itself has reset the connection (flow_note_rst_or_syn(), hold_answer_rst()),
	 * and the VM's RST answers what the engine sent after that. */
	if (f->flags & FLOW_F_CLOSED)
		return 0;
	/* The VM rejects a segment that only the host sent, or data that only the host
	 * acknowledged: without vsnoop the sender would have had no ACK, and would have tried
	 * again. */
	if (f->flags & FLOW_F_UNCONFIRMED || (h && h->answered != h->resends + h->probes))
		return EVENT_REFUSED;
	/* A RST without ACK answers a segment of no connection (RFC 9293, section 3.10.7.1). An
	 * application that has closed answers data so, too, with vsnoop and without. */
	if (!(s->tcp_flags & TCP_ACK) && !(f->flags & FLOW_F_FIN_VM))
		return EVENT_FORGOTTEN;
	return 0;
}

/* A RST of the VM. */
static __always_inline enum from_vm_verdict flow_reset_by_vm(struct flow *f, struct hold *h,
							     const struct segment *s, __u64 now,
							     struct outcome *out)
{
	/* In RESET the record keeps answering until it expires. */
	if (f->mode == FLOW_RESET || !flow_rst_is_acceptable(f, s))
		return FROM_VM_PASS;
	if (!flow_outstanding(f)) {
		flow_closed(f);
		out->events |= EVENT_CLOSED;
		return FROM_VM_PASS;
	}
	out->events |= flow_blame_for_rst(f, h, s);
	/* If this RST is lost, a sender that only receives would not learn of it: keep the record,
	 * and answer its segments with RST. */
	f->retired = flow_outstanding(f);
	if (h)
		h->flags |= HOLD_OVER;
	f->mode = FLOW_RESET;
	flow_touch(f, now);
	return FROM_VM_PASS;
}

/* Replaces a pure ACK of the VM by one of the host with SACK blocks: once out-of-order data are
 * reported, every ACK must report them until the hole is filled (RFC 2018, section 4), and the VM's
 * ACK has no room for the option. The same goes for an ACK with stale SACK blocks that cannot be
 * removed (SEG_SACK_ODD). */
static __always_inline enum from_vm_verdict flow_replace(struct flow *f, const struct hold *h,
							 const struct segment *s,
							 const struct decision_context *c,
							 struct outcome *out)
{
	flow_fill_ack(f, h, s, c, out);
	out->ack.seq = s->seq;
	out->ack.tsval = s->tsval;
	out->ack.tsecr = s->tsecr;
	return FROM_VM_REPLACE;
}

/* Learn: updates the record from a segment of the VM, whatever it acknowledges. */
static __always_inline void flow_note_vm(struct flow *f, struct hold *h, const struct segment *s,
					 struct seq end, const struct decision_context *c)
{
	flow_touch(f, c->now);
	f->heard_at = flow_stamp(c->now);
	flow_clear(f, FLOW_F_UNCONFIRMED);
	if (f->traffic != s->traffic)
		f->traffic = s->traffic;
	flow_note_ttl(f, s->ttl);
	if (!same_mac(f->next_hop, s->destination))
		copy_mac(f->next_hop, s->destination);
	f->snd_nxt = seq_max(f->snd_nxt, end);
	if (s->bits & SEG_TIMESTAMPS) {
		if ((__s32)(s->tsval - f->vm_tsval) > 0)
			f->vm_tsval = s->tsval;
	}
	if (s->tcp_flags & TCP_FIN)
		f->flags |= FLOW_F_FIN_VM;
	if (h) {
		h->flags &= ~HOLD_UNCONFIRMED;
		h->answered = h->resends + h->probes;
		hold_note_engine(f, h, c);
	}
}

/* An ACK below VM_SEQ, or implausibly far beyond what the VM was handed, passes and moves
 * nothing. */
static __always_inline bool flow_ack_is_plausible(const struct flow *f, const struct segment *s)
{
	return seq_ge(s->ack, f->vm_seq) && seq_diff(s->ack, f->high_seq) <= (__s32)FLOW_MAX_WINDOW;
}

/* Learn: the VM's TSecr is its TS.Recent (RFC 7323, section 4.3), and it drops data with a lower
 * TSval. It may have TS.Recent from segments that the hooks do not read: fragments. The engine's
 * frames have at least that TSval. */
static __always_inline void flow_note_ts_recent(struct flow *f, struct hold *h,
						const struct segment *s)
{
	bool settled = !flow_outstanding(f);

	/* In HOLDING the engine's frames have the sender's latest TSval: a segment with an older
	 * one can still be kept. */
	if ((f->mode != FLOW_HOLDING && ts_is_later(s->tsecr, f->ts_recent)) ||
	    (settled && (seq_gt(s->ack, f->ts_seq) || (__s32)(s->tsecr - f->ts_recent) > 0)))
		f->ts_recent = s->tsecr;
	if (h && ts_is_later(s->tsecr, h->tsval))
		h->tsval = s->tsecr;
}

/* Learn: updates the record from the VM's ACK. Returns whether VM_SEQ advanced. */
static __always_inline bool flow_note_vm_ack(struct flow *f, struct hold *h,
					     const struct segment *s, bool pure,
					     const struct decision_context *c, struct outcome *out)
{
	struct seq edge = seq_add(s->ack, (__u32)s->window << (f->scale & 15));
	bool advanced = seq_gt(s->ack, f->vm_seq);

	/* Bytes that the VM reports by SACK were handed to it, even where the record missed them.
	 * In HOLDING they say nothing about the held bytes below. */
	if (f->mode != FLOW_HOLDING && s->bits & SEG_SACK && seq_gt(s->sack_end, s->ack) &&
	    seq_gt(s->sack_end, f->high_seq) &&
	    seq_diff(s->sack_end, s->ack) <= (__s32)FLOW_MAX_WINDOW)
		f->high_seq = s->sack_end;
	if (advanced) {
		flow_vm_advanced(f, h, s->ack, c->now, out);
	} else if (h && flow_outstanding(f) && hold_has_byte_at_vm_seq(f, h)) {
		if (hold_vm_has_memory_again(f, edge))
			hold_note_dropped(h, out);
		else if (pure && !(f->flags & FLOW_F_CHALLENGE_DUE) &&
			 flow_repeats_for_a_hole(f, s, edge))
			hold_note_loss(h, out);
	}
	if (h)
		hold_note_vm_ack(f, h, edge, advanced, c, out);
	f->right_edge = edge;
	if (s->bits & SEG_TIMESTAMPS)
		flow_note_ts_recent(f, h, s);
	return advanced;
}

/* Mode: the VM uses an option that is not understood. A flow in HOLDING hands over all first.
 * `was`: the mode when the segment came. */
static __always_inline void flow_bypass_foreign(struct flow *f, const struct segment *s, __u8 was,
						struct outcome *out)
{
	if (s->bits & SEG_FOREIGN && was != FLOW_HOLDING)
		flow_bypass(f, FLOW_F_FOREIGN, out);
}

/* Mode: the VM forwards the flow. All that was acknowledged early is delivered first, and the VM's
 * window must have reached the edge that the sender was shown. */
static __always_inline void flow_bypass_forwarded(struct flow *f, struct outcome *out)
{
	if (flow_is_forwarded(f) && f->mode != FLOW_HOLDING && !flow_outstanding(f) &&
	    seq_diff(f->adv_edge, f->right_edge) < 1 << (f->scale & 15))
		flow_bypass(f, 0, out);
}

/* Mode: a plausible ACK takes the flow offline, brings it back, or ends it. */
static __always_inline void flow_mode_by_vm(struct flow *f, const struct segment *s, __u8 was,
					    bool pure, struct outcome *out)
{
	flow_bypass_foreign(f, s, was, out);
	flow_bypass_forwarded(f, out);
	if (!(s->tcp_flags & TCP_ECE))
		flow_clear(f, FLOW_F_ECE);
	else if (!flow_is_bypassed(f)) {
		f->flags |= FLOW_F_ECE;
		if (f->mode != FLOW_HOLDING)
			flow_offline(f, FLOW_UNEXPECTED_SEQ, EVENT_OFFLINE_CE, out);
	}
	if (f->mode != FLOW_ACTIVE && f->mode != FLOW_HOLDING && !flow_is_bypassed(f) &&
	    flow_caught_up(f) && !(f->flags & (FLOW_F_ECE | FLOW_F_UNPROVEN)))
		f->mode = FLOW_ACTIVE;
	if (pure && flow_is_finished(f))
		out->events |= EVENT_CLOSED;
}

/* The findings of the steps before the answer about a segment of the VM. */
struct learnt {
	struct seq next; /* NEXT_SEQ before it */
	bool advanced; /* its ACK moved VM_SEQ */
	bool pure; /* it has neither data nor FIN */
};

/* Answer: what the sender gets. */
static __always_inline enum from_vm_verdict
flow_answer_vm(struct flow *f, struct hold *h, const struct segment *s, const struct learnt *l,
	       const struct decision_context *c, struct outcome *out)
{
	struct seq edge = f->right_edge;
	bool pure = l->pure;

	if (c->policy->run == PORT_OBSERVE && !flow_is_shaped(f)) {
		/* Record the edge as shown: a later limit must not take it back. */
		f->adv_edge = seq_max(f->adv_edge, edge);
		return FROM_VM_PASS;
	}
	/* The sender has reset the connection (flow_note_rst_or_syn(), hold_answer_rst()). The ring
	 * may have refused its RST, or the engine handed bytes over before it. The sender may be
	 * silent, or a firewall that has forgotten the connection, so the host answers in its
	 * place. */
	if (f->flags & FLOW_F_CLOSED) {
		if (!f->early_bytes)
			return FROM_VM_PASS;
		return flow_reset_vm(f, s, out);
	}
	if (pure && f->flags & FLOW_F_CHALLENGE_DUE) {
		/* A challenge ACK is never raised (RFC 5961): the sender builds its RST on the ACK
		 * field. It may itself advance VM_SEQ, or follow an ACK that does. A window once
		 * shown is still kept. */
		if (!l->advanced)
			flow_clear(f, FLOW_F_CHALLENGE_DUE);
		if (flow_is_bypassed(f) || seq_diff(flow_shown_edge(f, h, c->port, c->policy),
						    edge) < 1 << (f->scale & 15)) {
			f->adv_edge = seq_max(f->adv_edge, edge);
			return FROM_VM_PASS;
		}
		out->ack.ack = s->ack;
		out->ack.window = flow_advertise(f, h, s->ack, c->port, c->policy);
		return FROM_VM_REWRITE;
	}
	out->ack.ack = seq_max(s->ack, f->next_seq);
	if (!flow_outstanding(f)) {
		flow_clear(f, FLOW_F_REPLY_DUE);
		if (h)
			h->unanswered = 0;
		if (pure && hold_reports_ranges(f, h))
			return flow_replace(f, h, s, c, out);
		if (flow_is_bypassed(f) ||
		    seq_eq(flow_shown_edge(f, h, c->port, c->policy), edge)) {
			f->adv_edge = seq_max(f->adv_edge, edge);
			return FROM_VM_PASS;
		}
		out->ack.window = flow_advertise(f, h, s->ack, c->port, c->policy);
		return FROM_VM_REWRITE;
	}
	/* An ACK with a SEQ below SND.NXT is the VM's own keep-alive or window probe: it passes. */
	if (pure && seq_ge(s->seq, f->snd_nxt) && !flow_window_opens(f, h, c) &&
	    !(s->tcp_flags & TCP_ECE) && !(f->flags & FLOW_F_REPLY_DUE) &&
	    flow_sender_has_ack(h, l->next, s->ack)) {
		f->suppressed++;
		return FROM_VM_DROP;
	}
	flow_clear(f, FLOW_F_REPLY_DUE);
	if (h)
		h->unanswered = 0;
	f->rewritten++;
	if (pure && (hold_reports_ranges(f, h) || s->bits & SEG_SACK_ODD))
		return flow_replace(f, h, s, c, out);
	out->ack.window = flow_advertise(f, h, out->ack.ack, c->port, c->policy);
	return FROM_VM_REWRITE;
}

/* Decides about a segment of the VM. `h`: the flow's hold, or null. FROM_VM_REWRITE, _REPLACE and
 * _RESET* refer to out->ack. */
static __always_inline enum from_vm_verdict flow_from_vm(struct flow *f, struct hold *h,
							 const struct segment *s,
							 const struct decision_context *c,
							 struct outcome *out)
{
	struct seq end = seq_add(s->seq, s->len + !!(s->tcp_flags & TCP_FIN));
	struct learnt l = { .pure = seq_eq(s->seq, end) };
	__u8 was = f->mode;

	out->events = 0;
	flow_end_vm_lease(f, h);
	l.next = f->next_seq;
	if (s->tcp_flags & TCP_RST)
		return flow_reset_by_vm(f, h, s, c->now, out);
	if (f->mode == FLOW_RESET)
		return flow_reset_vm(f, s, out);
	if (!(s->tcp_flags & TCP_ACK))
		return FROM_VM_PASS;

	flow_note_vm(f, h, s, end, c);
	flow_judge_far_end(f, h, c->port, c->now);
	flow_count_forwarded(f, out);
	if (h && hold_has_lost_engine(f, h, c->port, c->now))
		return flow_reset_without_engine(f, h, s, out);
	if (!flow_ack_is_plausible(f, s)) {
		if (h && seq_lt(s->ack, f->vm_seq))
			hold_note_old_ack(h);
		/* It answers a probe, in its own way. */
		if (!flow_outstanding(f))
			flow_clear(f, FLOW_F_REPLY_DUE);
		flow_bypass_foreign(f, s, was, out);
		return FROM_VM_PASS;
	}
	l.advanced = flow_note_vm_ack(f, h, s, l.pure, c, out);

	flow_mode_by_vm(f, s, was, l.pure, out);

	return flow_answer_vm(f, h, s, &l, c, out);
}

#endif
