/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Credit (incast.h): what all flows behind an uplink may have on their way, the shares of
 * ports and flows in it, and what each of them owes.
 */
#ifndef VSNOOP_FLOW_INCAST_CREDIT_H
#define VSNOOP_FLOW_INCAST_CREDIT_H

#include "to_vm.h"

#define INCAST_TICK_BITS 20
/* Of C: what may be promised (the paper's alpha); below the second, flows with more
 * than their share give way. */
#define INCAST_ALPHA(rate) ((rate) / 10 * 9)
#define INCAST_SCARCE(rate) ((rate) / 5)
#define INCAST_SCOPE_NS (2 * NSEC_PER_MSEC)
#define INCAST_MIN_SLOT_NS 100000ull /* T at least */
#define INCAST_MAX_SLOT_NS (4 * NSEC_PER_MSEC)
/* Flows are counted over this long: a cycle of 300 flows with one segment each. */
#define INCAST_CENSUS_NS (4 * NSEC_PER_MSEC)
#define INCAST_START_MSS 10 /* RFC 6928 */
#define INCAST_SLIDES 8u /* with a share of less a window does not slide: it opens and closes */
#define INCAST_FIRST_PART 4u
#define INCAST_SMALLEST 536u /* RFC 9293, section 3.7.1 */
#define INCAST_LEAST_MSS 1460u /* until a larger segment was seen; Ethernet */
#define INCAST_OVER 3 /* round trips with d > GAMMA2 that shrink a window */
/* Debts count for one or two epochs of 2^20 ns (1.05 ms) after data came: whoever keeps silent for
 * so long with an open window has nothing to send.  What the VM has asked may think first. */
#define INCAST_EPOCH_BITS 20
#define INCAST_EPOCHS_ACTIVE 1
#define INCAST_EPOCHS_ASKED (INCAST_EPOCHS - 1)
/* Longer round trips in a row that put a flow out of scope. */
#define INCAST_FAR 8
/* A flow that sent nothing for so long starts anew. */
#define INCAST_IDLE_NS (200 * NSEC_PER_MSEC)

static __always_inline bool incast_is_on(const struct uplink *u)
{
	return u->rate;
}

/* Has incast control to be asked?  When it was turned off, until all windows are the VMs' own. */
static __always_inline bool incast_is_asked_for(const struct uplink *u)
{
	return u->rate || u->all.open > 0;
}

/* Is this flow shaped?  Until its round trip is known it is; never where an option may
 * sign the window, or where its unit is not known. */
static __always_inline bool incast_shapes(const struct flow *f, const struct uplink *u)
{
	return incast_is_on(u) && f->incast.min_rtt_ns <= INCAST_SCOPE_NS &&
	       f->flags & FLOW_F_SCALE_KNOWN && !(f->incast.bits & INCAST_BESIDE) &&
	       !flow_is_bypassed(f) && f->mode != FLOW_RESET;
}

/* Did a packet that came in by this interface (skb->skb_iif: the last one that the stack has
 * received it by; 0: the host's own) come through the uplink? */
static __always_inline bool incast_is_way(const struct uplink *u, __u32 ifindex)
{
	__u32 i;

	if (!ifindex)
		return false;
	for (i = 0; i < INCAST_WAYS && u->ways[i]; i++)
		if (u->ways[i] == ifindex)
			return true;
	return false;
}

/* The way that a segment of the sender took: each tells, so that a flow that takes another one
 * is shaped, or left alone, from then on. */
static __always_inline void incast_note_way(struct flow *f, bool is_way)
{
	if (is_way)
		f->incast.bits &= ~INCAST_BESIDE;
	else
		f->incast.bits |= INCAST_BESIDE;
}

/* What all flows together may have on their way, bytes of payload: a quarter of the queue is
 * left for what nobody gave credit for, like the first segments of new flows, and a
 * sixteenth of all for headers. */
static __always_inline __u32 incast_credit(const struct uplink *u)
{
	__u64 rtt = u->base_rtt_ns;
	__u64 bytes = u->buffer - (u->buffer >> 2) + ((u->rate * rtt) >> INCAST_TICK_BITS);

	return bytes - (bytes >> 4);
}

/* Ports that want more than the equal share of all, and this one: as of the last census or of
 * this one, whichever has more.  Those that want less get it, so that these share the credit. */
static __always_inline __u32 incast_ports(const struct uplink *u, const struct incast_port *port)
{
	bool wants = port->wanted == u->census;
	__u32 last = wants ? port->wanted_before : port->wanted;
	__u32 before = u->wanting + (last + 1 != u->census), now = u->wanting_now + !wants;
	__u32 ports = before > now ? before : now;

	return ports ? ports : 1;
}

/* This port wants more than there is, or has more than the equal share of all. */
static __always_inline void incast_want(struct uplink *u, struct incast_port *port)
{
	__u32 census = u->census, wanted = port->wanted;

	if (wanted == census || !__sync_bool_compare_and_swap(&port->wanted, wanted, census))
		return;
	port->wanted_before = wanted;
	__sync_fetch_and_add(&u->wanting_now, 1);
}

/* The equal share of one port that wants more than that. */
static __always_inline __u32 incast_port_share(const struct uplink *u,
					       const struct incast_port *port)
{
	return incast_credit(u) / incast_ports(u, port);
}

/* Does this port have more than if all that are active had the same? */
static __always_inline bool incast_has_much(const struct uplink *u, const struct incast_port *port)
{
	__u32 ports = u->active > u->active_now ? u->active : u->active_now;

	return port->own.granted > (__s64)(incast_credit(u) / (ports ? ports : 1));
}

/* The equal share of one flow in that of its port. */
static __always_inline __u32 incast_share(const struct uplink *u, const struct incast_port *port)
{
	__u32 flows = port->flows > port->counted ? port->flows : port->counted;

	return incast_port_share(u, port) / (flows ? flows : 1);
}

static __always_inline __u32 incast_mss(const struct flow *f)
{
	return f->mss > INCAST_LEAST_MSS ? f->mss : INCAST_LEAST_MSS;
}

/* The unit of the window field, bytes. */
static __always_inline __u32 incast_unit(const struct flow *f)
{
	return 1u << (f->scale & 15);
}

/* A window below which a flow never falls: two segments, for VMs acknowledge every other one;
 * one when there is no credit for two of each.  But two once: senders cut their segments to
 * half of the largest window that they have seen. */
static __always_inline __u32 incast_least(const struct flow *f, const struct uplink *u,
					  const struct incast_port *port)
{
	__u32 mss = incast_mss(f);

	return f->incast.bits & INCAST_WIDE && incast_share(u, port) < mss + (mss >> 2) ? mss :
											  2 * mss;
}

/* A window of so many bytes in whole segments: a sender waits for the rest of one that the
 * window cuts. */
static __always_inline __u32 incast_whole(const struct flow *f, const struct uplink *u,
					  const struct incast_port *port, __u32 window)
{
	__u32 mss = incast_mss(f), least = incast_least(f, u, port);

	if (window < least)
		window = least;
	return window - window % mss;
}

/* An account's epochs before this one are over: what counted until then does not any more. */
static __always_inline void incast_end_epochs(struct incast_account *a, __u32 epoch)
{
	__u32 first = a->epoch, count = epoch - first, i;
	__s64 silent = 0;

	if (!count || count >= 1u << 31 || !__sync_bool_compare_and_swap(&a->epoch, first, epoch))
		return;
	for (i = 0; i < INCAST_EPOCHS && i < count; i++)
		silent += __sync_lock_test_and_set(&a->ends[(first + i) & (INCAST_EPOCHS - 1)], 0);
	__sync_fetch_and_sub(&a->granted, silent);
	__sync_fetch_and_add(&a->silent, silent);
	/* Whatever CPUs have lost of it between them. */
	if (a->open <= 0)
		__sync_lock_test_and_set(&a->silent, 0);
}

/* A census is over: the port's flows that took part in it. */
static __always_inline void incast_end_census(const struct uplink *u, struct incast_port *port)
{
	__u32 census = port->census, now = u->census, flows;

	if (census == now || !__sync_bool_compare_and_swap(&port->census, census, now))
		return;
	flows = now - census == 1 ? port->counted : 0;
	port->flows = flows + (port->own.waiting > 0 ? port->own.waiting : 0);
	port->counted = 0;
}

/* Time goes on: slots of 2T, the first half of which measures BW_T and sets the
 * quota; the census of flows.  Whoever comes first after a slot's end does it. */
static __always_inline void incast_turn(struct uplink *u, struct incast_port *port, __u64 now)
{
	__u64 slot = u->slot_ns, t = u->t_ns > INCAST_MIN_SLOT_NS ? u->t_ns : INCAST_MIN_SLOT_NS;
	__u64 elapsed = since_ns(now, slot), bytes, weight;

	if (elapsed >= t && !u->is_granting) {
		u->is_granting = 1;
		bytes = u->bytes - u->slot_bytes;
		if (elapsed > 64 * t)
			elapsed = 64 * t;
		u->total = (bytes << INCAST_TICK_BITS) / elapsed;
		u->quota = INCAST_ALPHA(u->rate) > u->total ? INCAST_ALPHA(u->rate) - u->total : 0;
	}
	if (elapsed >= 2 * t && __sync_bool_compare_and_swap(&u->slot_ns, slot, now)) {
		u->slot_bytes = u->bytes;
		u->is_granting = 0;
		weight = u->weight;
		if (weight) {
			__u64 rtt = u->weighted_rtt / weight;

			u->t_ns = rtt < INCAST_MAX_SLOT_NS ? rtt : INCAST_MAX_SLOT_NS;
			u->weighted_rtt = u->weight = 0;
		}
	}
	incast_end_epochs(&u->all, now >> INCAST_EPOCH_BITS);
	incast_end_epochs(&port->own, u->all.epoch);
	slot = u->census_ns;
	if (since_ns(now, slot) >= INCAST_CENSUS_NS &&
	    __sync_bool_compare_and_swap(&u->census_ns, slot, now)) {
		u->active = u->active_now;
		u->active_now = 0;
		u->wanting = u->wanting_now;
		u->wanting_now = 0;
		u->census++;
	}
	incast_end_census(u, port);
}

/* Why a window may be opened. */
enum incast_why {
	INCAST_NO_REASON = 0, /* the VM repeats what it has said */
	INCAST_DATA = 1, /* data came */
	INCAST_REQUEST = 2, /* the VM sends data */
	INCAST_PROBED = 3, /* the VM answers a probe */
	INCAST_TURN = 4, /* the flow has waited, and is the next in line */
};

/* What live flows owe. */
static __always_inline __s64 incast_granted(const struct uplink *u)
{
	return u->all.granted;
}

/* Does the flow's debt count? */
static __always_inline bool incast_is_live(const struct flow *f, const struct uplink *u)
{
	return f->incast.epoch - u->all.epoch < INCAST_EPOCHS;
}

/* What its sender may still send: what it was shown, or will be when the rest of the edge is
 * shown in whole units. */
static __always_inline __s32 incast_window(const struct flow *f)
{
	__s32 shown = seq_diff(f->adv_edge, f->incast.received);
	__s32 sure = seq_diff(f->incast.edge, f->incast.received) - (__s32)(incast_unit(f) - 1);

	if (shown < sure)
		shown = sure;
	return shown > 0 ? shown : 0;
}

/* What the flow owes.  Less than a segment is as good as nothing to a sender that has more to
 * send, once it has seen larger windows. */
static __always_inline __s32 incast_owed(const struct flow *f)
{
	__s32 owed = seq_diff(f->incast.edge, f->incast.received);

	return owed < (__s32)incast_mss(f) && f->incast.bits & INCAST_WIDE ? 0 : owed;
}

/* A flow owes so much more, which counts until this epoch ends, if it does at all. */
static __always_inline void incast_charge(struct incast_account *a, __u32 epoch, bool is_live,
					  __s64 bytes)
{
	if (is_live) {
		__sync_fetch_and_add(&a->ends[epoch & (INCAST_EPOCHS - 1)], bytes);
		__sync_fetch_and_add(&a->granted, bytes);
	} else {
		__sync_fetch_and_add(&a->silent, bytes);
	}
}

static __always_inline void incast_owe(struct flow *f, struct uplink *u, struct incast_port *port,
				       __s64 bytes)
{
	bool is_live = incast_is_live(f, u);

	incast_charge(&u->all, f->incast.epoch, is_live, bytes);
	incast_charge(&port->own, f->incast.epoch, is_live, bytes);
}

/* What the flow owes counts until this epoch ends; until one that has ended: it is silent. */
static __always_inline void incast_count_until(struct flow *f, struct uplink *u,
					       struct incast_port *port, __u32 epoch)
{
	__s64 owed = incast_owed(f);

	incast_owe(f, u, port, -owed);
	f->incast.epoch = epoch;
	incast_owe(f, u, port, owed);
}

/* The flow's edges are these from now on. */
static __always_inline void incast_move(struct flow *f, struct uplink *u, struct incast_port *port,
					struct seq received, struct seq edge)
{
	struct incast *i = &f->incast;
	__s64 before = incast_owed(f);

	i->received = received;
	i->edge = edge;
	if (seq_diff(edge, received) >= (__s32)(2 * incast_mss(f)))
		i->bits |= INCAST_WIDE;
	incast_owe(f, u, port, incast_owed(f) - before);
}

/* The edge is what was shown, in whole units (window.h): rounded up where an edge would have been
 * taken back, down else. */
static __always_inline void incast_note_rounding(struct flow *f, struct uplink *u,
						 struct incast_port *port)
{
	struct incast *i = &f->incast;
	__s32 more = seq_diff(f->adv_edge, i->edge), unit = incast_unit(f);

	if (!(i->bits & INCAST_GIVEN) && more && more < unit && more > -unit)
		incast_move(f, u, port, i->received, seq_max(f->adv_edge, i->received));
}

/* The flow is active: its debt counts from now on, or counts longer. */
static __always_inline void incast_touch(struct flow *f, struct uplink *u, struct incast_port *port)
{
	__u32 epoch = u->all.epoch +
		      (f->incast.bits & INCAST_ASKED ? INCAST_EPOCHS_ASKED : INCAST_EPOCHS_ACTIVE);

	if (f->incast.epoch != epoch)
		incast_count_until(f, u, port, epoch);
}

/* Credit that is left for the flows of this port.  Where others want credit too that is no more
 * than the rest of the port's share; what others have had beyond theirs, and pay back only now,
 * may be given already as far as an eighth of the queue goes. */
static __always_inline __s64 incast_left(const struct uplink *u, const struct incast_port *port)
{
	__s64 left = (__s64)incast_credit(u) - incast_granted(u), own;

	if (incast_ports(u, port) <= 1)
		return left;
	own = (__s64)incast_port_share(u, port) - port->own.granted;
	left += u->buffer >> 3;
	return own < left ? own : left;
}

#endif
