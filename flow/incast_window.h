/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Window (incast.h): how much of the credit a flow asks for, by ICTCP's control.
 */
#ifndef VSNOOP_FLOW_INCAST_WINDOW_H
#define VSNOOP_FLOW_INCAST_WINDOW_H

#include "incast_round_trip.h"

/* What a flow may begin with: a part of what is left of half of its port's share, so that those
 * that come after it have some too.  Of flows without number each begins with the smallest
 * segment that every TCP can send. */
static __always_inline __u32 incast_first_window(const struct uplink *u,
						 const struct incast_port *port, __u32 mss)
{
	__s64 left = incast_left(u, port),
	      half = incast_port_share(u, port) / 2 - port->own.granted;
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
	i->over = i->far = 0;
}

/* A flow is shaped from now on.  What it was shown in the handshake is charged to it; of
 * one that is older, with a window of any size, nothing is: it may never use it. */
static __always_inline void incast_begin(struct flow *f, struct uplink *u, struct incast_port *port)
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
	i->bits |= INCAST_SHAPED;
	incast_restart(f, u, port);
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
	__u32 share = incast_share(u, port), least = incast_least(f, u, port),
	      credit = incast_credit(u);
	__u32 mss = incast_mss(f), step = i->window >> 4 > mss ? i->window >> 4 : mss;
	__u32 ample = incast_ample(f, u, port);
	__u64 sample, expected, missing;

	sample = ((__u64)i->sample_bytes << INCAST_TICK_BITS) / elapsed;
	i->measured =
		sample > i->measured ? sample : i->measured - (i->measured >> 2) + (sample >> 2);
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
		if (++i->over >= INCAST_OVER) {
			i->over = 0;
			i->window = i->window > step ? i->window - step : 0;
		}
	} else if (10 * missing <= expected || missing * i->window <= expected * mss) {
		i->over = 0;
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
		i->over = 0;
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
	if (!flow_is_shaped(f))
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

#endif
