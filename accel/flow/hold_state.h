/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * State of a hold: the engine's sign of life, the mode FLOW_HOLDING from start to end, and the
 * fields that the record and the hold have in common.
 *
 * RCV_WIN grows by two bytes for each byte acknowledged (the report's 2 MSS per MSS), up to what
 * the hold has room for, while the VM is late and the engine alive. While the VM answers promptly
 * the edge stays.
 *
 * Without a sign of life of the engine for HOLD_STALE_NS, the host acknowledges no byte beyond the
 * VM's window; after HOLD_ENGINE_GONE_NS connections with bytes that only the engine can hand over
 * are reset.
 */
#ifndef VSNOOP_FLOW_HOLD_STATE_H
#define VSNOOP_FLOW_HOLD_STATE_H

#include "hold_ranges.h"
#include "state.h"

#define HOLD_STALE_NS NSEC_PER_SEC
#define HOLD_ENGINE_GONE_NS (HOLD_ENGINE_GONE_S * NSEC_PER_SEC)

static __always_inline bool hold_engine_lives(const struct port_state *port, __u64 now)
{
	return since_ns(now, port->engine_ns) < HOLD_STALE_NS;
}

/* Was the last sign of life HOLD_ENGINE_GONE_NS ago? Then no engine is expected to start again. */
static __always_inline bool hold_engine_is_gone(const struct port_state *port, __u64 now)
{
	return since_ns(now, port->engine_ns) >= HOLD_ENGINE_GONE_NS;
}

/* Records the sender's FIN behind the last byte kept; its stream has nothing beyond. */
static __always_inline void hold_note_fin(struct flow *f, struct hold *h)
{
	h->flags |= HOLD_FIN;
	h->fin_at = f->next_seq;
	f->flags |= FLOW_F_FIN_SENDER;
	h->range_count = 0;
}

/* Records the sender's FIN at `at`, beyond a hole. Its sender would repeat it only after a timeout:
 * neither a duplicate ACK nor a SACK block tells of it. */
static __always_inline void hold_note_later_fin(struct hold *h, struct seq at)
{
	h->flags |= HOLD_FIN_WAITS;
	h->fin_at = at;
}

/* Has the engine handed over all that the host has acknowledged, and has the hold no copies besides
 * (ranges, or a segment that waits for its ACK) that the engine would have to hand over later? */
static __always_inline bool hold_is_all_handed(const struct flow *f, const struct hold *h)
{
	if (h->range_count || seq_gt(h->reach, h->tail))
		return false;
	return h->flags & HOLD_FIN ? seq_gt(f->high_seq, h->tail) : seq_ge(f->high_seq, h->tail);
}

/* Forgets the copies that the host has not acknowledged: the sender keeps the bytes, those that
 * SACK has reported, too (RFC 2018, section 8). */
static __always_inline void hold_forget_unacknowledged(struct hold *h)
{
	h->range_count = 0;
	h->reach = h->tail;
}

/* Updates the record from the engine's fields of the hold. */
static __always_inline void hold_note_engine(struct flow *f, struct hold *h,
					     const struct decision_context *c)
{
	struct seq handed = h->handed;

	if (!hold_engine_lives(c->port, c->now))
		h->rcv_win = 0;
	if (!flow_may_accelerate(f, c->policy) || !hold_engine_lives(c->port, c->now))
		hold_forget_unacknowledged(h);
	if (f->mode != FLOW_HOLDING)
		return;
	if (seq_gt(handed, f->high_seq) &&
	    seq_le(handed, seq_add(h->tail, !!(h->flags & HOLD_FIN)))) {
		/* Before that the VM had no backlog: its first byte left at handed_ns. */
		if (seq_le(f->high_seq, f->vm_seq) && h->handed_ns > f->progress_ns) {
			f->progress_ns = h->handed_ns;
			flow_time_ack(f, seq_add(f->vm_seq, 1), true, h->handed_ns);
		}
		f->high_seq = handed;
		/* The engine counts what the ring has taken: HOLDING begins behind it. */
		h->sure = seq_max(h->sure, seq_min(handed, h->tail));
	}
	/* If only the FIN is left, no engine is needed: the sender repeats it. */
	if (seq_ge(f->high_seq, h->tail) && !hold_engine_lives(c->port, c->now))
		h->flags &= ~HOLD_FIN;
	if (!hold_is_all_handed(f, h))
		return;
	/* The VM has seen the engine's TSval, which may be that of a later segment. */
	if ((__s32)(h->handed_tsval - f->ts_recent) > 0)
		f->ts_recent = h->handed_tsval;
	f->mode = h->flags & HOLD_FIN || f->flags & FLOW_F_ECE ? FLOW_UNEXPECTED_SEQ : FLOW_ACTIVE;
	h->since_ns = 0;
}

/* Held bytes wait, and no engine is left to hand them over. */
static __always_inline bool hold_has_lost_engine(const struct flow *f, const struct hold *h,
						 const struct port_state *port, __u64 now)
{
	return f->mode == FLOW_HOLDING && !hold_is_all_handed(f, h) &&
	       since_ns(now, h->since_ns) >= HOLD_ENGINE_GONE_NS && hold_engine_is_gone(port, now);
}

/* May a flow enter HOLDING? Yes, if it is ACTIVE and caught up. Yes, too, if the VM has
 * acknowledged all that the host has (VM_SEQ = NEXT_SEQ): bytes that the VM was handed beyond were
 * not acknowledged by anyone, and can be handed over again. Without the second case a sender that
 * was shown more than the VM's window could send the same segment for ever. */
static __always_inline bool hold_may_enter_holding(const struct flow *f)
{
	if (f->mode == FLOW_ACTIVE)
		return flow_caught_up(f);
	return (f->mode == FLOW_UNEXPECTED_SEQ || f->mode == FLOW_NO_BUF) &&
	       seq_eq(f->vm_seq, f->next_seq) && !(f->flags & FLOW_F_UNPROVEN);
}

/* Enters HOLDING: the ring refused a segment within the VM's window, or the segment lies beyond.
 * The held bytes begin at the first one that the ring is not known to have taken. */
static __always_inline void hold_enter_holding(struct flow *f, struct hold *h, __u64 now)
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
	h->neighbour = !!(f->far & FAR_NEIGHBOUR);
	h->high_seq = f->high_seq;
	h->right_edge = f->right_edge;
	h->vm_seq = f->vm_seq;
	h->snd_nxt = f->snd_nxt;
	h->vm_tsval = f->vm_tsval;
	copy_mac(h->next_hop, f->next_hop);
}

/* Grows RCV_WIN after `bytes` were acknowledged. */
static __always_inline void hold_grow_window(struct flow *f, struct hold *h, __u32 bytes,
					     const struct decision_context *c)
{
	__s32 own = seq_diff(f->right_edge, f->next_seq);
	__s32 shown = seq_diff(f->adv_edge, f->next_seq);

	if (port_is_prompt(c->port, c->now)) {
		/* The edge stays until the VM's own has reached it: then the flow may be
		 * passive. */
		if (shown < 0)
			shown = 0;
		if (h->rcv_win > (__u32)shown)
			h->rcv_win = shown;
		return;
	}
	if (!hold_engine_lives(c->port, c->now))
		return;
	if (own > 0 && h->rcv_win < (__u32)own)
		h->rcv_win = own;
	h->rcv_win += 2 * bytes;
	if (h->rcv_win / HOLD_CHUNK > c->policy->hold_chunks)
		h->rcv_win = c->policy->hold_chunks * HOLD_CHUNK;
}

/* Do the copies in order end at a FIN that came before? */
static __always_inline bool hold_fin_is_next(struct hold *h)
{
	if (!(h->flags & HOLD_FIN_WAITS) || seq_lt(h->tail, h->fin_at))
		return false;
	h->flags &= ~HOLD_FIN_WAITS;
	return seq_eq(h->tail, h->fin_at);
}

/* Has the VM's window, up to `edge`, room for as much as the engine hands over at once? Any room is
 * enough if the VM has acknowledged all that it was handed, and waits for more. */
static __always_inline bool hold_may_hand_over(const struct flow *f, const struct hold *h,
					       struct seq edge)
{
	__s32 room = seq_diff(edge, f->high_seq), rest = seq_diff(h->tail, f->high_seq);

	return room > 0 &&
	       (seq_ge(f->vm_seq, f->high_seq) || room >= rest || (__u32)room >= h->portion);
}

/* Copies in order reach up to `end`: moves NEXT_SEQ there, or beyond to the end of ranges that
 * adjoin. Returns by how many bytes. */
static __always_inline __u32 hold_append(struct flow *f, struct hold *h, struct seq end, __u64 now,
					 struct outcome *out)
{
	__u32 bytes;

	end = hold_join_ranges(h, end);
	if (f->mode == FLOW_HOLDING && seq_eq(f->high_seq, f->next_seq))
		h->since_ns = now;
	bytes = seq_diff(end, f->next_seq);
	f->early_bytes += bytes;
	f->next_seq = h->tail = end;
	h->reach = seq_max(h->reach, end);
	if (f->mode == FLOW_HOLDING) {
		/* A VM that answers waits for what comes. Without room for it the VM's next ACK
		 * wakes the engine. */
		if (hold_may_hand_over(f, h, f->right_edge))
			out->events |= flow_is_late(f, now) ? EVENT_TELL : EVENT_WAKE;
		if (hold_fin_is_next(h))
			hold_note_fin(f, h);
	}
	return bytes;
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
static __always_inline void hold_init(struct flow *f, struct hold *h, __u16 number)
{
	h->vm_seq = f->vm_seq;
	/* Empty: the first copy begins at NEXT_SEQ. */
	h->first = h->tail = h->reach = h->handed = h->high_seq = h->sure = f->next_seq;
	h->right_edge = f->right_edge;
	h->snd_una = f->snd_una;
	h->sender_seq = seq_add(f->vm_seq, (__u32)-1);
	/* Nowhere: below all that is kept. */
	h->fin_at = seq_add(f->next_seq, (__u32)-1);
	h->snd_nxt = f->snd_nxt;
	h->vm_tsval = f->vm_tsval;
	h->tsval = h->handed_tsval = f->ts_recent;
	h->tsecr = f->vm_tsval;
	h->flags = HOLD_NO_WINDOW | (f->flags & FLOW_F_TIMESTAMPS ? HOLD_TIMESTAMPS : 0) |
		   (f->flags & FLOW_F_UNCONFIRMED ? HOLD_UNCONFIRMED : 0);
	h->mss = f->mss;
	h->unanswered = 0;
	h->acked_at = 0;
	h->old_acks = h->wants_acks = 0;
	h->sending = h->ack_waits = h->portion = 0;
	h->answered = h->resends + h->probes;
	copy_mac(h->next_hop, f->next_hop);
	f->hold = number;
}

#endif
