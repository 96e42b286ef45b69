/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The sender's ACK, window and timestamps. The engine's frames carry them to the VM, and so does a
 * pure ACK when the VM does not get the segment that brought them (EVENT_SENDER_ACK).
 */
#ifndef VSNOOP_FLOW_HOLD_SENDER_H
#define VSNOOP_FLOW_HOLD_SENDER_H

#include "hold_state.h"

/* SEQ for a segment to the VM: high_seq, or VM_SEQ if the VM may have no connection yet. */
static __always_inline struct seq hold_seq_for_vm(const struct flow *f)
{
	return f->flags & FLOW_F_UNCONFIRMED ? f->vm_seq : f->high_seq;
}

/* Could the VM accept the ACK of this segment? The segment ends beyond VM_SEQ, or its SEQ is at
 * least VM_SEQ - 1 (a probe), and it is not beyond the edge that the sender was shown. The ACK is
 * compared with the hold's SND.UNA: the record's moves also with segments that the VM drops. */
static __always_inline bool hold_accepts_sender_ack(const struct flow *f, const struct hold *h,
						    const struct segment *s)
{
	bool is_old = seq_lt(s->seq, seq_add(f->vm_seq, (__u32)-1)) &&
		      seq_le(seq_add(s->seq, s->len), f->vm_seq);

	return s->tcp_flags & TCP_ACK && seq_le(s->ack, f->snd_nxt) && seq_ge(s->ack, h->snd_una) &&
	       !is_old && seq_le(s->seq, seq_max(f->adv_edge, f->right_edge));
}

/* Records the sender's ACK, window and timestamps from a segment that the VM could accept. A window
 * counts if it is not older than the last (RFC 9293, section 3.10.7.4: SEQ against SND.WL1; an ACK
 * below SND.UNA was refused). Returns whether ACK or window are new to the VM. */
static __always_inline bool hold_note_sender(const struct flow *f, struct hold *h,
					     const struct segment *s)
{
	bool has_new_ack = false;

	if (!hold_accepts_sender_ack(f, h, s))
		return false;
	if (h->sender_ttl != s->ttl)
		h->sender_ttl = s->ttl;
	if (seq_ge(s->seq, h->sender_seq)) {
		/* The first may be in place of a handshake's ACK that was lost. */
		has_new_ack = h->flags & HOLD_NO_WINDOW || h->sender_window != s->window;
		h->flags &= ~HOLD_NO_WINDOW;
		h->sender_seq = s->seq;
		h->sender_window = s->window;
	}
	if (seq_gt(s->ack, h->snd_una)) {
		/* A full barrier: see hold_leaves_ack_to_engine(). */
		__sync_lock_test_and_set(&h->snd_una.v, s->ack.v);
		has_new_ack = true;
	}
	if (s->bits & SEG_TIMESTAMPS && (__s32)(s->tsval - h->tsval) >= 0) {
		h->tsval = s->tsval;
		h->tsecr = s->tsecr;
	}
	return has_new_ack;
}

/* An engine that was killed while it wrote a frame is waited for no longer than this, 2^20 ns. */
#define HOLD_SENDING 64

/* Is the engine writing a frame at this moment? That may have an older ACK, and get to the VM after
 * a segment with this one; some TCPs (smoltcp) drop it then with its data. So the engine carries
 * the ACK itself, behind its frame. The hooks write snd_una and then read `sending`, the engine
 * writes `sending` before a hook reads snd_una for its frame: at least one of them sees the other.
 */
static __always_inline bool hold_leaves_ack_to_engine(const struct flow *f, struct hold *h,
						      __u64 now)
{
	__s32 since = flow_stamp(now) - *(volatile __u32 *)&h->sending;

	if (!h->sending || since < -HOLD_SENDING || since > HOLD_SENDING ||
	    f->flags & FLOW_F_UNCONFIRMED)
		return false;
	*(volatile __u32 *)&h->ack_waits = 1;
	return true;
}

/* Fills in a pure ACK for the VM with the sender's latest ACK and window. */
static __always_inline void hold_fill_sender_ack(const struct flow *f, const struct hold *h,
						 struct ack_fields *ack)
{
	ack->seq = hold_seq_for_vm(f);
	ack->ack = h->snd_una;
	ack->window = h->sender_window;
	ack->timestamps = !!(f->flags & FLOW_F_TIMESTAMPS);
	/* At most the TSval of the engine's frames (RFC 7323, section 5). */
	ack->tsval = h->handed_tsval;
	ack->tsecr = h->tsecr;
	ack->sack = 0;
	flow_fill_route(f, ack);
	ack->ttl = h->sender_ttl;
}

#endif
