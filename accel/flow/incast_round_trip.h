/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Round trip of a flow behind an uplink, from an ACK to the data that it brought (incast.h). Flows
 * with one longer than INCAST_SCOPE_NS are not shaped.
 */
#ifndef VSNOOP_FLOW_INCAST_ROUND_TRIP_H
#define VSNOOP_FLOW_INCAST_ROUND_TRIP_H

#include "incast_time.h"

#define INCAST_STAMP_BITS 4
#define INCAST_SAMPLE_BITS 8
/* Weight of a round trip in the smoothed one: 2^-3 (RFC 6298, section 2.3). */
#define INCAST_RTT_BITS 3

/* A time in 2^INCAST_STAMP_BITS ns, as in struct incast; never 0. */
static __always_inline __u32 incast_stamp(__u64 now)
{
	return (__u32)(now >> INCAST_STAMP_BITS) | 1;
}

/* Did less than half of C come in, both in the last slot and in the present one? */
static __always_inline bool incast_is_half_idle(const struct uplink *u, __u64 now)
{
	__u64 elapsed = since_ns(now, u->slot_ns);

	return u->total < u->rate / 2 && elapsed >= INCAST_MIN_SLOT_NS &&
	       (u->bytes - u->slot_bytes) << (INCAST_TICK_BITS + 1) < elapsed * u->rate;
}

/* The other end has answered the VM's SYN or SYN-ACK after `rtt`, which lowers the base round trip
 * before data do: with one that is too long the credit is more than queue and wire take. The first
 * one sets it, if that is in scope, to INCAST_MIN_SLOT_NS at least. An eighth of the queue is added
 * to others: half of the quarter that the credit leaves free may serve as wire, because a larger
 * credit is faster. */
static __always_inline void incast_note_handshake(struct uplink *u, __u64 rtt)
{
	incast_note_drain(u);
	if (!u->base_rtt_ns)
		u->base_rtt_ns = rtt > INCAST_MIN_SLOT_NS && rtt <= INCAST_SCOPE_NS ?
					 rtt :
					 INCAST_MIN_SLOT_NS;
	rtt += u->drain_ns >> 3;
	if (rtt < u->base_rtt_ns)
		u->base_rtt_ns = rtt;
}

/* Measures a round trip from an ACK to the data that it brought: to the first echo of the VM's
 * TSval; without timestamps, to the first data beyond the edge shown before. */
static __always_inline void incast_note_rtt(struct flow *f, struct uplink *u,
					    const struct segment *s, struct seq end, __u64 now)
{
	struct incast *i = &f->incast;
	__u64 rtt;

	if (!i->asked_at)
		return;
	if (i->bits & INCAST_BY_TSVAL ? (__s32)(s->tsecr - i->asked) < 0 :
					seq_le(end, seq_of(i->asked)))
		return;
	rtt = (__u64)(incast_stamp(now) - i->asked_at) << INCAST_STAMP_BITS;
	i->asked_at = 0;
	if (rtt > NSEC_PER_SEC)
		return; /* the sender had nothing to send, or its window update was lost */
	if (!rtt)
		rtt = 1;
	if (rtt <= INCAST_SCOPE_NS + u->drain_ns) {
		if (!i->min_rtt_ns || rtt < i->min_rtt_ns)
			i->min_rtt_ns = rtt < INCAST_SCOPE_NS ? rtt : INCAST_SCOPE_NS;
		if (rtt < u->base_rtt_ns)
			u->base_rtt_ns = rtt;
		i->far = 0;
	} else if (rtt > 4 * INCAST_SCOPE_NS || incast_is_half_idle(u, now)) {
		/* A far sender, or one that computes. On a busy link a slightly longer round trip
		 * proves neither. */
		if (i->far >= INCAST_FAR - 1)
			i->min_rtt_ns = INCAST_SCOPE_NS + 1;
		else
			i->far++;
	}
	i->rtt_ns = i->rtt_ns ?
			    i->rtt_ns - (i->rtt_ns >> INCAST_RTT_BITS) + (rtt >> INCAST_RTT_BITS) :
			    rtt;
}

/* Are round trips measured by timestamps? The first one is not. */
static __always_inline bool incast_has_echoes(const struct flow *f)
{
	return f->flags & FLOW_F_TIMESTAMPS && f->incast.rtt_ns;
}

/* Can a round trip begin with this ACK? It must show the sender something that data can answer. */
static __always_inline bool incast_may_measure(const struct flow *f, const struct segment *vm)
{
	if (incast_has_echoes(f))
		return vm && vm->bits & SEG_TIMESTAMPS && (__s32)(vm->tsval - f->vm_tsval) > 0;
	return seq_gt(f->incast.edge, f->adv_edge);
}

/* Begins to measure a round trip with an ACK to the sender; called after incast_open(). `vm`: the
 * VM's segment that carries the ACK; null for data of the sender, which the host may acknowledge,
 * without a new TSval. Not with a request, nor while the window is closed: the next data then do
 * not depend on the path alone. */
static __always_inline void incast_note_shown(struct flow *f, const struct segment *vm, __u64 now)
{
	struct incast *i = &f->incast;

	if (!flow_is_shaped(f))
		return;
	if (i->waiting || (vm && vm->len)) {
		i->asked_at = 0;
		return;
	}
	if (i->asked_at || !incast_may_measure(f, vm))
		return;
	if (incast_has_echoes(f)) {
		i->asked = vm->tsval;
		i->bits |= INCAST_BY_TSVAL;
	} else {
		i->asked = f->adv_edge.v;
		i->bits &= ~INCAST_BY_TSVAL;
	}
	i->asked_at = incast_stamp(now);
}

/* Begins a sample of the flow's bandwidth. */
static __always_inline void incast_sample(struct flow *f, __u64 now)
{
	struct incast *i = &f->incast;

	i->sample_at = now >> INCAST_SAMPLE_BITS;
	i->sample_bytes = 0;
}

/* How long the sample lasts already, ns; after 18 minutes it begins at 0 again, so that of flows
 * that were idle for a multiple of that few keep their windows. */
static __always_inline __u64 incast_sampled_ns(const struct incast *i, __u64 now)
{
	__u32 elapsed = (__u32)(now >> INCAST_SAMPLE_BITS) - i->sample_at;

	return (__u64)elapsed << INCAST_SAMPLE_BITS;
}

#endif
