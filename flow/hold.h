/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Decisions about a flow of which the host keeps copies (the report's shared buffer,
 * made safe): the host acknowledges nothing else.
 *
 * What lies within the VM's window is copied and goes to the VM at once: as a clone whose
 * original becomes the early ACK, or untouched where a later ACK will do (hand_of()).  What
 * lies beyond it, or what the ring refuses, waits (FLOW_HOLDING) for the engine, which hands
 * it over in order when the VM's window has room; until the engine has handed over
 * everything, whatever comes from the sender is kept behind it, or dropped:
 *
 *   in order          kept, acknowledged
 *   a pure ACK        forwarded at once, with SEQ = what the VM has been handed
 *   a probe, old data answered by the host
 *   beyond a hole     kept, NEXT_SEQ acknowledged again with SACK (four ranges)
 *   FIN               remembered, and sent to the VM by the engine
 *   RST               exact: forwarded like a pure ACK, and what is held is moot
 *   URG, or an option that is not understood: dropped, and comes again when the flow
 *                     has drained; one that would fill a hole must not wait for what
 *                     lies beyond it, and so that is forgotten
 *
 * What the VM gets nothing of may carry news all the same: an ACK of the VM's data, or a
 * window.  They go to the VM at once, as a pure ACK (EVENT_NEWS, hold_news()).
 *
 * hold_to_vm() looks at a segment.  When it answers TO_VM_KEEP it has claimed the
 * chain (hold.busy); the caller copies, hands over as out->hand says, and asks
 * flow_kept(), which moves NEXT_SEQ and fills in the ACK.
 *
 * RCV_WIN grows by two bytes for each byte acknowledged (the report's 2 MSS per
 * MSS), up to what the hold has room for, while the VM is late and the engine
 * alive; while the VM answers promptly the edge stays where it is.  An engine that is
 * not heard of for HOLD_STALE_NS is not relied upon: no byte beyond the VM's window is
 * acknowledged any more.  After HOLD_ABANDONED_NS connections with bytes that only it
 * could hand over are reset.
 */
#ifndef VSNOOP_FLOW_HOLD_H
#define VSNOOP_FLOW_HOLD_H

#include "to_vm.h"

#define HOLD_STALE_NS NSEC_PER_SEC
#define HOLD_ABANDONED_NS (HOLD_ABANDONED_S * NSEC_PER_SEC)
/* Of segments of a bulk transfer every fourth is acknowledged: a sender never has less
 * than four under way for long (BBR's least window is four). */
#define HOLD_ACK_SEGMENTS 4
/* A listener that has not answered for so long takes no data: the rest waits. */
#define HOLD_UNCONFIRMED_NS (200 * NSEC_PER_MSEC)

static __always_inline bool hold_engine_lives(const struct port_state *port, __u64 now)
{
	return since_ns(now, port->engine_ns) < HOLD_STALE_NS;
}

/* Not heard of for so long that none is expected to take its place. */
static __always_inline bool hold_engine_is_gone(const struct port_state *port, __u64 now)
{
	return since_ns(now, port->engine_ns) >= HOLD_ABANDONED_NS;
}

/* Was the sender told of out-of-order ranges? */
static __always_inline bool hold_reports(const struct flow *f, const struct hold *h)
{
	return h && h->range_count && f->flags & FLOW_F_SACK;
}

/* The next byte that the VM can be sent: what it was handed it has, unless it has no
 * connection yet. */
static __always_inline struct seq hold_vm_next(const struct flow *f)
{
	return f->flags & FLOW_F_UNCONFIRMED ? f->vm_seq : f->high_seq;
}

#define HOLD_RANGES 4

/* Adds an out-of-order range, joined with those that it touches; false when there are too many. */
static __always_inline bool hold_note_range(struct hold *h, struct seq left, struct seq right)
{
	struct seq others[2 * HOLD_RANGES] = {};
	__u32 count = 0, i;

	for (i = 0; i < HOLD_RANGES && i < h->range_count; i++) {
		struct seq l = h->ranges[2 * i], r = h->ranges[2 * i + 1];

		if (seq_ge(r, left) && seq_le(l, right)) {
			left = seq_min(left, l);
			right = seq_max(right, r);
		} else {
			others[2 * (count & 3)] = l;
			others[2 * (count & 3) + 1] = r;
			count++;
		}
	}
	if (count >= HOLD_RANGES)
		return false;
	h->ranges[0] = left;
	h->ranges[1] = right;
	for (i = 0; i < HOLD_RANGES - 1; i++) {
		h->ranges[2 * i + 2] = others[2 * i];
		h->ranges[2 * i + 3] = others[2 * i + 1];
	}
	h->range_count = count + 1;
	return true;
}

/* Everything up to `end` is there: how far is it with the ranges that follow?  They do
 * not touch each other, so that none is reached by way of another. */
static __always_inline struct seq hold_join(struct hold *h, struct seq end)
{
	__u32 i, count = 0;

	for (i = 0; i < HOLD_RANGES && i < h->range_count; i++)
		if (seq_le(h->ranges[2 * i], end))
			end = seq_max(end, h->ranges[2 * i + 1]);
	for (i = 0; i < HOLD_RANGES && i < h->range_count; i++) {
		if (seq_le(h->ranges[2 * i], end))
			continue;
		h->ranges[2 * (count & 3)] = h->ranges[2 * i];
		h->ranges[2 * (count & 3) + 1] = h->ranges[2 * i + 1];
		count++;
	}
	h->range_count = count;
	return end;
}

/* The sender's FIN follows what is kept; what it has sent beyond is none of its stream. */
static __always_inline void hold_note_fin(struct flow *f, struct hold *h)
{
	h->flags |= HOLD_FIN;
	f->flags |= FLOW_F_FIN_SENDER;
	h->range_count = 0;
}

/* The engine has handed over what was held. */
static __always_inline bool hold_is_drained(const struct flow *f, const struct hold *h)
{
	if (h->range_count)
		return false;
	return h->flags & HOLD_FIN ? seq_gt(f->high_seq, h->tail) : seq_ge(f->high_seq, h->tail);
}

/* Learns what the engine has done. */
static __always_inline void hold_sync(struct flow *f, struct hold *h, const struct port_state *port,
				      const struct policy *p, __u64 now)
{
	struct seq released = h->released;

	if (!hold_engine_lives(port, now))
		h->rcv_win = 0;
	/* SACK promises nothing (RFC 2018, section 8): the sender still has them. */
	if (p->run != PORT_ACTIVE || !hold_engine_lives(port, now))
		h->range_count = 0;
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
 * segments carry it to the VM.  Only of one that the VM could accept: it ends beyond VM_SEQ,
 * or its SEQ is at most a probe's one byte before, and not beyond what the sender was shown.  A window
 * counts if it is not older than the last (RFC 9293, section 3.10.7.4: SND.WL1, SND.WL2).
 * True: the VM does not know that yet. */
static __always_inline bool hold_note_sender(const struct flow *f, struct hold *h,
					     const struct segment *s)
{
	bool news = false;

	if (!(s->tcp_flags & TCP_ACK) || seq_gt(s->ack, f->snd_nxt))
		return false;
	/* The ACK is compared with the hold's SND.UNA: the record's moves also with segments that
	 * the VM drops. */
	if ((seq_lt(s->seq, seq_add(f->vm_seq, (__u32)-1)) &&
	     seq_le(seq_add(s->seq, s->len), f->vm_seq)) ||
	    seq_gt(s->seq, seq_max(f->adv_edge, f->right_edge)) || seq_lt(s->ack, h->snd_una))
		return false;
	if (seq_gt(s->seq, h->sender_seq) ||
	    (seq_eq(s->seq, h->sender_seq) && seq_ge(s->ack, h->snd_una))) {
		news = h->sender_window != s->window;
		h->sender_seq = s->seq;
		h->sender_window = s->window;
	}
	if (seq_gt(s->ack, h->snd_una)) {
		h->snd_una = s->ack;
		news = true;
	}
	if (s->bits & SEG_TIMESTAMPS && (__s32)(s->tsval - h->tsval) >= 0) {
		h->tsval = s->tsval;
		h->tsecr = s->tsecr;
	}
	return news;
}

/* A pure ACK for the VM with what the sender has told. */
static __always_inline void hold_news(const struct flow *f, const struct hold *h,
				      struct ack_fields *news)
{
	news->seq = hold_vm_next(f);
	news->ack = h->snd_una;
	news->window = h->sender_window;
	news->timestamps = !!(f->flags & FLOW_F_TIMESTAMPS);
	/* No later than what the engine's frames carry (RFC 7323, section 5). */
	news->tsval = h->released_tsval;
	news->tsecr = h->tsecr;
	news->sack = 0;
	flow_fill_way(f, news);
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
	if (!same_mac(h->next_hop, f->next_hop))
		copy_mac(h->next_hop, f->next_hop);
	if (h->chunks && !h->busy &&
	    ((seq_ge(f->vm_seq, h->tail) && !h->range_count) ||
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
 * has acknowledged all that the host has: what the VM was handed beyond nobody has
 * acknowledged, and the VM can be handed it again.  The sender may have been shown more than the VM takes, and would send
 * it the same segment for ever. */
static __always_inline bool hold_may_begin(const struct flow *f)
{
	if (f->mode == FLOW_ACTIVE)
		return flow_caught_up(f);
	return (f->mode == FLOW_UNEXPECTED_SEQ || f->mode == FLOW_NO_BUF) &&
	       seq_eq(f->vm_seq, f->next_seq) && !(f->flags & FLOW_F_UNPROVEN);
}

/* How does a segment within the VM's window go to the VM?  ACKs are sparing, but leave no
 * sender waiting: one at once for PSH, for a segment below MSS, during the ramp, and
 * near the edge of what the sender was shown.  Incast control's grants come with ACKs. */
static __always_inline enum hand hand_of(const struct flow *f, const struct hold *h,
					 const struct segment *s, struct seq end)
{
	__u32 few = HOLD_ACK_SEGMENTS * f->mss;

	if (s->tcp_flags & TCP_PSH || s->unit_len < f->mss || f->ramp < FLOW_RAMP ||
	    h->unanswered * 16u + s->len >= few || seq_diff(f->adv_edge, end) < (__s32)few ||
	    flow_is_shaped(f))
		return HAND_AND_ACK;
	return HAND_ON;
}

/* Has a listener left unanswered what came last?  It has no room for the connection; more
 * than the data that completes the handshake it could take for an attack. */
static __always_inline bool hold_is_not_taken(const struct flow *f, __u64 now)
{
	return f->flags & FLOW_F_UNCONFIRMED && flow_outstanding(f) &&
	       since_ns(now, f->progress_ns) > HOLD_UNCONFIRMED_NS;
}

/* Should this segment be kept?  Sets out->skip and out->hand. */
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
	    seq_gt(end, seq_max(f->adv_edge, f->right_edge)) || flow_vm_is_silent(f, p, now))
		return false;
	out->skip = 0;
	out->hand = HAND_NOTHING;
	if (!holding) {
		bool within = !skip && seq_le(end, f->right_edge) && !hold_is_not_taken(f, now);

		if (skip > 0 || !hold_may_begin(f))
			return false;
		if (f->mode != FLOW_ACTIVE && (skip || within))
			return false;
		/* A FIN is the VM's, unless its window has no room for what comes before it:
		 * the VM would have it only after a timeout of the sender. */
		if (f->mode == FLOW_ACTIVE &&
		    (s->bits & SEG_CE ||
		     (s->tcp_flags & TCP_FIN && (skip || seq_le(end, f->right_edge)))))
			return false;
		if (within) {
			out->hand = hand_of(f, h, s, end);
			return flow_shows_enough(f, end) &&
			       !flow_may_be_passive(f, s, end, port, p, now);
		}
	} else if (skip >= (__s32)s->len || (skip < 0 && s->tcp_flags & TCP_FIN)) {
		return false;
	}
	out->skip = skip > 0 ? skip : 0;
	return f->flags & FLOW_F_SCALE_KNOWN && hold_engine_lives(port, now) &&
	       seq_le(end, flow_shown_edge(f, h, port, p));
}

/* A probe of the sender, for a window or for a sign of life: the host answers when it
 * knows of a window.  The VM's own update may have been lost on its way to the sender, and
 * not every VM answers a segment below its window; or the hold has room. */
static __always_inline bool hold_opens(struct flow *f, struct hold *h, const struct segment *s,
				       const struct port_state *port, const struct policy *p,
				       __u64 now)
{
	__s32 own = seq_diff(f->right_edge, f->next_seq);

	if (f->mode != FLOW_ACTIVE || !flow_caught_up(f) || p->run != PORT_ACTIVE || s->len ||
	    (s->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK ||
	    !seq_lt(s->seq, f->next_seq) || flow_is_refused(f, s) || flow_vm_is_silent(f, p, now))
		return false;
	if (own >= (__s32)f->mss)
		return true;
	if (!p->ahead || !(f->flags & FLOW_F_SCALE_KNOWN) || !hold_engine_lives(port, now))
		return false;
	if (h->rcv_win < 2u * f->mss)
		h->rcv_win = 2 * f->mss;
	return seq_gt(flow_shown_edge(f, h, port, p), f->next_seq);
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
	      const struct port_state *port, const struct policy *p, __u64 now, struct outcome *out)
{
	bool is_silent = flow_vm_is_silent(f, p, now);
	struct seq end = seq_add(s->seq, s->len);
	__u8 flags = s->tcp_flags;

	out->ack.seq = hold_vm_next(f);
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
	if (!(flags & TCP_ACK) || flow_is_refused(f, s) || hold_is_the_vms(s))
		return TO_VM_DROP;
	if (!s->len && !(flags & TCP_FIN)) {
		if (seq_ge(s->seq, f->next_seq))
			return TO_VM_FORWARD;
		if (is_silent) {
			/* The VM is to answer for itself (RFC 9293, section 3.8.4). */
			if (!(f->flags & FLOW_F_UNCONFIRMED))
				out->ack.seq = seq_add(f->vm_seq, (__u32)-1);
			return TO_VM_FORWARD;
		}
	} else if (is_silent) {
		return TO_VM_DROP;
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

/* Claims the chain for a copy; not while another CPU is at it. */
static __always_inline bool hold_claim(struct flow *f, struct hold *h)
{
	if (h->busy)
		return false;
	h->busy = 1;
	if (!seq_eq(h->tail, f->next_seq) && !h->range_count) {
		/* The VM answered for what came since the last copy. */
		h->first = h->tail = h->sure = f->next_seq;
		h->rcv_win = 0;
	}
	return true;
}

/* As flow_to_vm(), for a flow with a hold. */
static __always_inline enum to_vm_verdict
hold_to_vm(struct flow *f, struct hold *h, const struct segment *s, const struct port_state *port,
	   const struct policy *p, __u64 now, struct outcome *out)
{
	enum to_vm_verdict verdict;
	bool news;

	out->events = 0;
	/* What is beyond the hole would never be reached: the hole is the VM's to fill, and
	 * the flow is held as long as there are ranges.  The sender has them still (RFC 2018,
	 * section 8). */
	if (hold_is_the_vms(s) && hold_fills(f, s) && !flow_is_refused(f, s))
		h->range_count = 0;
	hold_sync(f, h, port, p, now);
	news = hold_note_sender(f, h, s);
	if (hold_is_abandoned(f, h, port, now)) {
		f->retired = flow_outstanding(f);
		f->mode = FLOW_RESET;
		h->flags |= HOLD_OVER;
		flow_touch(f, now);
		out->events = EVENT_ABANDONED;
		return flow_answer_reset(f, s, out);
	}
	if (hold_wants(f, h, s, port, p, now, out) && hold_claim(f, h)) {
		out->events |= news ? EVENT_NEWS : 0;
		return TO_VM_KEEP;
	}
	if (hold_opens(f, h, s, port, p, now)) {
		f->reacked++;
		flow_fill_ack(f, h, s, port, p, out);
		verdict = TO_VM_REACK;
	} else if (f->mode != FLOW_HOLDING) {
		verdict = flow_to_vm(f, h, s, port, p, now, out);
	} else {
		flow_touch(f, now);
		if (!flow_is_refused(f, s))
			flow_note_ack(f, s);
		verdict = hold_not_kept(f, h, s, port, p, now, out);
	}
	if (news && (verdict == TO_VM_REACK || verdict == TO_VM_DROP))
		out->events |= EVENT_NEWS;
	return verdict;
}

/* The window that the next bytes will be acknowledged with. */
static __always_inline void hold_grow(struct flow *f, struct hold *h, __u32 bytes,
				      const struct port_state *port, const struct policy *p,
				      __u64 now)
{
	__s32 own = seq_diff(f->right_edge, f->next_seq);
	__s32 shown = seq_diff(f->adv_edge, f->next_seq);

	if (port_is_prompt(port, now)) {
		/* The edge that was shown stays until the VM's own has come up with it: then the
		 * flow may be passive. */
		if (shown < 0)
			shown = 0;
		if (h->rcv_win > (__u32)shown)
			h->rcv_win = shown;
		return;
	}
	if (!hold_engine_lives(port, now) || !(f->flags & FLOW_F_SCALE_KNOWN))
		return;
	if (own > 0 && h->rcv_win < (__u32)own)
		h->rcv_win = own;
	h->rcv_win += 2 * bytes;
	if (h->rcv_win / HOLD_CHUNK > p->hold_chunks)
		h->rcv_win = p->hold_chunks * HOLD_CHUNK;
}

/* The ring refused a segment within the VM's window, or it lies beyond: the flow is held from
 * the first byte that the ring is not known to have taken. */
static __always_inline void hold_start(struct flow *f, struct hold *h, __u64 now)
{
	f->mode = FLOW_HOLDING;
	h->released = f->high_seq = seq_max(h->sure, f->vm_seq);
	/* What the VM was handed so far has none above. */
	h->released_tsval = f->ts_recent;
	h->since_ns = now;
}

/* What the engine is told of a flow that is kept copies of. */
static __always_inline void hold_tell_engine(const struct flow *f, struct hold *h)
{
	h->mss = f->mss;
	h->high_seq = f->high_seq;
	h->right_edge = f->right_edge;
	h->vm_seq = f->vm_seq;
	h->snd_nxt = f->snd_nxt;
	h->vm_tsval = f->vm_tsval;
	copy_mac(h->next_hop, f->next_hop);
}

/* All that comes for a flow that is held must be kept: is there room for what the sender was
 * shown? */
static __always_inline bool hold_has_room(const struct flow *f, const struct port_state *port,
					  const struct policy *p)
{
	__s64 chunks = (__s64)hold_chunks_there(port, p) - port->chunks_used;

	return seq_diff(f->adv_edge, f->next_seq) <= chunks * HOLD_CHUNK;
}

/* May what was copied be acknowledged, as things are by now? */
static __always_inline bool hold_may_keep(const struct flow *f, const struct segment *s,
					  bool handed, const struct port_state *port,
					  const struct policy *p, __u64 now)
{
	if (p->run != PORT_ACTIVE || !flow_is_valid(f, s) ||
	    seq_diff(f->next_seq, s->seq) >= (__s32)s->len)
		return false;
	if (f->mode != FLOW_HOLDING && f->mode != FLOW_ACTIVE && !hold_may_begin(f))
		return false;
	if (handed)
		return true;
	/* What the VM's window has no room for any more, or the ring has not, needs an engine,
	 * which needs to know the VM's window. */
	if (!(f->flags & FLOW_F_SCALE_KNOWN) || !hold_engine_lives(port, now))
		return false;
	/* An out-of-order segment the VM itself can take, and its window may be far larger than the
	 * hold. */
	return f->mode == FLOW_HOLDING || seq_le(s->seq, f->next_seq) ||
	       seq_gt(seq_add(s->seq, s->len), f->right_edge) || hold_has_room(f, port, p);
}

/*
 * After TO_VM_KEEP: the segment was copied, or there was no memory; the device took it
 * (`taken`), refused it, or was not asked.  With HAND_ON it passes to the VM after this.
 * Ends the claim.
 */
static __always_inline enum kept_verdict
flow_kept(struct flow *f, struct hold *h, const struct segment *s, bool copied, bool taken,
	  const struct port_state *port, const struct policy *p, __u64 now, struct outcome *out)
{
	struct seq end = seq_add(s->seq, s->len);
	__u32 bytes, hand = out->hand;
	bool out_of_order = seq_gt(s->seq, f->next_seq);
	/* The VM may have taken window back meanwhile, and drop it. */
	bool within = seq_le(end, f->right_edge);
	bool handed = within && (taken || hand == HAND_ON);

	out->events &= EVENT_NEWS;
	h->busy = 0;
	flow_note_data(f, s, now, out);
	if (!copied)
		out->events |= EVENT_HOLD_FULL;
	if (!copied || !hold_may_keep(f, s, handed, port, p, now)) {
		/* The VM answers, if it gets it; or the sender sends it again. */
		if (f->mode == FLOW_HOLDING)
			return KEPT_DROP;
		flow_offline(f, FLOW_NO_BUF, EVENT_OFFLINE_NO_BUF, out);
		flow_handed_over(f, end, false, now);
		return taken ? KEPT_DROP : KEPT_PASS;
	}
	if (handed) {
		flow_handed_over(f, end, true, now);
		if (taken)
			h->sure = end;
		out->events &= ~EVENT_NEWS;
	} else if (f->mode != FLOW_HOLDING) {
		hold_start(f, h, now);
	}
	if (s->bits & SEG_CE)
		h->marked++;
	if (out_of_order) {
		/* Its timestamp is not the last in order (RFC 7323, section 4.3). */
		f->ramp = 0;
		out->events |= EVENT_OUT_OF_ORDER;
		hold_note_range(h, s->seq, end);
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
	hold_tell_engine(f, h);
	hold_grow(f, h, bytes, port, p, now);
	if (f->ramp < FLOW_RAMP)
		f->ramp++;
	f->early_bytes += bytes;
	if (handed && hand == HAND_ON) {
		/* Rounded up, or a fifth segment would be waited for. */
		h->unanswered += (bytes + 15) / 16;
		return KEPT_PASS;
	}
	h->unanswered = 0;
	f->early_acks++;
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
	return !h->busy && !h->chunks && !h->range_count && f->mode != FLOW_HOLDING &&
	       !(h->flags & HOLD_FIN) && !flow_outstanding(f) &&
	       since_ns(now, f->last_ns) >= (seq_diff(f->adv_edge, f->right_edge) < (__s32)f->mss ?
						     HOLD_IDLE_NS :
						     HOLD_IDLE_LONG_NS);
}

/* A hold for this flow, which has none; `number` from 1. */
static __always_inline void hold_begin(struct flow *f, struct hold *h, __u16 number)
{
	h->vm_seq = f->vm_seq;
	/* Nothing is kept; the first copy begins at NEXT_SEQ. */
	h->first = h->tail = h->released = h->high_seq = h->sure = f->next_seq;
	h->right_edge = f->right_edge;
	h->snd_una = f->snd_una;
	h->sender_seq = seq_add(f->vm_seq, (__u32)-1);
	h->snd_nxt = f->snd_nxt;
	h->vm_tsval = f->vm_tsval;
	h->tsval = h->released_tsval = f->ts_recent;
	h->tsecr = f->vm_tsval;
	h->flags = (f->flags & FLOW_F_TIMESTAMPS ? HOLD_TIMESTAMPS : 0) |
		   (f->flags & FLOW_F_UNCONFIRMED ? HOLD_UNCONFIRMED : 0);
	h->mss = f->mss;
	h->unanswered = 0;
	h->answered = h->resends + h->probes;
	copy_mac(h->next_hop, f->next_hop);
	f->hold = number;
}

#endif
