/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Decisions about a flow with a hold (the report's shared buffer). The host acknowledges only bytes
 * of which the hold has a copy.
 *
 * A segment within the VM's window is copied and goes to the VM at once: as a clone whose original
 * becomes the early ACK, or itself where a later ACK covers it (hand_of()). A segment beyond the
 * window, or one that the ring refuses, is copied and waits (FLOW_HOLDING). The engine hands it
 * over in order once the VM's window has room. Until the engine has handed over everything,
 * segments of the sender are kept behind it, or dropped:
 *
 *   in order          kept, acknowledged
 *   a pure ACK        forwarded at once, with SEQ = high_seq
 *   a probe, old data answered by the host
 *   beyond a hole     kept, NEXT_SEQ acknowledged again with SACK (four ranges)
 *   FIN               recorded, and sent to the VM by the engine
 *   RST               with SEQ = NEXT_SEQ: forwarded like a pure ACK, the held bytes are given up
 *   URG, or an option that is not understood: dropped; the sender repeats it, and the VM gets it
 *                     once the flow has drained.  If it would fill a hole, the ranges beyond the
 *                     hole are forgotten, because the flow could not drain with them.
 *
 * A segment that the VM does not get may still have an ACK of the VM's data, or a window update.
 * These go to the VM at once, as a pure ACK (EVENT_SENDER_ACK, hold_fill_sender_ack()).
 *
 * hold_to_vm() decides about a segment. With TO_VM_KEEP it has claimed the chain (`claimed`); the
 * caller copies, hands over according to out->hand, and calls flow_kept(), which moves NEXT_SEQ and
 * fills in the ACK.
 *
 * RCV_WIN grows by two bytes for each byte acknowledged (the report's 2 MSS per MSS), up to what
 * the hold has room for, while the VM is late and the engine alive. While the VM answers promptly
 * the edge stays. Without a sign of life of the engine for HOLD_STALE_NS, the host acknowledges no
 * byte beyond the VM's window; after HOLD_ABANDONED_NS connections with bytes that only the engine
 * can hand over are reset.
 */
#ifndef VSNOOP_FLOW_HOLD_H
#define VSNOOP_FLOW_HOLD_H

#include "to_vm.h"

#define HOLD_STALE_NS NSEC_PER_SEC
#define HOLD_ABANDONED_NS (HOLD_ABANDONED_S * NSEC_PER_SEC)
/* In a bulk transfer every fourth segment is acknowledged: a sender has less than four segments in
 * flight only for moments (BBR's minimum window is four). */
#define HOLD_ACK_SEGMENTS 4
/* After this time without an answer a listener takes no data: later segments wait in the hold. */
#define HOLD_UNCONFIRMED_NS (200 * NSEC_PER_MSEC)

static __always_inline bool hold_engine_lives(const struct port_state *port, __u64 now)
{
	return since_ns(now, port->engine_ns) < HOLD_STALE_NS;
}

/* The engine gave no sign of life for so long that none is expected to start again. */
static __always_inline bool hold_engine_is_gone(const struct port_state *port, __u64 now)
{
	return since_ns(now, port->engine_ns) >= HOLD_ABANDONED_NS;
}

/* Were out-of-order ranges reported to the sender by SACK? */
static __always_inline bool hold_reports(const struct flow *f, const struct hold *h)
{
	return h && h->range_count && f->flags & FLOW_F_SACK;
}

/* SEQ for a segment to the VM: high_seq, or VM_SEQ if the VM may have no connection yet. */
static __always_inline struct seq hold_vm_next(const struct flow *f)
{
	return f->flags & FLOW_F_UNCONFIRMED ? f->vm_seq : f->high_seq;
}

#define HOLD_RANGES 4

/* Adds an out-of-order range, merged with those that it touches; false if that makes too many. */
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

/* All bytes below `end` are kept. Returns the end of the ranges that adjoin, and removes them.
 * Ranges do not touch each other, so one pass finds all. */
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

/* Records the sender's FIN behind the last byte kept; its stream has nothing beyond. */
static __always_inline void hold_note_fin(struct flow *f, struct hold *h)
{
	h->flags |= HOLD_FIN;
	f->flags |= FLOW_F_FIN_SENDER;
	h->range_count = 0;
}

/* Has the engine handed over everything? */
static __always_inline bool hold_is_drained(const struct flow *f, const struct hold *h)
{
	if (h->range_count)
		return false;
	return h->flags & HOLD_FIN ? seq_gt(f->high_seq, h->tail) : seq_ge(f->high_seq, h->tail);
}

/* Updates the record from the engine's fields of the hold. */
static __always_inline void hold_sync(struct flow *f, struct hold *h, const struct port_state *port,
				      const struct policy *p, __u64 now)
{
	struct seq handed = h->handed;

	if (!hold_engine_lives(port, now))
		h->rcv_win = 0;
	/* Ranges may be dropped: the sender keeps SACKed data (RFC 2018, section 8). */
	if (p->run != PORT_ACCELERATE || !hold_engine_lives(port, now))
		h->range_count = 0;
	if (f->mode != FLOW_HOLDING)
		return;
	if (seq_gt(handed, f->high_seq) &&
	    seq_le(handed, seq_add(h->tail, !!(h->flags & HOLD_FIN)))) {
		/* Before that the VM had no backlog. */
		if (seq_le(f->high_seq, f->vm_seq) && h->handed_ns > f->progress_ns)
			f->progress_ns = h->handed_ns;
		f->high_seq = handed;
	}
	/* If only the FIN is left, no engine is needed: the sender repeats it. */
	if (seq_ge(f->high_seq, h->tail) && !hold_engine_lives(port, now))
		h->flags &= ~HOLD_FIN;
	if (!hold_is_drained(f, h))
		return;
	/* The VM has seen the engine's TSval, which may be that of a later segment. */
	if ((__s32)(h->handed_tsval - f->ts_recent) > 0)
		f->ts_recent = h->handed_tsval;
	f->mode = h->flags & HOLD_FIN || f->flags & FLOW_F_ECE ? FLOW_UNEXPECTED_SEQ : FLOW_ACTIVE;
	h->since_ns = 0;
}

/* Is there a copy of the byte at VM_SEQ? */
static __always_inline bool hold_covers(const struct flow *f, const struct hold *h)
{
	return h->chunks && seq_le(h->first, f->vm_seq) && seq_lt(f->vm_seq, h->tail);
}

/* Held bytes wait, and no engine is left to hand them over. */
static __always_inline bool hold_is_abandoned(const struct flow *f, const struct hold *h,
					      const struct port_state *port, __u64 now)
{
	return f->mode == FLOW_HOLDING && !hold_is_drained(f, h) &&
	       since_ns(now, h->since_ns) >= HOLD_ABANDONED_NS && hold_engine_is_gone(port, now);
}

/* Records the sender's ACK, window and timestamps, which the engine's frames carry to the VM. Only
 * a segment that the VM could accept counts: it ends beyond VM_SEQ, or its SEQ is at least
 * VM_SEQ - 1 (a probe), and it is not beyond the edge that the sender was shown. A window counts if
 * it is not older than the last (RFC 9293, section 3.10.7.4: SND.WL1, SND.WL2). Returns whether ACK
 * or window are new to the VM. */
static __always_inline bool hold_note_sender(const struct flow *f, struct hold *h,
					     const struct segment *s)
{
	bool has_new_ack = false;

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
		has_new_ack = h->sender_window != s->window;
		h->sender_seq = s->seq;
		h->sender_window = s->window;
	}
	if (seq_gt(s->ack, h->snd_una)) {
		h->snd_una = s->ack;
		has_new_ack = true;
	}
	if (s->bits & SEG_TIMESTAMPS && (__s32)(s->tsval - h->tsval) >= 0) {
		h->tsval = s->tsval;
		h->tsecr = s->tsecr;
	}
	return has_new_ack;
}

/* Fills in a pure ACK for the VM with the sender's latest ACK and window. */
static __always_inline void hold_fill_sender_ack(const struct flow *f, const struct hold *h,
						 struct ack_fields *ack)
{
	ack->seq = hold_vm_next(f);
	ack->ack = h->snd_una;
	ack->window = h->sender_window;
	ack->timestamps = !!(f->flags & FLOW_F_TIMESTAMPS);
	/* At most the TSval of the engine's frames (RFC 7323, section 5). */
	ack->tsval = h->handed_tsval;
	ack->tsecr = h->tsecr;
	ack->sack = 0;
	flow_fill_route(f, ack);
}

/* Updates the hold from an ACK of the VM. `edge`: the right edge that it shows; `advanced`: it
 * moved VM_SEQ. */
static __always_inline void hold_note_vm(struct flow *f, struct hold *h, struct seq edge,
					 bool advanced, struct outcome *out)
{
	if (f->mode == FLOW_HOLDING && (advanced || !seq_eq(edge, h->right_edge)))
		out->events |= EVENT_WAKE;
	h->heard++;
	h->vm_seq = f->vm_seq;
	/* Acceptable segments are at or above VM_SEQ - 1; raising sender_seq keeps the comparison
	 * from wrapping. */
	h->sender_seq = seq_max(h->sender_seq, seq_add(f->vm_seq, (__u32)-1));
	/* Segments that were left to the VM have no copies; they may have filled a hole. */
	if (!h->claimed) {
		/* While `claimed` another CPU copies to the place that these fields name. */
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
	if (h->chunks && !h->claimed &&
	    ((seq_ge(f->vm_seq, h->tail) && !h->range_count) ||
	     seq_diff(f->vm_seq, seq_of(h->front >> 32)) >= HOLD_CHUNK)) {
		h->claimed = 1;
		out->events |= EVENT_FREE;
	}
}

/* The VM reports the loss of a byte that the hold has. */
static __always_inline void hold_note_loss(struct hold *h, struct outcome *out)
{
	h->repeated++;
	out->events |= EVENT_WAKE;
}

/* May a flow enter HOLDING? Yes, if it is ACTIVE and caught up. Yes, too, if the VM has
 * acknowledged all that the host has (VM_SEQ = NEXT_SEQ): bytes that the VM was handed beyond were
 * not acknowledged by anyone, and can be handed over again. Without the second case a sender that
 * was shown more than the VM's window could send the same segment for ever. */
static __always_inline bool hold_may_begin(const struct flow *f)
{
	if (f->mode == FLOW_ACTIVE)
		return flow_caught_up(f);
	return (f->mode == FLOW_UNEXPECTED_SEQ || f->mode == FLOW_NO_BUF) &&
	       seq_eq(f->vm_seq, f->next_seq) && !(f->flags & FLOW_F_UNPROVEN);
}

/* How a segment within the VM's window goes to the VM. Most segments of a bulk transfer pass
 * without an ACK. An ACK is sent at once for PSH, for a segment below MSS, during the ramp, near
 * the edge that the sender was shown, and with incast control, whose grants come with ACKs. */
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

/* Has a listener not answered for HOLD_UNCONFIRMED_NS? Its accept queue may be full; then the VM
 * gets only the data that complete the handshake, since it could take more for an attack. */
static __always_inline bool hold_is_not_taken(const struct flow *f, __u64 now)
{
	return f->flags & FLOW_F_UNCONFIRMED && flow_outstanding(f) &&
	       since_ns(now, f->progress_ns) > HOLD_UNCONFIRMED_NS;
}

/* Should this segment be kept? Sets out->skip and out->hand. */
static __always_inline bool hold_wants(const struct flow *f, const struct hold *h,
				       const struct segment *s, const struct port_state *port,
				       const struct policy *p, __u64 now, struct outcome *out)
{
	const __u8 touched = TCP_SYN | TCP_RST | TCP_URG | TCP_ACK;
	bool holding = f->mode == FLOW_HOLDING;
	struct seq end = seq_add(s->seq, s->len);
	__s32 skip = seq_diff(f->next_seq, s->seq);

	if (p->run != PORT_ACCELERATE || !s->len || (s->tcp_flags & touched) != TCP_ACK ||
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
		/* A segment with FIN is left to the VM, unless the data lie beyond its window: it
		 * would then get the FIN only after a timeout of the sender. */
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

/* Does the host answer this keep-alive or window probe of the sender? It does where the VM's window
 * or the hold has room: the VM's own window update may have been lost, and not every VM answers a
 * segment below its window. */
static __always_inline bool hold_opens(struct flow *f, struct hold *h, const struct segment *s,
				       const struct port_state *port, const struct policy *p,
				       __u64 now)
{
	__s32 own = seq_diff(f->right_edge, f->next_seq);

	if (f->mode != FLOW_ACTIVE || !flow_caught_up(f) || p->run != PORT_ACCELERATE || s->len ||
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

/* Data that only the VM can process: with urgent data or an option that is not understood. */
static __always_inline bool hold_is_the_vms(const struct segment *s)
{
	return s->len && (s->bits & SEG_FOREIGN || s->tcp_flags & TCP_URG);
}

/* Does the segment start at or below NEXT_SEQ, and fill bytes of the first hole? */
static __always_inline bool hold_fills(const struct flow *f, const struct segment *s)
{
	return seq_le(s->seq, f->next_seq) && seq_gt(seq_add(s->seq, s->len), f->next_seq);
}

/* Verdict on a segment of a flow in HOLDING that is not kept. */
static __always_inline enum to_vm_verdict
hold_not_kept(struct flow *f, struct hold *h, const struct segment *s,
	      const struct port_state *port, const struct policy *p, __u64 now, struct outcome *out)
{
	bool is_silent = flow_vm_is_silent(f, p, now);
	struct seq end = seq_add(s->seq, s->len);
	__u8 flags = s->tcp_flags;

	out->ack.seq = hold_vm_next(f);
	out->ack.tsval = h->handed_tsval;
	if (flags & TCP_RST) {
		if (seq_gt(s->seq, f->high_seq) && !seq_eq(s->seq, f->next_seq)) {
			/* Beyond the VM's window: the VM would not even send a challenge ACK (RFC
			 * 5961). */
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
			/* A silent VM must answer the probe itself (RFC 9293, section 3.8.4). */
			if (!(f->flags & FLOW_F_UNCONFIRMED))
				out->ack.seq = seq_add(f->vm_seq, (__u32)-1);
			return TO_VM_FORWARD;
		}
	} else if (is_silent) {
		return TO_VM_DROP;
	} else if (flags & TCP_FIN && seq_eq(end, f->next_seq) && p->run == PORT_ACCELERATE) {
		if (!(h->flags & HOLD_FIN))
			out->events |= EVENT_WAKE;
		hold_note_fin(f, h);
		return TO_VM_DROP;
	}
	f->reacked++;
	flow_fill_ack(f, h, s, port, p, out);
	return TO_VM_REACK;
}

/* Claims the chain for a copy. Fails while another CPU has it. */
static __always_inline bool hold_claim(struct flow *f, struct hold *h)
{
	if (h->claimed)
		return false;
	h->claimed = 1;
	if (!seq_eq(h->tail, f->next_seq) && !h->range_count) {
		/* Segments since the last copy were left to the VM. */
		h->first = h->tail = h->sure = f->next_seq;
		h->rcv_win = 0;
	}
	return true;
}

/* As flow_to_vm(); for a flow with a hold (`h`) it may also return TO_VM_KEEP, TO_VM_DROP and
 * TO_VM_FORWARD. */
static __always_inline enum to_vm_verdict
hold_to_vm(struct flow *f, struct hold *h, const struct segment *s, const struct port_state *port,
	   const struct policy *p, __u64 now, struct outcome *out)
{
	enum to_vm_verdict verdict;
	bool has_new_ack = false;

	out->events = 0;
	if (h) {
		/* Only the VM can fill the hole with this segment, which it gets once the flow has
		 * drained; but a flow with ranges does not drain. So forget the ranges: the sender
		 * keeps SACKed data (RFC 2018, section 8). */
		if (hold_is_the_vms(s) && hold_fills(f, s) && !flow_is_refused(f, s))
			h->range_count = 0;
		hold_sync(f, h, port, p, now);
		has_new_ack = hold_note_sender(f, h, s);
		if (hold_is_abandoned(f, h, port, now)) {
			f->retired = flow_outstanding(f);
			f->mode = FLOW_RESET;
			h->flags |= HOLD_OVER;
			flow_touch(f, now);
			out->events = EVENT_ABANDONED;
			return flow_answer_reset(f, s, out);
		}
		if (hold_wants(f, h, s, port, p, now, out) && hold_claim(f, h)) {
			out->events |= has_new_ack ? EVENT_SENDER_ACK : 0;
			return TO_VM_KEEP;
		}
	}
	if (h && hold_opens(f, h, s, port, p, now)) {
		f->reacked++;
		flow_fill_ack(f, h, s, port, p, out);
		verdict = TO_VM_REACK;
	} else if (!h || f->mode != FLOW_HOLDING) {
		verdict = flow_to_vm(f, h, s, port, p, now, out);
	} else {
		flow_touch(f, now);
		if (!flow_is_refused(f, s))
			flow_note_ack(f, s);
		verdict = hold_not_kept(f, h, s, port, p, now, out);
	}
	if (has_new_ack && (verdict == TO_VM_REACK || verdict == TO_VM_DROP))
		out->events |= EVENT_SENDER_ACK;
	return verdict;
}

/* Grows RCV_WIN after `bytes` were acknowledged. */
static __always_inline void hold_grow(struct flow *f, struct hold *h, __u32 bytes,
				      const struct port_state *port, const struct policy *p,
				      __u64 now)
{
	__s32 own = seq_diff(f->right_edge, f->next_seq);
	__s32 shown = seq_diff(f->adv_edge, f->next_seq);

	if (port_is_prompt(port, now)) {
		/* The edge stays until the VM's own has reached it: then the flow may be
		 * passive. */
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

/* Enters HOLDING: the ring refused a segment within the VM's window, or the segment lies beyond.
 * The held bytes begin at the first one that the ring is not known to have taken. */
static __always_inline void hold_start(struct flow *f, struct hold *h, __u64 now)
{
	f->mode = FLOW_HOLDING;
	h->handed = f->high_seq = seq_max(h->sure, f->vm_seq);
	/* No segment handed over so far has a higher TSval. */
	h->handed_tsval = f->ts_recent;
	h->since_ns = now;
}

/* Copies the fields of the record that the engine needs into the hold. */
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

/* A flow in HOLDING must keep all its data: has the hold room for the window that the sender was
 * shown? */
static __always_inline bool hold_has_room(const struct flow *f, const struct port_state *port,
					  const struct policy *p)
{
	__s64 chunks = (__s64)hold_chunks_there(port, p) - port->chunks_used;

	return seq_diff(f->adv_edge, f->next_seq) <= chunks * HOLD_CHUNK;
}

/* May the copied segment still be acknowledged, now that the lock is held again? */
static __always_inline bool hold_may_keep(const struct flow *f, const struct segment *s,
					  bool handed, const struct port_state *port,
					  const struct policy *p, __u64 now)
{
	if (p->run != PORT_ACCELERATE || !flow_is_valid(f, s) ||
	    seq_diff(f->next_seq, s->seq) >= (__s32)s->len)
		return false;
	if (f->mode != FLOW_HOLDING && f->mode != FLOW_ACTIVE && !hold_may_begin(f))
		return false;
	if (handed)
		return true;
	/* A segment beyond the VM's window, or refused by the ring, needs an engine, and the engine
	 * needs the VM's window. */
	if (!(f->flags & FLOW_F_SCALE_KNOWN) || !hold_engine_lives(port, now))
		return false;
	/* The VM itself can take an out-of-order segment within its window, which may be far larger
	 * than the hold. */
	return f->mode == FLOW_HOLDING || seq_le(s->seq, f->next_seq) ||
	       seq_gt(seq_add(s->seq, s->len), f->right_edge) || hold_has_room(f, port, p);
}

/*
 * Second half of TO_VM_KEEP; ends the claim on the chain.
 *
 * `copied`: the segment was copied, else there was no memory; `taken`: the device took the clone,
 * else it refused it or was not asked. With HAND_ON the segment passes to the VM after this call.
 * KEPT_ACK comes with out->ack.
 */
static __always_inline enum kept_verdict
flow_kept(struct flow *f, struct hold *h, const struct segment *s, bool copied, bool taken,
	  const struct port_state *port, const struct policy *p, __u64 now, struct outcome *out)
{
	struct seq end = seq_add(s->seq, s->len);
	__u32 bytes, hand = out->hand;
	bool out_of_order = seq_gt(s->seq, f->next_seq);
	/* If the VM has shrunk its window meanwhile, it drops the clone. */
	bool within = seq_le(end, f->right_edge);
	bool handed = within && (taken || hand == HAND_ON);

	out->events &= EVENT_SENDER_ACK;
	h->claimed = 0;
	flow_note_data(f, s, now, out);
	if (!copied)
		out->events |= EVENT_HOLD_FULL;
	if (!copied || !hold_may_keep(f, s, handed, port, p, now)) {
		/* The VM acknowledges the segment if it gets it; else the sender repeats it. */
		if (f->mode == FLOW_HOLDING)
			return KEPT_DROP;
		flow_offline(f, FLOW_NO_BUF, EVENT_OFFLINE_NO_BUF, out);
		if (!taken && flow_is_beyond_vm(f, s, end))
			return KEPT_DROP;
		flow_passed(f, end, now);
		return taken ? KEPT_DROP : KEPT_PASS;
	}
	if (handed) {
		flow_handed_over(f, end, true, now);
		if (taken)
			h->sure = end;
		out->events &= ~EVENT_SENDER_ACK;
	} else if (f->mode != FLOW_HOLDING) {
		hold_start(f, h, now);
	}
	if (s->bits & SEG_CE)
		h->marked++;
	if (out_of_order) {
		/* Its TSval does not become TS.Recent (RFC 7323, section 4.3). */
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
		/* Rounded up, so that the ACK does not wait for a fifth segment. */
		h->unanswered += (bytes + 15) / 16;
		return KEPT_PASS;
	}
	h->unanswered = 0;
	f->early_acks++;
	flow_fill_ack(f, h, s, port, p, out);
	return KEPT_ACK;
}

/* May another flow take this hold? Its connection is silent, and gets a hold again when it needs
 * one. The time is longer while the sender was shown more than the VM's window, but even then
 * nothing is lost: data beyond the VM's window are kept if there is a hold again, else the VM drops
 * them unacknowledged, and the sender repeats them. */
#define HOLD_IDLE_NS (10 * NSEC_PER_SEC)
#define HOLD_IDLE_LONG_NS (60 * NSEC_PER_SEC)
static __always_inline bool hold_is_idle(const struct flow *f, const struct hold *h, __u64 now)
{
	return !h->claimed && !h->chunks && !h->range_count && f->mode != FLOW_HOLDING &&
	       !(h->flags & HOLD_FIN) && !flow_outstanding(f) &&
	       since_ns(now, f->last_ns) >= (seq_diff(f->adv_edge, f->right_edge) < (__s32)f->mss ?
						     HOLD_IDLE_NS :
						     HOLD_IDLE_LONG_NS);
}

/* Initialises a hold for a flow that has none; `number` is the hold's, from 1. */
static __always_inline void hold_begin(struct flow *f, struct hold *h, __u16 number)
{
	h->vm_seq = f->vm_seq;
	/* Empty: the first copy begins at NEXT_SEQ. */
	h->first = h->tail = h->handed = h->high_seq = h->sure = f->next_seq;
	h->right_edge = f->right_edge;
	h->snd_una = f->snd_una;
	h->sender_seq = seq_add(f->vm_seq, (__u32)-1);
	h->snd_nxt = f->snd_nxt;
	h->vm_tsval = f->vm_tsval;
	h->tsval = h->handed_tsval = f->ts_recent;
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
