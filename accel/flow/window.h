/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The window that the sender is shown.
 *
 * The right edge is the one that the VM advertised, or what the hold has room for (hold.h) if that
 * is more; with incast control (incast.h) it is at most what the last hop can take. An edge once
 * shown is not taken back (RFC 9293, section 3.8.6) unless the VM does so itself.
 *
 * The window field counts units of the window scale. The VM's edge and the hold's are rounded down
 * to it: the sender is shown no byte that neither of them takes, and an edge that stays may be
 * shown by less than a unit lower when the ACK moves (RFC 7323, section 2.4). So is the edge of
 * incast control, unless the sender would lose a whole segment of its window, or was shown less
 * than two segments so far: then the edge is rounded up, which moves it on without credit. Rounded
 * up always, it would gain half a unit with each ACK, and a VM that is late sends many ACKs after
 * the last byte came.
 *
 * The scale is known of each flow with a hold, and of each that is shaped. A flow found in
 * mid-stream has neither (flow_mid_flow()), and its windows pass as the VM wrote them.
 */
#ifndef VSNOOP_FLOW_WINDOW_H
#define VSNOOP_FLOW_WINDOW_H

#include "types.h"

/* Does incast control bound the flow's window? */
static __always_inline bool flow_is_shaped(const struct flow *f)
{
	return INCAST_USED && f->incast.bits & INCAST_SHAPED;
}

#define INCAST_LEAST_MSS 1460u /* until a larger segment was seen; Ethernet */

static __always_inline __u32 incast_mss(const struct flow *f)
{
	return f->mss > INCAST_LEAST_MSS ? f->mss : INCAST_LEAST_MSS;
}

/* The unit of the window field, bytes. */
static __always_inline __u32 incast_unit(const struct flow *f)
{
	return 1u << (f->scale & 15);
}

/* Chunks that the port's hold can use now: its slabs, within its quota. */
static __always_inline __u32 hold_chunks_there(const struct port_state *port,
					       const struct policy *p)
{
	__u32 there = port->slabs * SLAB_CHUNKS;

	return there < p->hold_chunks ? there : p->hold_chunks;
}

/* Is only the last 1/HOLD_LAST_PART of the hold's memory left? It is for segments that are
 * acknowledged later (hold_withhold()): one of each connection. */
#define HOLD_LAST_PART 16
static __always_inline bool hold_uses_last(__u32 used, __u32 there)
{
	return used > there - there / HOLD_LAST_PART;
}

/* Limit of one flow in the hold, bytes: four times the free memory, so that each flow gets less the
 * more flows want it, and the next flow finds some (dynamic thresholds, Choudhury and Hahne 1998).
 * Computed as 4/5 of (free + the flow's own): that sum is constant while the flow fills it, so that
 * an edge once shown stays. */
#define HOLD_SHARE 4
static __always_inline __u32 hold_limit(const struct flow *f, const struct port_state *port,
					const struct policy *p)
{
	__u32 used = port->chunks_used, there = hold_chunks_there(port, p);
	__s32 own = seq_diff(f->next_seq, f->vm_seq);
	__u64 bytes = used < there ? there - used : 0;

	bytes = bytes * HOLD_CHUNK + (own > 0 ? own : 0);
	return bytes * HOLD_SHARE / (HOLD_SHARE + 1);
}

/* The right edge that VM and hold allow; never below one that was shown. A flow in HOLDING gets no
 * more than the hold has room for, even where the VM's own window is larger: all its data must be
 * kept. */
static __always_inline struct seq flow_allowed_edge(const struct flow *f, const struct hold *h,
						    const struct port_state *port,
						    const struct policy *p)
{
	struct seq edge = f->right_edge, held, room;

	if (!h)
		return edge;
	room = seq_add(f->vm_seq, hold_limit(f, port, p));
	held = seq_min(seq_add(f->next_seq, h->rcv_win), room);
	if (p->ahead < SLABS * SLAB_BYTES)
		held = seq_min(held, seq_add(edge, p->ahead));
	if (f->mode == FLOW_HOLDING)
		edge = seq_min(edge, room);
	if (p->run == PORT_ACCELERATE)
		edge = seq_max(edge, held);
	return seq_max(edge, f->adv_edge);
}

/* The right edge that the sender may be shown. */
static __always_inline struct seq flow_shown_edge(const struct flow *f, const struct hold *h,
						  const struct port_state *port,
						  const struct policy *p)
{
	struct seq edge = flow_allowed_edge(f, h, port, p);

	if (!flow_is_shaped(f))
		return edge;
	return seq_min(edge, seq_max(f->incast.edge, f->adv_edge));
}

/* Must the sender not be shown this edge, which is less than a unit below the furthest that it was
 * shown? It would lose a whole segment, or any byte of a window that was never as large as two. In
 * units above a segment it may lose all segments but one: what rounding up adds may be the next
 * one, which would be kept, too. */
static __always_inline bool incast_loses_segment(const struct flow *f, struct seq edge)
{
	__s32 shown = seq_diff(f->adv_edge, f->incast.received);
	__u32 mss = incast_mss(f), unit = incast_unit(f), kept = shown;

	if (shown < 0)
		return false;
	if (f->incast.bits & INCAST_WIDE) {
		kept -= kept % (mss > unit ? mss : unit);
		if (kept < mss && (__u32)shown >= mss)
			kept = mss;
	}
	return seq_diff(edge, f->incast.received) < (__s32)kept;
}

/* Returns the window field for an ACK of `ack`, and records the edge as shown. */
static __always_inline __u16 flow_advertise(struct flow *f, const struct hold *h, struct seq ack,
					    const struct port_state *port, const struct policy *p)
{
	struct seq edge = flow_shown_edge(f, h, port, p);
	__s32 bytes = seq_diff(edge, ack);
	__u8 scale = f->scale & 15;
	__u32 granted, field;

	if (bytes <= 0)
		return 0;
	field = (__u32)bytes >> scale;
	if (flow_is_shaped(f) && incast_loses_segment(f, seq_add(ack, field << scale)))
		field = ((__u32)bytes + (1u << scale) - 1) >> scale;
	granted = (__u32)seq_diff(seq_max(edge, f->right_edge), ack) >> scale;
	if (field > granted)
		field = granted;
	if (field > 0xffff)
		field = 0xffff;
	edge = seq_add(ack, field << scale);
	if (INCAST_USED &&
	    (f->incast.bits & INCAST_GIVEN || (__s16)((__u16)edge.v - f->incast.cut) < 0)) {
		f->incast.bits &= ~INCAST_GIVEN;
		f->incast.cut = edge.v;
	}
	f->adv_edge = seq_max(f->adv_edge, edge);
	return field;
}

#endif
