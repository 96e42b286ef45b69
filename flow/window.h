/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What window the sender is shown.
 *
 * The right edge that the VM advertised itself, or what the hold has room for
 * (hold.h) if that is more; with incast control (incast.h) no more than the last hop
 * can take.  An edge once shown is not taken back (RFC 9293, section 3.8.6) unless
 * the VM does so itself.  The VM's edge and the hold's are rounded down to the scale's
 * unit, incast control's is rounded up: below the unit it would close the window for
 * ever.
 *
 * With an unknown scale (a flow found in mid-stream) the record's scale is 0: the
 * edge is then ACK plus the raw window, which is never beyond the true one, and the
 * window field shrinks by what was acknowledged since.  Whatever the true scale,
 * raw - x units is at most raw units - x bytes: safe.  Since the sender is shown less
 * than the VM would show it, only a part of the raw window is used so (flow_shows_enough()).
 */
#ifndef VSNOOP_FLOW_WINDOW_H
#define VSNOOP_FLOW_WINDOW_H

#include "types.h"

/* With an unknown scale: this part of the VM's raw window may be acknowledged early. */
#define FLOW_UNSCALED_PART 4

/* Does incast control bound the flow's window? */
static __always_inline bool flow_is_shaped(const struct flow *f)
{
	return INCAST_USED && f->incast.bits & INCAST_SHAPED;
}

/* May the host acknowledge up to `end` without showing much less window than the VM? */
static __always_inline bool flow_shows_enough(const struct flow *f, struct seq end)
{
	return f->flags & FLOW_F_SCALE_KNOWN ||
	       (__s64)seq_diff(end, f->vm_seq) * FLOW_UNSCALED_PART <=
		       seq_diff(f->right_edge, f->vm_seq);
}

/* Chunks that the port's hold may have now: its quota, and what there is of it. */
static __always_inline __u32 hold_chunks_there(const struct port_state *port,
					       const struct policy *p)
{
	__u32 there = port->slabs * SLAB_CHUNKS;

	return there < p->hold_chunks ? there : p->hold_chunks;
}

/* Bytes that a flow may have in the hold: four times what is free beside, so that the
 * more flows want it the less each gets, and something is left for the next one (dynamic
 * thresholds, Choudhury and Hahne 1998).  Reckoned as four fifths of what is free and
 * what it has, which does not change while it fills that: an edge once shown stays. */
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

/* The edge that VM and hold allow; an edge once shown stays.  What comes for a flow that is
 * held must be kept, however much the VM itself could take. */
static __always_inline struct seq flow_allowed_edge(const struct flow *f, const struct hold *h,
						    const struct port_state *port,
						    const struct policy *p)
{
	struct seq edge = f->right_edge, held, room;

	if (!h || !(f->flags & FLOW_F_SCALE_KNOWN))
		return edge;
	room = seq_add(f->vm_seq, hold_limit(f, port, p));
	held = seq_min(seq_add(f->next_seq, h->rcv_win), room);
	if (p->ahead < SLABS * SLAB_BYTES)
		held = seq_min(held, seq_add(edge, p->ahead));
	if (f->mode == FLOW_HOLDING)
		edge = seq_min(edge, room);
	if (p->run == PORT_ACTIVE)
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

/* The window field for an ACK of `ack`, and the memory that it was shown. */
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
	/* Incast control reckons with units; but an edge that was shown stays. */
	if (!flow_is_shaped(f) || seq_lt(seq_add(ack, field << scale), f->adv_edge))
		field = ((__u32)bytes + (1u << scale) - 1) >> scale;
	granted = (__u32)seq_diff(seq_max(edge, f->right_edge), ack) >> scale;
	if (field > granted)
		field = granted;
	if (field > 0xffff)
		field = 0xffff;
	edge = seq_add(ack, field << scale);
	if (INCAST_USED && f->incast.bits & INCAST_GIVEN) {
		f->incast.bits &= ~INCAST_GIVEN;
		f->incast.cut = edge.v;
	}
	f->adv_edge = seq_max(f->adv_edge, edge);
	return field;
}

#endif
