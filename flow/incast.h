/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Incast control: what all senders behind an uplink may have on their way at
 * once is bounded by what the last hop can take, and shared out by receive
 * windows (ICTCP: Wu, Feng, Guo, Zhang, CoNEXT 2010).
 *
 * Credit.  The last hop takes its queue (`buffer`; a quarter is kept for what nobody gave
 * credit for) and what is on the wire (C times the round trip of an empty queue).  A flow
 * owes the bytes between what was received of it and the right edge that it was granted; an
 * edge is only moved when credit is left for it, and received bytes are paid back.  What all
 * owe is at most the credit, one grant (of whoever is next: so much goes round always),
 * what handshakes have shown, and what comes back with flows that had kept silent, whose
 * debts do not count meanwhile.
 *
 * Line.  A flow that gets nothing while its window is closed waits in line, and is served
 * before those that are open.  Among many (INCAST_SLIDES) a window is opened only when it was
 * closed.  A grant is two segments at least, for VMs acknowledge every other one; one with
 * more flows than that is credit for.  By turns with nothing that is less than one on average.
 *
 * End of an answer.  A short segment with PSH that does not end where the window does says
 * that its sender has nothing more.  What it was granted and did not use counts as silent at
 * once, and it gets a new window after those in line.  The window of one that only ever answers
 * may stay shut until the VM asks it again: all such flows together would answer the next
 * volley of requests with more than the queue takes.
 *
 * Window.  How much of the credit a flow asks for is ICTCP's: it grows while
 * the flow fills what it was given (d <= GAMMA1) and shrinks when it does not
 * (d > GAMMA2 in three round trips), with the bandwidth that is left as the quota
 * of all.  Up to the equal share of the credit a window doubles without asking
 * for quota: credit makes that safe, and few flows start as fast as plain TCP.
 * Steps are a sixteenth of the window or one MSS, so that fast links converge
 * as soon as slow ones.
 *
 * Only flows with a short round trip are shaped (SCOPE); others are not what
 * fills a last hop within a round trip.  The state of an uplink is shared by
 * all ports behind it, without a lock: what two CPUs count at the same time is
 * at worst a little off, and goes with its epoch.
 *
 * Rates are bytes per tick of 2^20 ns (1.05 ms): 131072 is 1 Gb/s.
 */
#ifndef VSNOOP_FLOW_INCAST_H
#define VSNOOP_FLOW_INCAST_H

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
#define INCAST_FAR_STEP 16 /* their count is in the upper half of incast.over */
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

	return f->incast.bits & INCAST_WIDE && incast_share(u, port) < mss + (mss >> 2) ? mss : 2 * mss;
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
static __always_inline void incast_move(struct flow *f, struct uplink *u,
					struct incast_port *port, struct seq received,
					struct seq edge)
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
static __always_inline void incast_touch(struct flow *f, struct uplink *u,
					 struct incast_port *port)
{
	__u32 epoch = u->all.epoch + (f->incast.bits & INCAST_ASKED ? INCAST_EPOCHS_ASKED :
								   INCAST_EPOCHS_ACTIVE);

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

/* What a flow may begin with: a part of what is left of half of its port's share, so that those
 * that come after it have some too.  Of flows without number each begins with the smallest
 * segment that every TCP can send. */
static __always_inline __u32 incast_first_window(const struct uplink *u,
						 const struct incast_port *port, __u32 mss)
{
	__s64 left = incast_left(u, port), half = incast_port_share(u, port) / 2 - port->own.granted;
	__u32 part;

	if (half < left)
		left = half;
	part = left > 0 ? (__u32)left / INCAST_FIRST_PART : 0;
	if (part > INCAST_START_MSS * mss)
		return INCAST_START_MSS * mss;
	return part >= 2 * mss ? part : INCAST_SMALLEST;
}

static __always_inline void incast_restart(struct flow *f, const struct uplink *u,
					   const struct incast_port *port)
{
	struct incast *i = &f->incast;

	__u32 mss = incast_mss(f), share = incast_share(u, port);

	i->window = share < INCAST_START_MSS * mss ? share : INCAST_START_MSS * mss;
	if (i->window < incast_least(f, u, port))
		i->window = incast_least(f, u, port);
	i->bits &= ~INCAST_AVOIDS;
	i->measured = 0;
	i->over = 0;
}

/* A flow is shaped from now on.  What it was shown in the handshake is charged to it; of
 * one that is older, with a window of any size, nothing is: it may never use it. */
static __always_inline void incast_begin(struct flow *f, struct uplink *u,
					 struct incast_port *port)
{
	struct incast *i = &f->incast;
	__s32 shown;

	i->received = i->edge = seq_max(f->high_seq, f->next_seq);
	i->epoch = u->all.epoch + INCAST_EPOCHS_ACTIVE;
	shown = seq_diff(f->adv_edge, i->received);
	if (shown > 0 && shown <= (__s32)(INCAST_START_MSS * incast_mss(f))) {
		i->edge = f->adv_edge;
		incast_owe(f, u, port, incast_owed(f));
	}
	__sync_fetch_and_add(&u->all.open, 1);
	__sync_fetch_and_add(&port->own.open, 1);
	if (!u->base_rtt_ns)
		u->base_rtt_ns = INCAST_MIN_SLOT_NS;
	i->shaped = 1;
	incast_restart(f, u, port);
}

#define INCAST_STAMP_BITS 4

/* A time that fits into the record; never 0. */
static __always_inline __u32 incast_stamp(__u64 now)
{
	return (__u32)(now >> INCAST_STAMP_BITS) | 1;
}

/* Less than half of C came in the last slot, and in this one. */
static __always_inline bool incast_is_half_idle(const struct uplink *u, __u64 now)
{
	__u64 elapsed = since_ns(now, u->slot_ns);

	return u->total < u->rate / 2 && elapsed >= INCAST_MIN_SLOT_NS &&
	       (u->bytes - u->slot_bytes) << (INCAST_TICK_BITS + 1) < elapsed * u->rate;
}

/* The round trip from an ACK to the data that it brought: the VM's TSval, echoed for the
 * first time; without timestamps the edge that was shown before, passed for the first time. */
static __always_inline void incast_note_rtt(struct flow *f, struct uplink *u,
					    const struct segment *s, struct seq end, __u64 now)
{
	struct incast *i = &f->incast;
	__u64 rtt;

	if (!i->asked_at)
		return;
	if (i->bits & INCAST_BY_TSVAL ? (__s32)(s->tsecr - i->asked) < 0 : seq_le(end, seq_of(i->asked)))
		return;
	rtt = (__u64)(incast_stamp(now) - i->asked_at) << INCAST_STAMP_BITS;
	i->asked_at = 0;
	if (rtt > NSEC_PER_SEC)
		return; /* the sender had nothing to send, or lost its window */
	if (!rtt)
		rtt = 1;
	if (rtt <= INCAST_SCOPE_NS + ((__u64)u->buffer << INCAST_TICK_BITS) / (u->rate ? u->rate : 1)) {
		if (!i->min_rtt_ns || rtt < i->min_rtt_ns)
			i->min_rtt_ns = rtt < INCAST_SCOPE_NS ? rtt : INCAST_SCOPE_NS;
		if (rtt < u->base_rtt_ns)
			u->base_rtt_ns = rtt;
		i->over &= INCAST_FAR_STEP - 1;
	} else if (rtt > 4 * INCAST_SCOPE_NS || incast_is_half_idle(u, now)) {
		/* Far away, or thinking?  On a busy link a little more than that says neither. */
		if (i->over >= (INCAST_FAR - 1) * INCAST_FAR_STEP)
			i->min_rtt_ns = INCAST_SCOPE_NS + 1;
		else
			i->over += INCAST_FAR_STEP;
	}
	i->rtt_ns = i->rtt_ns ? i->rtt_ns - (i->rtt_ns >> 3) + (rtt >> 3) : rtt;
}

/* An ACK is about to go to the sender, asked after incast_open().  `vm`: the VM's segment
 * that it goes with; null for an ACK of the host, which shows no new TSval.  The answer to a
 * request, and to a closed window, says nothing of the way. */
static __always_inline void incast_note_shown(struct flow *f, const struct segment *vm, __u64 now)
{
	struct incast *i = &f->incast;

	if (!i->shaped)
		return;
	if (i->waiting || (vm && vm->len)) {
		i->asked_at = 0;
		return;
	}
	if (i->asked_at)
		return;
	if (f->flags & FLOW_F_TIMESTAMPS && i->rtt_ns) {
		if (!vm || !(vm->bits & SEG_TIMESTAMPS) || (__s32)(vm->tsval - f->vm_tsval) <= 0)
			return;
		i->asked = vm->tsval;
		i->bits |= INCAST_BY_TSVAL;
	} else {
		if (seq_le(i->edge, f->adv_edge))
			return;
		i->asked = f->adv_edge.v;
		i->bits &= ~INCAST_BY_TSVAL;
	}
	i->asked_at = incast_stamp(now);
}

/* A round trip begins. */
static __always_inline void incast_sample(struct flow *f, __u64 now)
{
	struct incast *i = &f->incast;

	i->sample_ns = now;
	i->sample_bytes = 0;
}

/* Up to here a window grows without asking for quota: the equal share of the credit; but where
 * nobody else wants credit no more than fills the link twice, for what a flow leaves of it when
 * it has finished it may use at any time. */
static __always_inline __u32 incast_ample(const struct flow *f, const struct uplink *u,
					  const struct incast_port *port)
{
	__u32 share = incast_share(u, port);
	__u64 twice = (((__u64)u->rate * u->base_rtt_ns) >> (INCAST_TICK_BITS - 1)) +
		      INCAST_START_MSS * incast_mss(f);

	return share < twice || incast_ports(u, port) > 1 ? share : twice;
}

/* A round trip is over: what should the window be? */
static __always_inline void incast_control(struct flow *f, struct uplink *u,
					   struct incast_port *port, __u64 now)
{
	struct incast *i = &f->incast;
	__u64 elapsed = since_ns(now, i->sample_ns), rtt = i->rtt_ns;
	__u32 share = incast_share(u, port), least = incast_least(f, u, port), credit = incast_credit(u);
	__u32 mss = incast_mss(f), step = i->window >> 4 > mss ? i->window >> 4 : mss;
	__u32 ample = incast_ample(f, u, port);
	__u64 sample, expected, missing;

	sample = ((__u64)i->sample_bytes << INCAST_TICK_BITS) / elapsed;
	i->measured = sample > i->measured ? sample : i->measured - (i->measured >> 2) + (sample >> 2);
	expected = ((__u64)i->window << INCAST_TICK_BITS) / rtt;
	if (expected < i->measured)
		expected = i->measured;
	missing = expected - i->measured;
	/* It has filled its window, and the link was not half used meanwhile: no queue, but a
	 * long way.  (A round trip alone does not tell one from the other.) */
	if (10 * missing <= expected && elapsed < 2 * rtt && i->min_rtt_ns > u->base_rtt_ns &&
	    incast_is_half_idle(u, now))
		u->base_rtt_ns += (u->base_rtt_ns >> 4) + 1;
	if (i->bits & INCAST_MARKED) {
		/* The path says that its queue grows (RFC 3168). */
		i->window -= i->window >> 1;
		i->bits |= INCAST_AVOIDS;
	} else if (2 * missing > expected) {
		i->bits |= INCAST_AVOIDS;
		if ((++i->over & (INCAST_FAR_STEP - 1)) >= INCAST_OVER) {
			i->over &= ~(INCAST_FAR_STEP - 1);
			i->window = i->window > step ? i->window - step : 0;
		}
	} else if (10 * missing <= expected || missing * i->window <= expected * mss) {
		i->over &= ~(INCAST_FAR_STEP - 1);
		if (i->window < ample) {
			i->window += i->bits & INCAST_AVOIDS ? step : i->window;
			if (i->window > ample)
				i->window = ample;
		} else if ((__u16)((now >> 14) - i->grown_at) > (2 * rtt) >> 14) {
			__s64 need = ((__u64)step << INCAST_TICK_BITS) / rtt;

			if (u->is_granting && u->quota >= need) {
				__sync_fetch_and_sub(&u->quota, need);
				i->window += step;
				i->grown_at = now >> 14;
			} else {
				i->bits |= INCAST_AVOIDS;
			}
		}
	} else {
		i->over &= ~(INCAST_FAR_STEP - 1);
		i->bits |= INCAST_AVOIDS;
	}
	if (i->window > share && u->total > u->rate - INCAST_SCARCE(u->rate))
		i->window = i->window - step > share ? i->window - step : share;
	if (i->window > credit)
		i->window = credit;
	if (i->window < least)
		i->window = least;
	i->bits &= ~INCAST_MARKED;
}

/* Is this the last segment of an answer?  Whoever has more to send sends whole segments, and
 * one that ends where the window does.  Where that was is known of a window that was given
 * to a closed one, and not moved since: not before the edge that was shown then. */
static __always_inline bool incast_ends_answer(const struct flow *f, const struct segment *s,
					       struct seq end)
{
	const struct incast *i = &f->incast;

	if (!(s->tcp_flags & TCP_PSH) || !(i->bits & INCAST_STILL) || !s->unit_len)
		return false;
	if (s->unit_len >= f->mss && !(s->len % s->unit_len))
		return false;
	return (__s16)((__u16)end.v - i->before) > 0 && (__s16)((__u16)end.v - i->cut) < 0;
}

/* The largest segment so far: with it changes what is owed (see incast_owed()). */
static __always_inline void incast_note_mss(struct flow *f, struct uplink *u,
					    struct incast_port *port, const struct segment *s)
{
	if (s->unit_len <= f->mss)
		return;
	incast_owe(f, u, port, -incast_owed(f));
	f->mss = s->unit_len;
	incast_owe(f, u, port, incast_owed(f));
}

/* A segment with data came from the sender; asked for each. */
static __always_inline void incast_received(struct flow *f, struct uplink *u,
					    struct incast_port *port, const struct segment *s,
					    __u64 now)
{
	struct incast *i = &f->incast;
	struct seq end = seq_add(s->seq, s->len);
	__s32 fresh = seq_diff(end, i->received);

	incast_note_mss(f, u, port, s);
	if (!i->shaped)
		return;
	incast_turn(u, port, now);
	/* Whoever forges one must know as much as for the VM to take it. */
	if (fresh <= 0 || !flow_is_valid(f, s) ||
	    seq_gt(end, seq_max(f->right_edge, seq_max(f->adv_edge, i->edge))))
		return;
	if (s->bits & SEG_TIMESTAMPS)
		i->ts_recent = s->tsval;
	if (s->bits & SEG_CE)
		i->bits |= INCAST_MARKED;
	if (i->census != (__u8)u->census) {
		i->census = u->census;
		if (!__sync_fetch_and_add(&port->counted, 1))
			__sync_fetch_and_add(&u->active_now, 1);
	}
	i->bits &= ~INCAST_ASKED;
	incast_touch(f, u, port);
	incast_note_rounding(f, u, port);
	incast_move(f, u, port, end, seq_max(i->edge, end));
	if (i->bits & INCAST_FINISHED)
		i->bits |= INCAST_SPEAKS;
	i->bits &= ~INCAST_FINISHED;
	if (incast_ends_answer(f, s, end)) {
		i->bits |= INCAST_FINISHED;
		incast_count_until(f, u, port, u->all.epoch - 1);
	}
	incast_note_rtt(f, u, s, end, now);
	if (since_ns(now, i->sample_ns) > INCAST_IDLE_NS) {
		incast_restart(f, u, port);
		incast_sample(f, now);
		return;
	}
	i->sample_bytes += fresh;
	if (!i->rtt_ns || since_ns(now, i->sample_ns) < i->rtt_ns)
		return;
	__sync_fetch_and_add(&u->weighted_rtt, (__u64)i->rtt_ns * i->sample_bytes);
	__sync_fetch_and_add(&u->weight, i->sample_bytes);
	incast_control(f, u, port, now);
	incast_sample(f, now);
}

static __always_inline void incast_leave_line(struct flow *f, struct uplink *u,
					      struct incast_port *port)
{
	struct incast *i = &f->incast;

	if (i->waiting == INCAST_IN_LINE) {
		__sync_fetch_and_sub(&u->all.waiting, 1);
		__sync_fetch_and_sub(&port->own.waiting, 1);
	}
	if (i->waiting == INCAST_SHUT)
		__sync_fetch_and_sub(&port->shut, 1);
	if (i->waiting == INCAST_IDLE)
		__sync_fetch_and_sub(&port->idle, 1);
	i->waiting = INCAST_NOT_WAITING;
}

/* The flow is not shaped any more, or its record goes: what it owes is paid back. */
static __always_inline void incast_end(struct flow *f, struct uplink *u, struct incast_port *port)
{
	struct incast *i = &f->incast;

	incast_owe(f, u, port, -incast_owed(f));
	i->edge = i->received;
	incast_leave_line(f, u, port);
	if (i->shaped) {
		__sync_fetch_and_sub(&u->all.open, 1);
		__sync_fetch_and_sub(&port->own.open, 1);
	}
	i->shaped = 0;
}

/* `vm`: the VM's segment; null: one of the sender, with data. */
static __always_inline enum incast_why incast_reason(const struct flow *f, const struct segment *vm)
{
	if (!vm)
		return INCAST_DATA;
	if (vm->len)
		return INCAST_REQUEST;
	return f->flags & FLOW_F_REPLY_DUE ? INCAST_PROBED : INCAST_NO_REASON;
}

static __always_inline void incast_give(struct flow *f, struct uplink *u,
					struct incast_port *port, __u32 window)
{
	struct incast *i = &f->incast;

	i->bits &= ~INCAST_STILL;
	i->bits |= INCAST_GIVEN;
	if (incast_window(f) < (__s32)incast_mss(f))
		i->bits |= INCAST_STILL;
	i->before = f->adv_edge.v;
	incast_move(f, u, port, i->received, seq_add(i->received, window + incast_unit(f) - 1));
	incast_leave_line(f, u, port);
}

/* May a flow that has finished have a window for what comes next?  When nobody is in line; one that
 * only answers out of as much credit again as those have that are not silent. */
static __always_inline bool incast_can_reopen(const struct uplink *u,
					      const struct incast_port *port, bool answers)
{
	return port->own.waiting <= 0 && incast_left(u, port) > 0 &&
	       (!answers || u->all.silent < (__s64)incast_credit(u));
}

/* The sender has finished. */
static __always_inline enum incast_waiting incast_open_idle(struct flow *f, struct uplink *u,
							    struct incast_port *port)
{
	struct incast *i = &f->incast;
	bool answers = i->bits & INCAST_ANSWERS && !(i->bits & INCAST_SPEAKS);

	if (incast_window(f) >= (__s32)incast_mss(f)) {
		incast_leave_line(f, u, port);
	} else if (incast_can_reopen(u, port, answers)) {
		incast_give(f, u, port, incast_least(f, u, port));
	} else if (!i->waiting) {
		i->waiting = answers ? INCAST_SHUT : INCAST_IDLE;
		if (answers)
			__sync_fetch_and_add(&port->shut, 1);
		else
			__sync_fetch_and_add(&port->idle, 1);
		return i->waiting;
	}
	return INCAST_NOT_WAITING;
}

/* Credit that is left when what silent flows owe counts too: they may speak next.  But those that
 * do speak may have half of it.  Where several ports want credit each minds its own. */
static __always_inline __s64 incast_spare(const struct uplink *u, const struct incast_port *port)
{
	__s64 left = incast_left(u, port), half = incast_port_share(u, port) / 2;
	__s64 silent = incast_ports(u, port) > 1 ? port->own.silent : u->all.silent;

	if (silent > half)
		return left - half;
	return silent > 0 ? left - silent : left;
}

/* An ACK is about to go to the sender: may it open the window further?  What the flow waits for
 * from now on, if it is something else than before: it stands in line, or is shut. */
static __always_inline enum incast_waiting incast_open(struct flow *f, struct uplink *u,
						       struct incast_port *port,
						       enum incast_why why, __u64 now)
{
	struct incast *i = &f->incast;
	__u32 few = incast_least(f, u, port), want = incast_whole(f, u, port, i->window);
	bool asked = why == INCAST_REQUEST || why == INCAST_PROBED;
	__s32 open, mss = incast_mss(f);
	__s64 left, spare;

	if (!incast_shapes(f, u)) {
		if (i->shaped)
			incast_end(f, u, port);
		return INCAST_NOT_WAITING;
	}
	incast_turn(u, port, now);
	if (!i->shaped)
		incast_begin(f, u, port);
	if (why == INCAST_NO_REASON)
		return INCAST_NOT_WAITING;
	incast_note_rounding(f, u, port);
	if (why == INCAST_REQUEST && i->bits & INCAST_FINISHED)
		i->bits |= INCAST_ANSWERS;
	if (why == INCAST_PROBED && i->bits & INCAST_FINISHED)
		i->bits |= INCAST_SPEAKS;
	if (asked)
		i->bits &= ~INCAST_FINISHED;
	if (why == INCAST_REQUEST)
		i->bits |= INCAST_ASKED;
	if (why == INCAST_DATA && i->bits & INCAST_FINISHED)
		return incast_open_idle(f, u, port);
	incast_touch(f, u, port);
	open = incast_window(f);
	/* Rounding may have opened it. */
	if (open >= mss)
		incast_leave_line(f, u, port);
	if ((__s32)want <= open)
		return INCAST_NOT_WAITING;
	/* Its sender has waited for a timeout: whatever kept its window shut was wrong. */
	if (why == INCAST_PROBED && (__s32)few > open) {
		incast_give(f, u, port, few);
		return INCAST_NOT_WAITING;
	}
	/* Among many a window is closed before it is opened again: what its sender does with it can
	 * be told only then, and it sends a train.  Data do not open one that is closed: their
	 * ACK may be the VM's, and late. */
	if (open >= mss && incast_share(u, port) < INCAST_SLIDES * incast_mss(f))
		return INCAST_NOT_WAITING;
	if (why == INCAST_TURN || (port->own.waiting <= 0 && (asked || open >= mss))) {
		spare = incast_spare(u, port);
		left = incast_left(u, port);
		if ((__s64)want - open > left || incast_has_much(u, port))
			incast_want(u, port);
		if ((__s64)want - open > spare)
			want = incast_whole(f, u, port, open + spare > 0 ? open + spare : 0);
		/* Requests come in volleys, whose answers come at once. */
		if (asked && (__s64)want - open > spare)
			left -= incast_port_share(u, port) / 4 * 3;
		/* The next in line gets its segments when there is any credit at all. */
		if ((__s32)want > open &&
		    (left >= (__s64)want - open || (why == INCAST_TURN && left > 0))) {
			incast_give(f, u, port, want);
			return INCAST_NOT_WAITING;
		}
	}
	if (open >= mss || i->waiting == INCAST_IN_LINE)
		return INCAST_NOT_WAITING;
	/* What a new flow begins with is enough for an answer to show that there is one. */
	if (asked && open >= (__s32)(INCAST_SMALLEST / 2) && !(i->bits & INCAST_WIDE))
		return INCAST_NOT_WAITING;
	incast_leave_line(f, u, port);
	i->waiting = INCAST_IN_LINE;
	__sync_fetch_and_add(&u->all.waiting, 1);
	__sync_fetch_and_add(&port->own.waiting, 1);
	incast_want(u, port);
	return INCAST_IN_LINE;
}

static __always_inline bool incast_somebody_waits(const struct incast_port *port)
{
	return port->own.waiting > 0 || port->shut > 0 || port->idle > 0;
}

/* Whose turn of this port is it, if there is credit for anybody?  Asked before one is taken out of
 * the line, or who asks at a bad moment, and goes to the end, might do so for ever.  Of an uplink
 * that is turned off everybody is let go. */
static __always_inline enum incast_waiting incast_next(struct uplink *u, struct incast_port *port,
						       __u64 now)
{
	if (!incast_is_on(u))
		return port->own.waiting > 0	   ? INCAST_IN_LINE :
		       incast_somebody_waits(port) ? INCAST_SHUT :
						     INCAST_NOT_WAITING;
	incast_turn(u, port, now);
	if (port->own.waiting > 0) {
		incast_want(u, port);
		return incast_left(u, port) > 0 ? INCAST_IN_LINE : INCAST_NOT_WAITING;
	}
	if ((port->shut > 0 && incast_can_reopen(u, port, true)) ||
	    (port->idle > 0 && incast_can_reopen(u, port, false)))
		return INCAST_SHUT;
	return INCAST_NOT_WAITING;
}

/* The ACK that shows the sender its window.  It was closed: what lies beyond can only be an answer
 * to this. */
static __always_inline void incast_show(struct flow *f, const struct hold *h,
					const struct port_state *port, const struct policy *p,
					__u64 now, struct ack_fields *ack)
{
	struct incast *i = &f->incast;

	i->asked = f->adv_edge.v;
	i->asked_at = incast_stamp(now);
	i->bits &= ~INCAST_BY_TSVAL;
	ack->seq = f->snd_nxt;
	ack->ack = seq_max(f->vm_seq, f->next_seq);
	ack->window = flow_advertise(f, h, ack->ack, port, p);
	ack->timestamps = !!(f->flags & FLOW_F_TIMESTAMPS);
	ack->tsval = f->vm_tsval;
	ack->tsecr = i->ts_recent;
	ack->sack = 0;
	flow_fill_way(f, ack);
}

/* The turn of a flow that has waited in this way: 1: its sender is to be sent `ack`; 0: it is not its
 * turn yet; -1: it does not wait so any more.  `h`: its hold, or null. */
static __always_inline int incast_serve(struct flow *f, const struct hold *h, struct uplink *u,
					enum incast_waiting waits, struct port_state *state,
					const struct policy *p, __u64 now, struct ack_fields *ack)
{
	struct incast_port *port = &state->incast;
	struct incast *i = &f->incast;

	if (!i->waiting || (i->waiting == INCAST_IN_LINE) != (waits == INCAST_IN_LINE))
		return -1;
	if (waits != INCAST_IN_LINE && incast_shapes(f, u)) {
		incast_turn(u, port, now);
		incast_open_idle(f, u, port);
	} else {
		incast_open(f, u, port, INCAST_TURN, now);
	}
	if (i->waiting)
		return 0;
	if (flow_is_bypassed(f) || f->mode == FLOW_RESET)
		return -1;
	port->turns++;
	incast_show(f, h, state, p, now, ack);
	return 1;
}

#endif
