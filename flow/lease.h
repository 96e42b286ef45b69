/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Leases: until the kernel's clock ticks (a jiffy), the host passes segments that continue the
 * backlog of a passive flow, up to an edge, without a look at what the VM's CPU writes.
 *
 * flow_continues_passive() decides about the first such segment of a jiffy, and grants the lease.
 * For the rest of it nothing can change that would matter before the next look: the VM is found
 * late by up to a jiffy later, a pause or an end of passive mode by the operator takes effect a
 * jiffy later, and the VM cannot take back what it has shown. The VM's own ACK ends a lease at
 * once when it has caught up, and so does whatever takes the flow offline: both change the mode.
 */
#ifndef VSNOOP_FLOW_LEASE_H
#define VSNOOP_FLOW_LEASE_H

#include "types.h"

/* Leases end this long before the VM's right edge, so that the sender need not wait for an ACK
 * without one (flow_may_be_passive()). */
#define LEASE_DISTANCE_MSS 2

/* May the flow have a lease? With these flags a VM that has caught up does not make it active. */
static __always_inline bool flow_may_lease(const struct flow *f)
{
	return !(f->flags & (FLOW_F_ECE | FLOW_F_UNPROVEN));
}

/* Grants a lease with a segment for which flow_continues_passive() holds. Called without the lock:
 * these fields are of the sender's CPU. */
static __always_inline void flow_grant_lease(struct flow *f, const struct segment *s, __u32 jiffy)
{
	f->lease_edge = seq_add(f->right_edge, 0u - LEASE_DISTANCE_MSS * f->mss);
	f->lease_tsval = s->tsval;
	f->lease_jiffy = jiffy;
}

/* Does the flow's lease cover this segment, which continues what the VM was handed? It must bring
 * no ACK that is new, and no timestamp that the VM might refuse. */
static __always_inline bool flow_lease_covers(const struct flow *f, const struct segment *s,
					      __u32 jiffy)
{
	const __u32 expected = f->flags & FLOW_F_TIMESTAMPS ? SEG_TIMESTAMPS : 0;

	return f->lease_jiffy == jiffy && f->mode == FLOW_PASSIVE && s->len &&
	       (s->tcp_flags & ~TCP_PSH) == TCP_ACK && s->bits == expected &&
	       seq_eq(s->seq, f->high_seq) && seq_eq(s->ack, f->snd_una) &&
	       seq_le(seq_add(s->seq, s->len), f->lease_edge) &&
	       (__s32)(s->tsval - f->lease_tsval) >= 0 && s->unit_len <= f->mss;
}

#endif
