/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a hold learns from an ACK of the VM: which copies it may free, and which bytes the guest
 * lost.
 */
#ifndef VSNOOP_FLOW_HOLD_VM_H
#define VSNOOP_FLOW_HOLD_VM_H

#include "hold_state.h"

/* Is there a copy of the byte at VM_SEQ? */
static __always_inline bool hold_has_byte_at_vm_seq(const struct flow *f, const struct hold *h)
{
	return h->chunks && seq_le(h->first, f->vm_seq) && seq_lt(f->vm_seq, h->tail);
}

/* How long a sender may wait until its VM has taken all that is held. */
#define HOLD_RELEASE_NS (100 * NSEC_PER_SEC)

/* Is there room for what the sender sends upon an ACK? A sender after a timeout first sends data
 * that it has never sent (F-RTO, RFC 5682). If there is no memory for these, it waits for one more
 * timeout. */
static __always_inline bool hold_may_release(const struct flow *f, const struct hold *h, __u64 now)
{
	return seq_ge(f->vm_seq, h->tail) || since_ns(now, h->since_ns) >= HOLD_RELEASE_NS;
}

/* The VM has taken what is held: the copies that waited for that count, and the VM's ACK
 * passes with theirs. */
static __always_inline void hold_release(struct flow *f, struct hold *h,
					 const struct decision_context *c, struct outcome *out)
{
	if (seq_le(h->reach, h->tail) || !hold_may_release(f, h, c->now))
		return;
	if (f->mode == FLOW_HOLDING && !(h->flags & HOLD_FIN) && seq_eq(h->tail, f->next_seq) &&
	    hold_engine_lives(c->port, c->now) && flow_may_accelerate(f, c->policy)) {
		hold_append(f, h, h->reach, c->now, out);
		f->flags |= FLOW_F_REPLY_DUE;
	}
	/* Forget ranges that do not count: the sender has these bytes. */
	h->reach = h->tail;
}

/* Updates the hold from an ACK of the VM. `edge`: the right edge that it shows; `advanced`: it
 * moved VM_SEQ. */
static __always_inline void hold_note_vm_ack(struct flow *f, struct hold *h, struct seq edge,
					     bool advanced, const struct decision_context *c,
					     struct outcome *out)
{
	if (h->wants_acks)
		out->events |= EVENT_WAKE;
	else if (f->mode == FLOW_HOLDING && (advanced || !seq_eq(edge, h->right_edge)))
		out->events |= hold_may_hand_over(f, h, edge) ? EVENT_WAKE : EVENT_NOTE;
	/* The CPU with the claim may be freeing all chunks, because the VM has all that counts. */
	if (h->claimed && seq_ge(f->vm_seq, h->tail))
		h->reach = h->tail;
	h->vm_acks++;
	h->old_acks = 0;
	h->vm_seq = f->vm_seq;
	/* More than half of all sequence numbers may pass without copies. */
	h->sure = seq_max(h->sure, f->vm_seq);
	/* Acceptable segments are at or above VM_SEQ - 1; raising sender_seq keeps the comparison
	 * from wrapping. */
	h->sender_seq = seq_max(h->sender_seq, seq_add(f->vm_seq, (__u32)-1));
	/* Segments that were left to the VM have no copies; they may have filled a hole. */
	if (!h->claimed) {
		/* While `claimed` another CPU copies to the place that these fields name. */
		if (seq_gt(f->vm_seq, h->tail) && !(h->flags & HOLD_FIN)) {
			h->tail = hold_join_ranges(h, f->vm_seq);
			h->reach = seq_max(h->reach, h->tail);
			f->next_seq = seq_max(f->next_seq, h->tail);
		}
		if (seq_gt(seq_min(f->vm_seq, h->tail), h->first)) {
			h->first = seq_min(f->vm_seq, h->tail);
			hold_release(f, h, c, out);
		}
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

/* The VM acknowledges less than before. One such ACK was reordered on its way; a VM that sends no
 * others was rolled back to a snapshot. The host then vouches for it no more (flow_vm_is_silent()),
 * and the engine gives up a connection with bytes in the hold (RESET_ROLLED_BACK). */
static __always_inline void hold_note_old_ack(struct hold *h)
{
	h->old_acks++;
}

/* Does a VM whose window ended at VM_SEQ open it, and was it handed the byte at VM_SEQ before? It
 * had no memory, and has dropped what it was handed. It sends no duplicate ACKs of that. */
static __always_inline bool hold_vm_has_memory_again(const struct flow *f, struct seq edge)
{
	return seq_le(f->right_edge, f->vm_seq) && seq_gt(edge, f->vm_seq) &&
	       seq_gt(f->high_seq, f->vm_seq);
}

static __always_inline void hold_note_dropped(struct hold *h, struct outcome *out)
{
	h->dropped++;
	out->events |= EVENT_WAKE;
}

/* The VM reports the loss of a byte that the hold has. */
static __always_inline void hold_note_loss(struct hold *h, struct outcome *out)
{
	h->duplicate_acks++;
	out->events |= EVENT_WAKE;
}

#endif
