/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Credit (incast.h): the credit of an uplink, the shares of ports and flows in it, and the
 * outstanding credit of each.
 */
#ifndef VSNOOP_FLOW_INCAST_CREDIT_H
#define VSNOOP_FLOW_INCAST_CREDIT_H

#include "to_vm.h"

#define INCAST_TICK_BITS 20
/* Rates as parts of C. INCAST_ALPHA: what windows may add up to (the paper's alpha). INCAST_SCARCE:
 * with less than this left, flows beyond their share give way. */
#define INCAST_ALPHA(rate) ((rate) / 10 * 9)
#define INCAST_SCARCE(rate) ((rate) / 5)
#define INCAST_SCOPE_NS (2 * NSEC_PER_MSEC)
#define INCAST_MIN_SLOT_NS 100000ull /* T at least */
#define INCAST_LONGEST_SLOTS 64 /* T: BW_T is measured over no longer time */
/* Longest slot, and length of a census of flows: four times as long as the queue of the last hop
 * takes to empty, a cycle of 300 flows with one segment each through 128 KB; within bounds, so that
 * short connections of long ago do not count. */
#define INCAST_CENSUS_QUEUES 4
#define INCAST_LEAST_CENSUS_NS (4 * NSEC_PER_MSEC)
#define INCAST_LONGEST_CENSUS_NS (64 * NSEC_PER_MSEC)
#define INCAST_START_MSS 10 /* RFC 6928 */
#define INCAST_MANY_MSS 4u /* MSS; flows are many with a smaller share of the queue */
#define INCAST_SLIDES 8u /* MSS; with a smaller share a window opens and closes only */
#define INCAST_FIRST_PART 4u
#define INCAST_SMALLEST 536u /* RFC 9293, section 3.7.1 */
/* Windows in larger units are not shaped. Rounding up (window.h) takes no credit: each flow would
 * have a unit open all the time, and many flows more than the credit of all ports. */
#define INCAST_SCALE 11 /* two KB, less than two segments */
#define INCAST_OVER 3 /* round trips with d above gamma_2 that shrink a window */
/* After data came, outstanding credit counts for one to two epochs of 2^20 ns (1.05 ms), and as
 * long as data may stand in the queue of the last hop, INCAST_EPOCHS_ASKED epochs at most: a sender
 * of which nothing comes for this time with an open window has nothing to send. After a request of
 * the VM it counts for the longest time: the sender may compute its answer. */
#define INCAST_EPOCH_BITS 20
#define INCAST_EPOCHS_ASKED (INCAST_EPOCHS - 1)
#define INCAST_ANSWER_BITS 8
/* After this number of long round trips in a row a flow is out of scope. */
#define INCAST_FAR 8
/* A flow that sent nothing for this time starts again. */
#define INCAST_IDLE_NS (200 * NSEC_PER_MSEC)

static __always_inline bool incast_is_on(const struct uplink *u)
{
	return u->rate;
}

/* Must the hooks call incast control? After it was turned off they must until no flow is shaped. */
static __always_inline bool incast_is_asked_for(const struct uplink *u)
{
	return u->rate || u->all.open > 0;
}

/* May this flow be shaped? A flow with an unknown round trip may. Not where an option may
 * authenticate the window (bypassed flows), nor where the window scale is unknown, or large. */
static __always_inline bool incast_shapes(const struct flow *f, const struct uplink *u)
{
	return incast_is_on(u) && f->incast.min_rtt_ns <= INCAST_SCOPE_NS &&
	       f->flags & FLOW_F_SCALE_KNOWN && f->scale <= INCAST_SCALE &&
	       !(f->incast.bits & INCAST_BESIDE) && !flow_is_bypassed(f) && f->mode != FLOW_RESET;
}

/* Did a packet with this skb->skb_iif come through the uplink? skb_iif is the last interface by
 * which the stack received it; 0: the host sent it. */
static __always_inline bool incast_is_ingress(const struct uplink *u, __u32 ifindex)
{
	__u32 i;

	if (!ifindex)
		return false;
	for (i = 0; i < INCAST_INGRESS && u->ingress[i]; i++)
		if (u->ingress[i] == ifindex)
			return true;
	return false;
}

/* Records whether the latest segment of the sender came through the uplink: only then is the flow
 * shaped. */
static __always_inline void incast_note_ingress(struct flow *f, bool by_uplink)
{
	if (by_uplink)
		f->incast.bits &= ~INCAST_BESIDE;
	else
		f->incast.bits |= INCAST_BESIDE;
}

/* The part of the credit that flows may use at the same time, as the answers to a volley of
 * requests do: that of the queue, bytes of payload. A quarter of the queue is left for bytes
 * without credit, such as the first segments of new flows, and a sixteenth of the rest for
 * headers. */
static __always_inline __u32 incast_volley(const struct uplink *u)
{
	__u32 bytes = u->buffer - (u->buffer >> 2);

	return bytes - (bytes >> 4);
}

/* The part of the credit that is on the wire, bytes of payload. */
static __always_inline __u32 incast_wire(const struct uplink *u)
{
	__u64 wire = (u->rate * (__u64)u->base_rtt_ns) >> INCAST_TICK_BITS;

	wire -= wire >> 4;
	/* Less of the stack, whose frames are full. */
	opaque(wire);
	return wire;
}

/* By how much the wire takes more than the queue, where flows are many, bytes: where the queue has
 * less than INCAST_MANY_MSS segments for each of those that receive data, or are asked for some. */
static __always_inline __u32 incast_beyond(const struct uplink *u)
{
	__s64 volley = incast_volley(u), flows = greater(u->flows, u->flows_now),
	      many = volley / (INCAST_MANY_MSS * INCAST_LEAST_MSS), are_many = (many - flows) >> 63;

	opaque(are_many);
	return greater(incast_wire(u) - volley, 0) & are_many;
}

/* The credit: bytes of payload that all flows together may have in flight, in the queue and on the
 * wire. What many flows leave open when they finish comes at once with the next volley. So what the
 * wire takes beyond the queue is left for trains, of which all is used (incast_train_of()). */
static __always_inline __u32 incast_credit(const struct uplink *u)
{
	return incast_volley(u) + incast_wire(u) - incast_beyond(u);
}

/* Number of ports that want more than the equal share, this one included: as of the last census or
 * the present one, whichever is more. Ports that want less get what they want; these ports share
 * the credit. */
static __always_inline __u32 incast_ports(const struct uplink *u, const struct incast_port *port)
{
	bool wants = port->wanted == u->census;
	__u32 last = wants ? port->wanted_before : port->wanted;
	__u32 before = u->wanting + (last + 1 != u->census), now = u->wanting_now + !wants;

	__u32 ports = before > now ? before : now;

	return ports ? ports : 1;
}

/* Notes that this port wants more than is left, or has more than its equal share. */
static __always_inline void incast_want(struct uplink *u, struct incast_port *port)
{
	__u32 census = u->census, wanted = port->wanted;

	if (wanted == census || !__sync_bool_compare_and_swap(&port->wanted, wanted, census))
		return;
	port->wanted_before = wanted;
	__sync_fetch_and_add(&u->wanting_now, 1);
}

/* Share of one of the ports that want more than the equal share, bytes. */
static __always_inline __u32 incast_port_share(const struct uplink *u,
					       const struct incast_port *port)
{
	return u->credit / incast_ports(u, port);
}

/* The same of incast_volley(). */
static __always_inline __u32 incast_volley_share(const struct uplink *u,
						 const struct incast_port *port)
{
	return incast_volley(u) / incast_ports(u, port);
}

/* Does this port have more outstanding than an equal share among all ports that receive data? */
static __always_inline bool incast_has_much(const struct uplink *u, const struct incast_port *port)
{
	__u32 ports = greater(greater(u->receiving, u->receiving_now), 1);

	return port->own.outstanding > (__s64)(u->credit / ports);
}

/* Equal share of one flow in its port's share, bytes. */
static __always_inline __u32 incast_share(const struct uplink *u, const struct incast_port *port)
{
	__u32 flows = greater(greater(port->flows, port->counted), 1);

	return incast_port_share(u, port) / flows;
}

/* The end of what was received, in the unit of an answer's length, in which 16 MB are 0 again. */
static __always_inline __u16 incast_answered(const struct incast *i)
{
	return i->received.v >> INCAST_ANSWER_BITS;
}

/* Minimum window, bytes: two segments, because VMs acknowledge every other one; one where the
 * flow's share is below 1.25 segments. But each flow gets two once (INCAST_WIDE): senders limit
 * their segments to half of the largest window that they have seen. */
static __always_inline __u32 incast_least(const struct flow *f, const struct uplink *u,
					  const struct incast_port *port)
{
	__u32 mss = incast_mss(f);

	return f->incast.bits & INCAST_WIDE && incast_share(u, port) < mss + (mss >> 2) ? mss :
											  2 * mss;
}

/* Window of a flow whose sender has finished, bytes. All such flows may send at the same time:
 * where a volley has less than two segments for each shaped flow, it is one segment. */
static __always_inline __u32 incast_finished_window(const struct flow *f, const struct uplink *u,
						    const struct incast_port *port)
{
	__u32 mss = incast_mss(f);
	__s64 two_of_each = (__s64)u->all.open * (2 * mss);

	return f->incast.bits & INCAST_WIDE && two_of_each > incast_volley(u) ?
		       mss :
		       incast_least(f, u, port);
}

/* Rounds a window down to whole segments, because a sender waits where the window ends within a
 * segment; at least incast_least(). */
static __always_inline __u32 incast_whole(const struct flow *f, const struct uplink *u,
					  const struct incast_port *port, __u32 window)
{
	__u32 mss = incast_mss(f), least = incast_least(f, u, port);

	window = greater(window, least);
	return window - window % mss;
}

/* Reason to open a window. */
enum incast_why {
	INCAST_NO_REASON = 0, /* an ACK of the VM with no such reason */
	INCAST_DATA = 1, /* the sender sent data */
	INCAST_REQUEST = 2, /* the VM sends data: a request */
	INCAST_PROBED = 3, /* the VM answers a probe */
	INCAST_DEQUEUED = 4, /* the flow is at the head of the grant queue */
};

/* Outstanding credit of live flows. */
static __always_inline __s64 incast_outstanding(const struct uplink *u)
{
	return u->all.outstanding;
}

/* Does the flow's outstanding credit count (incast_touch())? */
static __always_inline bool incast_is_live(const struct flow *f, const struct uplink *u)
{
	return f->incast.epoch - u->all.epoch < INCAST_EPOCHS;
}

/* Bytes by which the sender may have been shown less than the furthest edge, by rounding. */
static __always_inline __u32 incast_rounded_off(const struct flow *f)
{
	__u16 bytes = (__u16)f->adv_edge.v - f->incast.cut;

	return bytes < incast_unit(f) ? bytes : 0;
}

/* Bytes that the sender may still send: up to the edge that it was shown, or will be shown once the
 * granted edge is rounded to whole units. */
static __always_inline __s32 incast_window(const struct flow *f)
{
	__s32 shown = seq_diff(f->adv_edge, f->incast.received) - (__s32)incast_rounded_off(f);
	__s32 sure = seq_diff(f->incast.edge, f->incast.received) - (__s32)(incast_unit(f) - 1);

	return greater(greater(shown, sure), 0);
}

/* The flow's outstanding credit, bytes. Less than a segment counts as none once the sender has seen
 * larger windows: if it has more to send, it does not send less than a segment. */
static __always_inline __s32 incast_flow_outstanding(const struct flow *f)
{
	__s32 outstanding = seq_diff(f->incast.edge, f->incast.received);

	return outstanding < (__s32)incast_mss(f) && f->incast.bits & INCAST_WIDE ? 0 : outstanding;
}

/* Epochs for which outstanding credit counts after data came. */
static __always_inline __u32 incast_epochs_active(const struct uplink *u)
{
	__u32 epochs = 1 + (u->drain_ns >> INCAST_EPOCH_BITS);

	return epochs < INCAST_EPOCHS_ASKED ? epochs : INCAST_EPOCHS_ASKED;
}

/* Adds to an account's outstanding credit, which counts until `epoch` ends; of a flow that is not
 * live, to its silent credit. */
static __always_inline void incast_charge(struct incast_account *a, __u32 epoch, bool is_live,
					  __s64 bytes)
{
	if (is_live) {
		__sync_fetch_and_add(&a->ends[epoch & (INCAST_EPOCHS - 1)], bytes);
		__sync_fetch_and_add(&a->outstanding, bytes);
	} else {
		__sync_fetch_and_add(&a->silent, bytes);
	}
}

static __always_inline void incast_add_outstanding(struct flow *f, struct uplink *u,
						   struct incast_port *port, __s64 bytes)
{
	bool is_live = incast_is_live(f, u);

	incast_charge(&u->all, f->incast.epoch, is_live, bytes);
	incast_charge(&port->own, f->incast.epoch, is_live, bytes);
}

/* Lets the flow's outstanding credit count until `epoch` ends; with an epoch that has ended the
 * flow is silent. */
static __always_inline void incast_count_until(struct flow *f, struct uplink *u,
					       struct incast_port *port, __u32 epoch)
{
	__s64 outstanding = incast_flow_outstanding(f);

	incast_add_outstanding(f, u, port, -outstanding);
	f->incast.epoch = epoch;
	incast_add_outstanding(f, u, port, outstanding);
}

/* Sets `received` and the granted edge of a flow, and updates the accounts. */
static __always_inline void incast_move(struct flow *f, struct uplink *u, struct incast_port *port,
					struct seq received, struct seq edge)
{
	struct incast *i = &f->incast;
	__s64 before = incast_flow_outstanding(f);

	i->received = received;
	i->edge = edge;
	if (seq_diff(edge, received) >= (__s32)(2 * incast_mss(f)))
		i->bits |= INCAST_WIDE;
	incast_add_outstanding(f, u, port, incast_flow_outstanding(f) - before);
}

/* Sets the granted edge to the furthest edge that was shown in whole units (window.h), which may be
 * above or below what was granted. */
static __always_inline void incast_note_rounding(struct flow *f, struct uplink *u,
						 struct incast_port *port)
{
	struct incast *i = &f->incast;
	__s32 more = seq_diff(f->adv_edge, i->edge), unit = incast_unit(f);

	if (!(i->bits & INCAST_GIVEN) && more && more < unit && more > -unit)
		incast_move(f, u, port, i->received, seq_max(f->adv_edge, i->received));
}

/* The flow is active: extends the time for which its outstanding credit counts. */
static __always_inline void incast_touch(struct flow *f, struct uplink *u, struct incast_port *port)
{
	__u32 epoch = u->all.epoch + (f->incast.bits & INCAST_ASKED ? INCAST_EPOCHS_ASKED :
								      incast_epochs_active(u));

	if (f->incast.epoch != epoch)
		incast_count_until(f, u, port, epoch);
}

/* Outstanding credit of silent flows; where several ports want credit, of this port's own. */
static __always_inline __s64 incast_silent(const struct uplink *u, const struct incast_port *port)
{
	return greater(incast_ports(u, port) > 1 ? port->own.silent : u->all.silent, 0);
}

/* What is kept for silent flows, since they may send next: their outstanding credit, bytes, but no
 * more than `most`. */
static __always_inline __s64 incast_kept(const struct uplink *u, const struct incast_port *port,
					 __u32 most)
{
	return lesser(incast_silent(u, port), most);
}

/* Credit left for the flows of this port, bytes. `is_train`: for a train. Where other ports want
 * credit too, it is at most the rest of this port's share. Others may still have more than their
 * share, and return it only now; up to an eighth of the queue is granted ahead of that. */
static __always_inline __s64 incast_left(const struct uplink *u, const struct incast_port *port,
					 bool is_train)
{
	__s64 left = (__s64)u->credit - incast_outstanding(u), own;

	if (is_train)
		left += u->beyond;
	if (incast_ports(u, port) <= 1)
		return left;
	own = (__s64)incast_port_share(u, port) - port->own.outstanding;
	return lesser(own, left + (u->buffer >> 3));
}

#endif
