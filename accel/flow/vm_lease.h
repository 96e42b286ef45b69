/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The VM's leases: until the kernel's clock ticks (a jiffy), pure ACKs of a passive flow pass
 * without the record's lock, if they acknowledge a part of what the VM was handed.
 *
 * VM_SEQ and the lease are in one word. An ACK moves VM_SEQ by compare-and-swap, which succeeds
 * only while the lease stands; each decision about a segment first ends the lease, under the lock.
 * So no CPU sets back VM_SEQ, and a decision finds it constant. The other fields that an ACK brings
 * are written after that. A CPU that is stopped between these instructions writes those of an older
 * ACK later: each is what the VM has said, no copy depends on it, and the VM's next ACK mends it.
 *
 * The last ACK of what the VM was handed, and that of the timed byte, take a full decision. When
 * the lease ends, NEXT_SEQ, the shown edge and the bounds of the hold, which is empty, follow the
 * ACKs that it has passed. The rest (next hop, traffic class, a lower TS.Recent, what the engine
 * reads in the hold) is learnt from the next ACK that takes a full decision: one in each jiffy.
 * A reader that does not end the lease takes the later one of NEXT_SEQ and VM_SEQ.
 */
#ifndef VSNOOP_FLOW_VM_LEASE_H
#define VSNOOP_FLOW_VM_LEASE_H

#include "state.h"

/* VM_SEQ and the lease: read and written together while a lease stands. */
union vm_word {
	struct {
		struct seq vm_seq;
		__u32 vm_lease;
	};
	__u64 __attribute__((may_alias)) word;
};

_Static_assert(__builtin_offsetof(struct flow, vm_seq) % sizeof(union vm_word) == 0 &&
		       __builtin_offsetof(struct flow, vm_lease) ==
			       __builtin_offsetof(struct flow, vm_seq) + sizeof(struct seq),
	       "VM_SEQ and the lease are not one word");

/* ACKs below this take no full decision: what the VM was handed is not all acknowledged, nor is the
 * timed byte. */
static __always_inline struct seq flow_vm_lease_limit(const struct flow *f)
{
	return f->sample ? seq_min(f->high_seq, f->sample_seq) : f->high_seq;
}

/* Grants a lease after a decision that passes a segment of the VM; the caller has the lock.
 * `jiffy`: one that had begun before the decision. Returns whether there is one now. */
static __always_inline bool flow_grant_vm_lease(struct flow *f, const struct hold *h, __u64 jiffy)
{
	const __u16 needed = FLOW_F_TIMESTAMPS | FLOW_F_SCALE_KNOWN;
	const __u16 allowed = FLOW_F_SACK | FLOW_F_VM_OPENED;
	union vm_word granted;

	if (f->mode != FLOW_PASSIVE || (f->flags & ~allowed) != needed ||
	    !seq_eq(f->next_seq, f->vm_seq) || !seq_eq(f->adv_edge, f->right_edge) ||
	    (h && (h->chunks || h->range_count || h->claimed)))
		return false;
	f->vm_lease_end = flow_vm_lease_limit(f);
	granted.vm_seq = f->vm_seq;
	granted.vm_lease = jiffy;
	*(volatile __u64 *)&((union vm_word *)&f->vm_seq)->word = granted.word;
	return true;
}

/* Is this ACK below the limit? Mostly without a look at what the sender's CPU writes. */
static __always_inline bool flow_is_below_limit(struct flow *f, struct seq ack)
{
	if (seq_lt(ack, f->vm_lease_end))
		return true;
	f->vm_lease_end = flow_vm_lease_limit(f);
	return seq_lt(ack, f->vm_lease_end);
}

/* Passes the VM's segment without the lock if the lease covers it, and updates the record. Returns
 * false, and has changed nothing, if the segment takes a full decision. */
static __always_inline bool flow_pass_by_vm_lease(struct flow *f, const struct segment *s,
						  __u64 jiffy, __u64 now)
{
	union vm_word *place = (void *)&f->vm_seq, known, moved;
	struct seq edge = seq_add(s->ack, (__u32)s->window << (f->scale & 15));

	known.word = *(volatile __u64 *)&place->word;
	moved = known;
	moved.vm_seq = s->ack;
	if (!known.vm_lease || known.vm_lease != (__u32)jiffy || f->mode != FLOW_PASSIVE ||
	    s->len || s->tcp_flags != TCP_ACK || s->bits != SEG_TIMESTAMPS ||
	    !seq_eq(s->seq, f->snd_nxt) || seq_le(s->ack, known.vm_seq) ||
	    !flow_is_below_limit(f, s->ack) || seq_lt(edge, f->right_edge) ||
	    since_ns(now, f->progress_ns) > FLOW_PROMPT_NS ||
	    __sync_val_compare_and_swap(&place->word, known.word, moved.word) != known.word)
		return false;
	f->right_edge = edge;
	f->progress_ns = now;
	f->heard_at = flow_stamp(now);
	if ((__s32)(s->tsval - f->vm_tsval) > 0)
		f->vm_tsval = s->tsval;
	if (ts_is_later(s->tsecr, f->ts_recent))
		f->ts_recent = s->tsecr;
	return true;
}

/* Begins a decision, under the lock: ends the VM's lease, and completes what was passed by it. */
static __always_inline void flow_end_vm_lease(struct flow *f, struct hold *h)
{
	if (!f->vm_lease)
		return;
	__sync_lock_test_and_set(&f->vm_lease, 0);
	f->next_seq = seq_max(f->next_seq, f->vm_seq);
	f->adv_edge = seq_max(f->adv_edge, f->right_edge);
	if (h) {
		/* It is empty: the next copy begins at NEXT_SEQ. */
		h->vm_seq = f->vm_seq;
		h->first = h->tail = h->reach = seq_max(h->tail, f->vm_seq);
		h->sure = seq_max(h->sure, f->vm_seq);
	}
}

#endif
