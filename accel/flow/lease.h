/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Leases: until the kernel's clock ticks (a jiffy), the host passes segments that continue the
 * backlog of a passive flow, up to an edge, without a look at what the VM's CPU writes.
 *
 * The first such segment, of which flow_continues_passive() holds, brings the lease. For the rest
 * of the jiffy nothing can change that would matter before the next look: the hooks find the VM
 * late by up to a jiffy later, and obey the operator, who pauses the port or forbids passive mode,
 * as much later. If the VM takes back a window that it has shown, it drops what a lease passes
 * beyond it; the sender repeats that, and a repeated segment takes the flow offline.
 * The VM's own ACK ends a lease at once when it has caught up, and so does whatever takes the flow
 * offline: both change the mode, and a flow that becomes passive again has no lease.
 */
#ifndef VSNOOP_FLOW_LEASE_H
#define VSNOOP_FLOW_LEASE_H

#include "types.h"

/* Leases end this long before the VM's right edge, so that the sender need not wait for an ACK
 * without one (flow_may_be_passive()). */
#define LEASE_DISTANCE_MSS 2

/* May the flow have a lease? With the other flags a VM that has caught up does not make it
 * active. */
static __always_inline bool flow_may_lease(const struct flow *f)
{
	const __u16 relevant = FLOW_F_TIMESTAMPS | FLOW_F_ECE | FLOW_F_UNPROVEN;

	return (f->flags & relevant) == FLOW_F_TIMESTAMPS;
}

/* Grants a lease with a segment for which flow_continues_passive() holds. Called without the lock:
 * these fields are of the sender's CPU. */
static __always_inline void flow_grant_lease(struct flow *f, const struct segment *s, __u64 jiffy)
{
	f->lease_edge = seq_add(f->right_edge, 0u - LEASE_DISTANCE_MSS * f->mss);
	f->lease_tsval = s->tsval;
	f->lease_jiffy = jiffy;
}

/* Does the flow's lease cover this segment, which continues what the VM was handed? It must bring
 * no ACK that is new, and no timestamp that the VM might refuse. */
static __always_inline bool flow_lease_covers(const struct flow *f, const struct segment *s,
					      __u64 jiffy)
{
	return f->lease_jiffy == (__u32)jiffy && f->mode == FLOW_PASSIVE && s->len &&
	       (s->tcp_flags & ~TCP_PSH) == TCP_ACK && s->bits == SEG_TIMESTAMPS &&
	       seq_eq(s->seq, f->high_seq) && seq_eq(s->ack, f->snd_una) &&
	       seq_le(seq_add(s->seq, s->len), f->lease_edge) &&
	       (__s32)(s->tsval - f->lease_tsval) >= 0 && s->unit_len <= f->mss;
}

#endif
