/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Decisions about a flow that the host keeps copies of (the report's shared
 * buffer, made safe).
 *
 * A flow with a hold acknowledges nothing that was not copied first.  What lies
 * within the VM's window is then handed over as ever.  What does not, or what the
 * ring refuses, waits (FLOW_HOLDING) for the engine, which hands it over in order
 * when the VM's window has room; until the engine has handed over everything,
 * whatever comes from the sender is kept behind it, or dropped:
 *
 *   in order          kept, acknowledged
 *   a pure ACK        forwarded at once, with SEQ = what the VM has been handed
 *   a probe, old data answered by the host
 *   beyond a hole     kept, NEXT_SEQ acknowledged again with SACK (four pieces)
 *   FIN               remembered, and sent to the VM by the engine
 *   RST               exact: forwarded like a pure ACK, and what is held is moot
 *   URG, or an option that is not understood: dropped, and comes again when the flow
 *                     has drained; one that would fill a hole must not wait for what
 *                     lies beyond it, and so that is forgotten
 *
 * hold_to_vm() looks at a segment.  When it answers TO_VM_KEEP it has claimed the
 * chain (hold.busy); the caller copies, hands over if out->deliver, and asks
 * flow_kept(), which moves NEXT_SEQ and fills in the ACK.
 *
 * RCV_WIN grows by two bytes for each byte acknowledged (the report's 2 MSS per
 * MSS), up to what the hold has room for, while the VM is late and the engine
 * alive.  An engine that is not heard of for HOLD_STALE_NS is not relied upon: no
 * byte beyond the VM's window is acknowledged any more.  After HOLD_ABANDONED_NS
 * connections with bytes that only it could hand over, or hand over again, are reset.
 */
#ifndef VSNOOP_FLOW_HOLD_H
#define VSNOOP_FLOW_HOLD_H

#include "to_vm.h"

#define HOLD_STALE_NS NSEC_PER_SEC
#define HOLD_ABANDONED_NS (5 * NSEC_PER_SEC)

static __always_inline bool hold_engine_lives(const struct port_state *port, __u64 now)
{
	return since_ns(now, port->engine_ns) < HOLD_STALE_NS;
}

/* Not heard of for so long that nobody is expected to take its place. */
static __always_inline bool hold_engine_is_gone(const struct port_state *port, __u64 now)
{
	return since_ns(now, port->engine_ns) >= HOLD_ABANDONED_NS;
}

#define HOLD_PIECES 4

/* Notes a piece beyond a hole; false when there are too many. */
static __always_inline bool hold_note_piece(struct hold *h, struct seq left, struct seq right)
{
	struct seq others[2 * HOLD_PIECES] = {};
	__u32 count = 0, i;

	for (i = 0; i < HOLD_PIECES && i < h->ahead_count; i++) {
		struct seq l = h->ahead[2 * i], r = h->ahead[2 * i + 1];

		if (seq_ge(r, left) && seq_le(l, right)) {
			left = seq_min(left, l);
			right = seq_max(right, r);
		} else {
			others[2 * (count & 3)] = l;
			others[2 * (count & 3) + 1] = r;
			count++;
		}
	}
	if (count >= HOLD_PIECES)
		return false;
	h->ahead[0] = left;
	h->ahead[1] = right;
	for (i = 0; i < HOLD_PIECES - 1; i++) {
		h->ahead[2 * i + 2] = others[2 * i];
		h->ahead[2 * i + 3] = others[2 * i + 1];
	}
	h->ahead_count = count + 1;
	return true;
}

/* Everything up to `end` is there: how far is it with the pieces that follow?  They do
 * not touch each other, so that none is reached by way of another. */
static __always_inline struct seq hold_join(struct hold *h, struct seq end)
{
	__u32 i, count = 0;

	for (i = 0; i < HOLD_PIECES && i < h->ahead_count; i++)
		if (seq_le(h->ahead[2 * i], end))
			end = seq_max(end, h->ahead[2 * i + 1]);
	for (i = 0; i < HOLD_PIECES && i < h->ahead_count; i++) {
		if (seq_le(h->ahead[2 * i], end))
			continue;
		h->ahead[2 * (count & 3)] = h->ahead[2 * i];
		h->ahead[2 * (count & 3) + 1] = h->ahead[2 * i + 1];
		count++;
	}
	h->ahead_count = count;
	return end;
}

/* The sender's FIN follows what is kept; what it has sent beyond is none of its stream. */
static __always_inline void hold_note_fin(struct flow *f, struct hold *h)
{
	h->flags |= HOLD_FIN;
	f->flags |= FLOW_F_FIN_SENDER;
	h->ahead_count = 0;
}

/* The engine has handed over what was held. */
static __always_inline bool hold_is_drained(const struct flow *f, const struct hold *h)
{
	if (h->ahead_count)
		return false;
	return h->flags & HOLD_FIN ? seq_gt(f->high_seq, h->tail) : seq_ge(f->high_seq, h->tail);
}

/* Learns what the engine has done. */
static __always_inline void hold_sync(struct flow *f, struct hold *h,
				      const struct port_state *port, const struct policy *p,
				      __u64 now)
{
	struct seq released = h->released;

	if (!hold_engine_lives(port, now))
		h->rcv_win = 0;
	/* SACK promises nothing (RFC 2018, section 8): the sender still has them. */
	if (p->run != PORT_ACTIVE || !hold_engine_lives(port, now))
		h->ahead_count = 0;
	if (f->mode != FLOW_HOLDING)
		return;
	if (seq_gt(released, f->high_seq) &&
	    seq_le(released, seq_add(h->tail, !!(h->flags & HOLD_FIN)))) {
		/* Until then the VM had nothing to answer. */
		if (seq_le(f->high_seq, f->vm_seq) && h->released_ns > f->progress_ns)
			f->progress_ns = h->released_ns;
		f->high_seq = released;
	}
	/* A FIN that alone is left needs no engine: the sender repeats it. */
	if (seq_ge(f->high_seq, h->tail) && !hold_engine_lives(port, now))
		h->flags &= ~HOLD_FIN;
	if (!hold_is_drained(f, h))
		return;
	/* The VM knows the TSval that the engine used, which may be of a later segment. */
	if ((__s32)(h->released_tsval - f->ts_recent) > 0)
		f->ts_recent = h->released_tsval;
	f->mode = h->flags & HOLD_FIN || f->flags & FLOW_F_ECE ? FLOW_UNEXPECTED_SEQ : FLOW_ACTIVE;
	h->since_ns = 0;
}

/* Is there a copy of the byte at VM_SEQ? */
static __always_inline bool hold_covers(const struct flow *f, const struct hold *h)
{
	return h->chunks && seq_le(h->first, f->vm_seq) && seq_lt(f->vm_seq, h->tail);
}

/* Only the engine could hand over what is held, and it has been gone for long. */
static __always_inline bool hold_is_abandoned(const struct flow *f, const struct hold *h,
					      const struct port_state *port, __u64 now)
{
	return f->mode == FLOW_HOLDING && !hold_is_drained(f, h) &&
	       since_ns(now, h->since_ns) >= HOLD_ABANDONED_NS && hold_engine_is_gone(port, now);
}

/* What a segment of the sender tells, whatever becomes of it: the engine's own
 * segments carry it to the VM.  Only of one that the VM could accept: its SEQ is at most
 * a probe's one byte before VM_SEQ, and not beyond what the sender was shown.  A window
 * counts if it is not older than the last (RFC 9293, section 3.10.7.4: SND.WL1, SND.WL2). */
static __always_inline void hold_note_sender(const struct flow *f, struct hold *h,
					     const struct segment *s)
{
	if (!(s->tcp_flags & TCP_ACK) || seq_lt(s->ack, f->snd_una) || seq_gt(s->ack, f->snd_nxt))
		return;
	if (seq_lt(s->seq, seq_add(f->vm_seq, (__u32)-1)) ||
	    seq_gt(s->seq, seq_max(f->adv_edge, f->right_edge)))
		return;
	if (seq_gt(s->seq, h->sender_seq) ||
	    (seq_eq(s->seq, h->sender_seq) && seq_ge(s->ack, h->snd_una))) {
		h->sender_seq = s->seq;
		h->sender_window = s->window;
	}
	h->snd_una = seq_max(h->snd_una, s->ack);
	if (!(s->bits & SEG_TIMESTAMPS) || (__s32)(s->tsval - h->tsval) < 0)
		return;
	h->tsval = s->tsval;
	h->tsecr = s->tsecr;
}

/* What an ACK of the VM tells. */
static __always_inline void hold_note_vm(struct flow *f, struct hold *h, const struct segment *s,
					 struct seq edge, bool advanced, struct outcome *out)
{
	if (f->mode == FLOW_HOLDING && (advanced || !seq_eq(edge, h->right_edge)))
		out->events |= EVENT_WAKE;
	h->heard++;
	h->vm_seq = f->vm_seq;
	/* What is acceptable is not older; so it does not fall behind by half the space. */
	h->sender_seq = seq_max(h->sender_seq, seq_add(f->vm_seq, (__u32)-1));
	/* What the VM answers for by itself moves on without copies, and may have filled a
	 * hole. */
	if (!h->busy) {
		/* Else somebody copies to where they say. */
		if (seq_gt(f->vm_seq, h->tail) && !(h->flags & HOLD_FIN)) {
			h->tail = hold_join(h, f->vm_seq);
			f->next_seq = seq_max(f->next_seq, h->tail);
		}
		h->first = seq_max(h->first, seq_min(f->vm_seq, h->tail));
	}
	h->right_edge = edge;
	h->high_seq = f->high_seq;
	h->snd_nxt = f->snd_nxt;
	h->vm_tsval = f->vm_tsval;
	if (h->chunks && !h->busy &&
	    ((seq_ge(f->vm_seq, h->tail) && !h->ahead_count) ||
	     seq_diff(f->vm_seq, seq_of(h->front >> 32)) >= HOLD_CHUNK)) {
		h->busy = 1;
		out->events |= EVENT_FREE;
	}
}

/* The VM reports a loss of which there is a copy. */
static __always_inline void hold_note_loss(struct hold *h, struct outcome *out)
{
	h->repeated++;
	out->events |= EVENT_WAKE;
}

/* May a flow that is not held begin to be?  One that is caught up; and one whose VM
 * owes nothing: what it was handed beyond is not acknowledged, and it can be handed
 * that again.  The sender may have been shown more than the VM takes, and would send
 * it the same segment for ever. */
static __always_inline bool hold_may_begin(const struct flow *f)
{
	if (f->mode == FLOW_ACTIVE)
		return flow_caught_up(f);
	return (f->mode == FLOW_UNEXPECTED_SEQ || f->mode == FLOW_NO_BUF) &&
	       seq_eq(f->vm_seq, f->next_seq) && !(f->flags & FLOW_F_UNPROVEN);
}

/* Should this segment be kept?  Sets out->skip and out->deliver. */
static __always_inline bool hold_wants(const struct flow *f, const struct hold *h,
				       const struct segment *s, const struct port_state *port,
				       const struct policy *p, __u64 now, struct outcome *out)
{
	const __u8 touched = TCP_SYN | TCP_RST | TCP_URG | TCP_ACK;
	bool holding = f->mode == FLOW_HOLDING;
	struct seq end = seq_add(s->seq, s->len);
	__s32 skip = seq_diff(f->next_seq, s->seq);

	if (p->run != PORT_ACTIVE || !s->len || (s->tcp_flags & touched) != TCP_ACK ||
	    s->bits & SEG_FOREIGN || h->flags & HOLD_FIN || !flow_is_valid(f, s) ||
	    seq_diff(end, f->vm_seq) > (__s32)p->hold_flow)
		return false;
	out->skip = 0;
	out->deliver = 0;
	if (!holding) {
		bool within = !skip && seq_le(end, f->right_edge);

		if (skip > 0 || !hold_may_begin(f))
			return false;
		if (f->mode != FLOW_ACTIVE && (skip || within))
			return false;
		if (f->mode == FLOW_ACTIVE && (s->tcp_flags & TCP_FIN || s->bits & SEG_CE))
			return false;
		if (within) {
			out->deliver = 1;
			return !flow_may_stand_aside(f, s, end, port, p, now);
		}
	} else if (skip >= (__s32)s->len || (skip < 0 && s->tcp_flags & TCP_FIN)) {
		return false;
	}
	out->skip = skip > 0 ? skip : 0;
	return f->flags & FLOW_F_SCALE_KNOWN && hold_engine_lives(port, now) &&
	       seq_le(end, flow_shown_edge(f, h, port, p));
}

/* The sender asks for a window that the VM has closed, or not opened yet: the hold
 * has one for it. */
static __always_inline bool hold_opens(struct flow *f, struct hold *h, const struct segment *s,
				       const struct port_state *port, const struct policy *p,
				       __u64 now)
{
	__s32 own = seq_diff(f->right_edge, f->next_seq);

	if (f->mode != FLOW_ACTIVE || !flow_caught_up(f) || p->run != PORT_ACTIVE || s->len ||
	    (s->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK ||
	    !seq_lt(s->seq, f->next_seq) || own >= (__s32)f->mss ||
	    !(f->flags & FLOW_F_SCALE_KNOWN) || !hold_engine_lives(port, now))
		return false;
	if (h->rcv_win < 2u * f->mss)
		h->rcv_win = 2 * f->mss;
	return true;
}

/* Data that only the VM can answer for, whatever it is that it carries. */
static __always_inline bool hold_is_the_vms(const struct segment *s)
{
	return s->len && (s->bits & SEG_FOREIGN || s->tcp_flags & TCP_URG);
}

/* Does it begin to fill the first hole? */
static __always_inline bool hold_fills(const struct flow *f, const struct segment *s)
{
	return seq_le(s->seq, f->next_seq) && seq_gt(seq_add(s->seq, s->len), f->next_seq);
}

/* A flow that is held: a segment that is not kept. */
static __always_inline enum to_vm_verdict
hold_not_kept(struct flow *f, struct hold *h, const struct segment *s,
	      const struct port_state *port, const struct policy *p, struct outcome *out)
{
	struct seq end = seq_add(s->seq, s->len);
	__u8 flags = s->tcp_flags;

	out->ack.seq = f->high_seq;
	out->ack.tsval = h->released_tsval;
	if (flags & TCP_RST) {
		if (seq_gt(s->seq, f->high_seq) && !seq_eq(s->seq, f->next_seq)) {
			/* The VM would not even challenge it (RFC 5961). */
			flow_fill_ack(f, h, s, port, p, out);
			return TO_VM_REACK;
		}
		f->flags |= FLOW_F_CHALLENGE_DUE;
		if (!seq_eq(s->seq, f->next_seq))
			return TO_VM_PASS;
		flow_closed(f);
		h->flags |= HOLD_OVER;
		return TO_VM_FORWARD;
	}
	if (flags & TCP_SYN) {
		f->flags |= FLOW_F_CHALLENGE_DUE;
		return TO_VM_PASS;
	}
	if (!(flags & TCP_ACK) || seq_gt(s->ack, f->snd_nxt) || hold_is_the_vms(s))
		return TO_VM_DROP;
	if (!s->len && !(flags & TCP_FIN)) {
		if (seq_ge(s->seq, f->next_seq))
			return TO_VM_FORWARD;
	} else if (flags & TCP_FIN && seq_eq(end, f->next_seq) && p->run == PORT_ACTIVE) {
		if (!(h->flags & HOLD_FIN))
			out->events |= EVENT_WAKE;
		hold_note_fin(f, h);
		return TO_VM_DROP;
	}
	f->reacked++;
	flow_fill_ack(f, h, s, port, p, out);
	return TO_VM_REACK;
}

/* As flow_to_vm(), for a flow with a hold. */
static __always_inline enum to_vm_verdict
hold_to_vm(struct flow *f, struct hold *h, const struct segment *s,
	   const struct port_state *port, const struct policy *p, __u64 now, struct outcome *out)
{
	enum to_vm_verdict verdict;

	out->events = 0;
	/* What is beyond the hole would never be reached: the hole is the VM's to fill, and
	 * the flow is held as long as there are pieces.  The sender has them still (RFC 2018,
	 * section 8). */
	if (hold_is_the_vms(s) && hold_fills(f, s))
		h->ahead_count = 0;
	hold_sync(f, h, port, p, now);
	hold_note_sender(f, h, s);
	if (hold_is_abandoned(f, h, port, now)) {
		f->retired = flow_outstanding(f);
		f->mode = FLOW_RESET;
		h->flags |= HOLD_OVER;
		flow_touch(f, now);
		out->events = EVENT_ABANDONED;
		return flow_answer_reset(s, out);
	}
	if (hold_wants(f, h, s, port, p, now, out)) {
		if (h->busy)
			return TO_VM_BUSY;
		h->busy = 1;
		if (!seq_eq(h->tail, f->next_seq) && !h->ahead_count) {
			/* The VM answered for what came since the last copy. */
			h->first = h->tail = f->next_seq;
			h->rcv_win = 0;
		}
		return TO_VM_KEEP;
	}
	if (hold_opens(f, h, s, port, p, now)) {
		f->reacked++;
		flow_fill_ack(f, h, s, port, p, out);
		return TO_VM_REACK;
	}
	if (f->mode != FLOW_HOLDING) {
		verdict = flow_to_vm(f, h, s, port, p, now, out);
		if (verdict != TO_VM_DELIVER)
			return verdict;
		/* More than the flow may have: without a copy the VM answers. */
		flow_offline(f, FLOW_NO_BUF, EVENT_OFFLINE_NO_BUF, out);
		flow_handed_over(f, seq_add(s->seq, s->len), false, now);
		return TO_VM_PASS;
	}
	flow_touch(f, now);
	flow_note_ack(f, s);
	return hold_not_kept(f, h, s, port, p, out);
}

/* The window that the next bytes will be acknowledged with. */
static __always_inline void hold_grow(struct flow *f, struct hold *h, __u32 bytes,
				      const struct port_state *port, const struct policy *p,
				      __u64 now)
{
	__s32 own = seq_diff(f->right_edge, f->next_seq);

	if (port_is_prompt(port, now) || !hold_engine_lives(port, now) ||
	    !(f->flags & FLOW_F_SCALE_KNOWN))
		return;
	if (own > 0 && h->rcv_win < (__u32)own)
		h->rcv_win = own;
	h->rcv_win += 2 * bytes;
	if (h->rcv_win > p->hold_flow)
		h->rcv_win = p->hold_flow;
}

/*
 * After TO_VM_KEEP: the segment was copied, or there was no memory; the device
 * took it (`taken`), refused it, or was not asked.  Ends the claim.
 */
static __always_inline enum kept_verdict
flow_kept(struct flow *f, struct hold *h, const struct segment *s, bool copied, bool taken,
	  const struct port_state *port, const struct policy *p, __u64 now, struct outcome *out)
{
	struct seq end = seq_add(s->seq, s->len);
	__s32 skip = seq_diff(f->next_seq, s->seq);
	__u32 bytes;
	bool holding = f->mode == FLOW_HOLDING, ahead = skip < 0;
	/* The VM may have taken window back meanwhile, and drop it. */
	bool handed = taken && seq_le(end, f->right_edge);

	out->events = 0;
	h->busy = 0;
	flow_note_data(f, s, now, out);
	if (!copied)
		out->events |= EVENT_HOLD_FULL;
	if (!copied || p->run != PORT_ACTIVE ||
	    (!holding && f->mode != FLOW_ACTIVE && !hold_may_begin(f)) ||
	    skip >= (__s32)s->len || !flow_is_valid(f, s) ||
	    (!handed && !hold_engine_lives(port, now))) {
		/* The VM answers, if it gets it; or the sender sends it again. */
		if (holding)
			return KEPT_DROP;
		flow_offline(f, FLOW_NO_BUF, EVENT_OFFLINE_NO_BUF, out);
		flow_handed_over(f, end, false, now);
		return taken ? KEPT_DROP : KEPT_PASS;
	}
	if (handed) {
		flow_handed_over(f, end, true, now);
	} else if (!holding) {
		f->mode = FLOW_HOLDING;
		h->released = f->high_seq = f->next_seq;
		/* What the VM was handed so far has none above. */
		h->released_tsval = f->ts_recent;
		h->since_ns = now;
	}
	if (s->bits & SEG_CE)
		h->marked++;
	if (ahead) {
		/* Its timestamp is not the last in order (RFC 7323, section 4.3). */
		out->events |= EVENT_AHEAD;
		hold_note_piece(h, s->seq, end);
		flow_fill_ack(f, h, s, port, p, out);
		return KEPT_ACK;
	}
	flow_note_timestamp(f, s);
	end = hold_join(h, end);
	if (f->mode == FLOW_HOLDING && seq_eq(f->high_seq, f->next_seq))
		h->since_ns = now;
	bytes = seq_diff(end, f->next_seq);
	f->next_seq = h->tail = end;
	if (f->mode == FLOW_HOLDING) {
		out->events |= EVENT_WAKE;
		if (s->tcp_flags & TCP_FIN)
			hold_note_fin(f, h);
	}
	h->mss = f->mss;
	h->high_seq = f->high_seq;
	h->right_edge = f->right_edge;
	h->vm_seq = f->vm_seq;
	h->snd_nxt = f->snd_nxt;
	h->vm_tsval = f->vm_tsval;
	if (f->ramp < FLOW_RAMP)
		f->ramp++;
	f->early_acks++;
	f->early_bytes += bytes;
	hold_grow(f, h, bytes, port, p, now);
	flow_fill_ack(f, h, s, port, p, out);
	return KEPT_ACK;
}

/* Of a connection that is silent the hold can be had by another: it gets one again when
 * it needs it.  Rather not while the sender was shown more than the VM itself can take; but
 * nothing is lost then either.  What the sender sends beyond the VM's window is kept if
 * there is a hold again; if there is none nobody acknowledges it, the VM drops it, and the
 * sender repeats it. */
#define HOLD_IDLE_NS (10 * NSEC_PER_SEC)
#define HOLD_IDLE_LONG_NS (60 * NSEC_PER_SEC)
static __always_inline bool hold_is_idle(const struct flow *f, const struct hold *h, __u64 now)
{
	return !h->busy && !h->chunks && !h->ahead_count && f->mode != FLOW_HOLDING &&
	       !(h->flags & HOLD_FIN) && !flow_outstanding(f) &&
	       since_ns(now, f->last_ns) >=
		       (seq_diff(f->adv_edge, f->right_edge) < (__s32)f->mss ? HOLD_IDLE_NS
									   : HOLD_IDLE_LONG_NS);
}

/* A hold for this flow, which has none; `number` from 1. */
static __always_inline void hold_begin(struct flow *f, struct hold *h, __u16 number)
{
	h->vm_seq = f->vm_seq;
	/* Nothing is kept; the first copy begins at NEXT_SEQ. */
	h->first = h->tail = h->released = h->high_seq = f->next_seq;
	h->right_edge = f->right_edge;
	h->snd_una = f->snd_una;
	h->sender_seq = seq_add(f->vm_seq, (__u32)-1);
	h->snd_nxt = f->snd_nxt;
	h->vm_tsval = f->vm_tsval;
	h->tsval = h->released_tsval = f->ts_recent;
	h->tsecr = f->vm_tsval;
	h->flags = f->flags & FLOW_F_TIMESTAMPS ? HOLD_TIMESTAMPS : 0;
	h->mss = f->mss;
	f->hold = number;
}

#endif
