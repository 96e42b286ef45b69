/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Window (incast.h): ICTCP's control of how much credit a flow asks for.
 */
#ifndef VSNOOP_FLOW_INCAST_WINDOW_H
#define VSNOOP_FLOW_INCAST_WINDOW_H

#include "incast_round_trip.h"

/* ICTCP (Wu, Feng, Guo, Zhang: "ICTCP: Incast Congestion Control for TCP in Data Center Networks",
 * CoNEXT 2010) compares d, the part of its expected bandwidth that a flow does not get, with two
 * thresholds. Up to gamma_1 = 1 / INCAST_GAMMA1 its window grows, above gamma_2 = 1 / INCAST_GAMMA2
 * it shrinks. */
#define INCAST_GAMMA1 10
#define INCAST_GAMMA2 2
/* A window changes by its 2^-INCAST_STEP_BITS, or a segment. */
#define INCAST_STEP_BITS 4
/* How slowly the measured bandwidth falls (beta in the paper), and the base round trip rises. */
#define INCAST_BETA_BITS 2
#define INCAST_RISE_BITS 4
#define INCAST_GROWN_BITS 14 /* unit of `grown_at` */

/* Is d at most gamma_1? */
static __always_inline bool incast_fills_window(__u64 missing, __u64 expected)
{
	return INCAST_GAMMA1 * missing <= expected;
}

/* Is d above gamma_2? */
static __always_inline bool incast_wastes_window(__u64 missing, __u64 expected)
{
	return INCAST_GAMMA2 * missing > expected;
}

/* What first windows may have together, bytes: half of the port's share, so that later flows have
 * some too, and at most three quarters of its part of a volley. */
static __always_inline __u32 incast_first_room(const struct uplink *u,
					       const struct incast_port *port)
{
	__u32 half = incast_port_share(u, port) / 2, volley = incast_volley_share(u, port);

	volley -= volley / 4;
	return half < volley ? half : volley;
}

/* First window of a flow, bytes: a part of what is left for first windows. Where the VM accepts the
 * connection (`accepts`) its peer may send at once, and may be far away: silent flows count for at
 * most half, and leave two segments. Where the VM connects its request comes first, and is granted
 * more: the window is two segments, and silent flows count, since connections that are opened one
 * by one may all be used at the same time. With very many flows each begins with the smallest
 * segment that every TCP can send. */
static __always_inline __u32 incast_first_window(const struct uplink *u,
						 const struct incast_port *port, bool accepts)
{
	__u32 two = 2 * INCAST_LEAST_MSS, most = INCAST_START_MSS * INCAST_LEAST_MSS,
	      room = incast_first_room(u, port), part;
	__s64 left = incast_left(u, port, false), unused = (__s64)room - port->own.outstanding;

	if (unused < left)
		left = unused;
	if (left < (__s64)(INCAST_FIRST_PART * two))
		return INCAST_SMALLEST;
	if (!accepts)
		return left - incast_silent(u, port) < (__s64)(INCAST_FIRST_PART * two) ?
			       INCAST_SMALLEST :
			       two;
	left -= incast_kept(u, port, room / 2);
	part = left > 0 ? (__u32)left / INCAST_FIRST_PART : 0;
	if (part > most)
		return most;
	return part >= two ? part : two;
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

/* Begins to shape a flow. It is charged for the window that its handshake has shown. An older flow
 * with a larger window is not charged: it may never use it. */
static __always_inline void incast_begin(struct flow *f, struct uplink *u, struct incast_port *port)
{
	struct incast *i = &f->incast;
	__s32 shown;

	i->received = i->edge = seq_max(f->high_seq, f->next_seq);
	i->answer_at = incast_answered(i);
	i->cut = f->adv_edge.v;
	incast_note_drain(u);
	i->epoch = u->all.epoch + incast_epochs_active(u);
	shown = seq_diff(f->adv_edge, i->received);
	if (shown > 0 && shown <= (__s32)(INCAST_START_MSS * incast_mss(f))) {
		i->edge = f->adv_edge;
		if (shown >= (__s32)(2 * incast_mss(f)))
			i->bits |= INCAST_WIDE;
		incast_add_outstanding(f, u, port, incast_flow_outstanding(f));
	}
	__sync_fetch_and_add(&u->all.open, 1);
	__sync_fetch_and_add(&port->own.open, 1);
	if (!u->base_rtt_ns)
		u->base_rtt_ns = INCAST_MIN_SLOT_NS;
	i->bits |= INCAST_SHAPED;
	incast_restart(f, u, port);
}

/* Limit up to which a window grows without quota, bytes: the equal share of the credit. Where no
 * other port wants credit it is at most twice what fills the link, because a finished flow may use
 * the rest of its window at any time. */
static __always_inline __u32 incast_ample(const struct flow *f, const struct uplink *u,
					  const struct incast_port *port)
{
	__u32 share = incast_share(u, port);
	__u64 twice = (((__u64)u->rate * u->base_rtt_ns) >> (INCAST_TICK_BITS - 1)) +
		      INCAST_START_MSS * incast_mss(f);

	return share < twice || incast_ports(u, port) > 1 ? share : twice;
}

/* Sets the window at the end of a round trip. */
static __always_inline void incast_control(struct flow *f, struct uplink *u,
					   struct incast_port *port, __u64 now)
{
	struct incast *i = &f->incast;
	__u64 elapsed = incast_sampled_ns(i, now), rtt = i->rtt_ns;
	__u32 share = incast_share(u, port), least = incast_least(f, u, port), credit = u->credit;
	__u32 mss = incast_mss(f), step = i->window >> INCAST_STEP_BITS;
	__u32 ample = incast_ample(f, u, port);
	__u64 sample, expected, missing;

	if (step < mss)
		step = mss;
	sample = ((__u64)i->sample_bytes << INCAST_TICK_BITS) / elapsed;
	i->measured = sample > i->measured ? sample :
					     i->measured - (i->measured >> INCAST_BETA_BITS) +
						     (sample >> INCAST_BETA_BITS);
	expected = ((__u64)i->window << INCAST_TICK_BITS) / rtt;
	if (expected < i->measured)
		expected = i->measured;
	missing = expected - i->measured;
	/* It has filled its window while the link was less than half used: the round trip is long
	 * without a queue. (The round trip alone does not tell a queue from a long path.) Once in
	 * an epoch: all flows of a volley find that the link was idle. */
	if (incast_fills_window(missing, expected) && elapsed < 2 * rtt &&
	    i->min_rtt_ns > u->base_rtt_ns && u->risen != u->all.epoch &&
	    incast_is_half_idle(u, now)) {
		u->risen = u->all.epoch;
		u->base_rtt_ns += (u->base_rtt_ns >> INCAST_RISE_BITS) + 1;
	}
	if (i->bits & INCAST_MARKED) {
		/* The path says that its queue grows (RFC 3168). */
		i->window -= i->window >> 1;
		i->bits |= INCAST_AVOIDS;
	} else if (incast_wastes_window(missing, expected)) {
		i->bits |= INCAST_AVOIDS;
		if (++i->over >= INCAST_OVER) {
			i->over = 0;
			i->window = i->window > step ? i->window - step : 0;
		}
	} else if (incast_fills_window(missing, expected) ||
		   missing * i->window <= expected * mss) {
		i->over = 0;
		if (i->window < ample) {
			i->window += i->bits & INCAST_AVOIDS ? step : i->window;
			if (i->window > ample)
				i->window = ample;
		} else if ((__u16)((now >> INCAST_GROWN_BITS) - i->grown_at) > (2 * rtt) >>
			   INCAST_GROWN_BITS) {
			__s64 need = ((__u64)step << INCAST_TICK_BITS) / rtt;

			if (u->is_granting && u->quota >= need) {
				__sync_fetch_and_sub(&u->quota, need);
				i->window += step;
				i->grown_at = now >> INCAST_GROWN_BITS;
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

/* Is this the last segment of an answer? A sender with more to send sends full segments, and ends
 * one at the window's edge. The edge is known if the window was granted while closed and has not
 * moved since: it lies between `before` and `cut`. */
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

/* The rest of this flow's answer if it is as long as the last one, bytes; 0 where that is not
 * known. */
static __always_inline __u32 incast_answer_left(const struct flow *f)
{
	const struct incast *i = &f->incast;
	__u16 sent = incast_answered(i) - i->answer_at;

	return sent < i->answer ? (__u32)(i->answer - sent) << INCAST_ANSWER_BITS : 0;
}

/* Has a sender that seems to have finished an answer stopped within it? So it is taken to have if
 * the flow's answers are of one length, but for what rounding to their unit makes. */
static __always_inline bool incast_pauses(const struct flow *f)
{
	return !(f->incast.bits & INCAST_VARIES) &&
	       incast_answer_left(f) > 1u << INCAST_ANSWER_BITS;
}

/* More data of the sender come, and are about to count: it has not finished, or sends unasked. */
static __always_inline void incast_note_data(struct flow *f)
{
	struct incast *i = &f->incast;

	if (i->bits & INCAST_FINISHED && !incast_pauses(f))
		i->bits |= INCAST_SPEAKS;
	i->bits &= ~(INCAST_FINISHED | INCAST_ASKED);
}

/* Updates the MSS, which changes the outstanding credit (incast_flow_outstanding()). */
static __always_inline void incast_note_mss(struct flow *f, struct uplink *u,
					    struct incast_port *port, const struct segment *s)
{
	if (s->unit_len <= f->mss)
		return;
	incast_add_outstanding(f, u, port, -incast_flow_outstanding(f));
	f->mss = s->unit_len;
	incast_add_outstanding(f, u, port, incast_flow_outstanding(f));
}

/* Counts the flow in the present census: it receives data, or is asked for some. */
static __always_inline void incast_count(struct incast *i, struct uplink *u,
					 struct incast_port *port)
{
	if (i->census == (__u8)u->census)
		return;
	i->census = u->census;
	__sync_fetch_and_add(&u->flows_now, 1);
	if (!__sync_fetch_and_add(&port->counted, 1))
		__sync_fetch_and_add(&u->receiving_now, 1);
}

/* Accounts for a segment with data; called for each. */
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
	/* A forged segment counts only if the VM would accept it. */
	if (fresh <= 0 || !flow_accepts_segment(f, s) ||
	    seq_gt(end, seq_max(f->right_edge, seq_max(f->adv_edge, i->edge))))
		return;
	if (s->bits & SEG_TIMESTAMPS)
		i->ts_recent = s->tsval;
	if (s->bits & SEG_CE)
		i->bits |= INCAST_MARKED;
	incast_count(i, u, port);
	incast_note_data(f);
	if (!incast_is_live(f, u))
		incast_take_room(port, incast_flow_outstanding(f));
	incast_touch(f, u, port);
	incast_note_rounding(f, u, port);
	incast_move(f, u, port, end, seq_max(i->edge, end));
	if (incast_ends_answer(f, s, end)) {
		i->bits |= INCAST_FINISHED;
		incast_count_until(f, u, port, u->all.epoch - 1);
	}
	incast_note_rtt(f, u, s, end, now);
	if (incast_sampled_ns(i, now) > INCAST_IDLE_NS) {
		incast_restart(f, u, port);
		incast_sample(f, now);
		return;
	}
	i->sample_bytes += fresh;
	if (!i->rtt_ns || incast_sampled_ns(i, now) < i->rtt_ns)
		return;
	__sync_fetch_and_add(&u->weighted_rtt, (__u64)i->rtt_ns * i->sample_bytes);
	__sync_fetch_and_add(&u->weight, i->sample_bytes);
	incast_control(f, u, port, now);
	incast_sample(f, now);
}

#endif
