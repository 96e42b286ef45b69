/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The far end: the host whose TCP answers behind the tap.
 *
 * It is the VM itself, a container one hop inside the VM, or a host to which the VM forwards. What
 * the VM forwards must not be acknowledged early. The engine has no congestion control, and the
 * sender would not learn of a smaller path MTU behind the VM (decision 43).
 *
 * The TTL of what the VM sends tells how far away the far end is. Hosts begin with 64, 128 or 255,
 * and each router takes one off. TTL is a claim of the VM about its own connection: a false one
 * costs that connection its early acknowledgement, or gives the VM what it would have had.
 *
 *   distance 0        the VM: early acknowledgement
 *   distance 1        FAR_NEIGHBOUR: only while the VM was seen to wait for a CPU lately
 *   distance 2, more  FAR_PATH: left to the VM for good
 */
#ifndef VSNOOP_FLOW_FAR_END_H
#define VSNOOP_FLOW_FAR_END_H

#include "types.h"

#define FAR_TTL_MOST 255
/* A VM that waited for a CPU counts as short of it for this time, ns. */
#define FAR_STARVED_NS 10000000000ull

/* Hops between the far end and the tap, from the smallest initial TTL that is usual. */
static __always_inline __u32 far_distance(__u8 ttl)
{
	if (ttl <= 64)
		return 64 - ttl;
	return (ttl <= 128 ? 128 : FAR_TTL_MOST) - ttl;
}

/* Learns from the TTL of a segment of the VM. A path is believed once and for all. */
static __always_inline void flow_note_ttl(struct flow *f, __u8 ttl)
{
	__u32 distance = far_distance(ttl);

	if (!ttl || f->ttl == ttl)
		return;
	f->ttl = ttl;
	f->far &= ~FAR_NEIGHBOUR;
	if (distance == 1)
		f->far |= FAR_NEIGHBOUR;
	else if (distance)
		f->far |= FAR_PATH;
}

/* Does the VM forward this flow? */
static __always_inline bool flow_is_forwarded(const struct flow *f)
{
	return f->far & FAR_FORWARDED;
}

/* May the host acknowledge data of this flow early? */
static __always_inline bool flow_may_accelerate(const struct flow *f, const struct policy *p)
{
	return p->run == PORT_ACCELERATE && !(f->far & FAR_LEFT);
}

/* Was the VM seen to wait for a CPU lately? */
static __always_inline bool port_is_starved(const struct port_state *port, __u64 now)
{
	return port->starved_ns && now < port->starved_ns + FAR_STARVED_NS;
}

/* Begins a decision, under the lock: is the flow left to the VM at present? Then its sender is
 * shown no more than it was. `h`: its hold, or null. The engine says whether the VM is late. */
static __always_inline void flow_judge_far_end(struct flow *f, struct hold *h,
					       const struct port_state *port, __u64 now)
{
	bool left;

	if (h && h->late)
		f->far |= h->late == LATE_LOSSES ? FAR_LOSSY : FAR_LATE;
	left = flow_is_forwarded(f) || (f->far & FAR_NEIGHBOUR && !port_is_starved(port, now));
	if (left != !!(f->far & FAR_LEFT))
		f->far ^= FAR_LEFT;
	if (left && h)
		h->rcv_win = 0;
}

/* Counts a flow that the VM is seen to forward, once. */
static __always_inline void flow_count_forwarded(struct flow *f, struct outcome *out)
{
	if (!flow_is_forwarded(f) || f->far & FAR_COUNTED)
		return;
	f->far |= FAR_COUNTED;
	out->events |= EVENT_FORWARDED;
}

/* The VM acknowledges the timed byte, which was handed over `took_ns` ago. Two segments waited for
 * an ACK, so that no receiver may have delayed it (RFC 9293, section 3.8.6.3). The engine compares
 * that with the time for which the VM waited for a CPU. */
static __always_inline void hold_note_due_ack(struct hold *h, __u64 took_ns)
{
	h->due_acks++;
	h->due_ns += took_ns;
}

/* A report of the VM that a segment of the sender is larger than the path behind it. It is believed
 * if the VM was handed that segment, and has not acknowledged it. The engine then sends smaller
 * segments, beginning with those that the VM has dropped. out->ack.seq is the SEQ with which the
 * sender believes the report: below SND.UNA it would ignore it. Returns whether it is believed. */
static __always_inline bool flow_note_too_big(struct flow *f, struct hold *h,
					      const struct too_big *r, struct outcome *out)
{
	struct seq end = seq_max(f->high_seq, f->next_seq);
	__u32 mss, headers = r->headers + (f->flags & FLOW_F_TIMESTAMPS ? 12 : 0);

	out->events = 0;
	if (f->mode == FLOW_RESET || r->mtu < r->least || r->mtu > 0xffff ||
	    seq_lt(r->seq, f->vm_seq) || seq_ge(r->seq, end))
		return false;
	mss = r->mtu - headers;
	if (mss >= f->mss)
		return false;
	f->far |= FAR_TOO_BIG;
	if (h && (!h->path_mss || mss < h->path_mss)) {
		h->path_mss = mss;
		h->too_big++;
		out->events |= EVENT_WAKE;
	}
	out->ack.seq = seq_max(r->seq, f->next_seq);
	return true;
}

#endif
