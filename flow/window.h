/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What window the sender is shown.
 *
 * Strict: the VM's right edge is what it advertised itself; no byte beyond it is ever
 * acknowledged early.  What the sender is shown is that edge, capped to
 * `buf_size` bytes beyond VM_SEQ (the report's section III-C), but an edge once
 * shown is not taken back (RFC 9293, section 3.8.6) unless the VM does so
 * itself.  The VM's edge is rounded down to the scale's unit, the cap up: one
 * below the unit would close the window for ever.
 *
 * With a hold (hold.h) the sender may be shown more: what the host can keep.  With
 * incast control (incast.h) it is shown less: what the last hop can take.
 *
 * With an unknown scale (a flow found in mid-stream) the record's scale is 0:
 * the edge is then ACK plus the raw window, which is never beyond the true one,
 * and the window field shrinks by what was acknowledged since.  Whatever the
 * true scale, raw - x units is at most raw units - x bytes: safe.
 */
#ifndef VSNOOP_FLOW_WINDOW_H
#define VSNOOP_FLOW_WINDOW_H

#include "types.h"

/* The edge that strict allows. */
static __always_inline struct seq flow_strict_edge(const struct flow *f, const struct policy *p)
{
	struct seq cap;

	if (!p->buf_size || !(f->flags & FLOW_F_SCALE_KNOWN))
		return f->right_edge;
	cap = seq_max(f->adv_edge, seq_add(f->vm_seq, p->buf_size));
	return seq_min(f->right_edge, cap);
}

/* Bytes that a flow may have in the hold: four times what is free beside, so that the
 * more flows want it the less each gets, and something is left for the next one (dynamic
 * thresholds, Choudhury and Hahne 1998).  Reckoned as four fifths of what is free and
 * what it has, which does not change while it fills that: an edge once shown stays. */
#define HOLD_SHARE 4
static __always_inline __u32 hold_limit(const struct flow *f, const struct port_state *port,
					const struct policy *p)
{
	__u32 used = port->chunks_used;
	__s32 own = seq_diff(f->next_seq, f->vm_seq);
	__u64 bytes = used < p->hold_chunks ? p->hold_chunks - used : 0;

	bytes = bytes * HOLD_CHUNK + (own > 0 ? own : 0);
	bytes = bytes * HOLD_SHARE / (HOLD_SHARE + 1);
	return bytes < p->hold_flow ? bytes : p->hold_flow;
}

/* The edge that VM and hold allow: the VM's own, or what the hold can take if that is
 * more; an edge once shown stays. */
static __always_inline struct seq flow_allowed_edge(const struct flow *f, const struct hold *h,
						  const struct port_state *port,
						  const struct policy *p)
{
	struct seq edge = flow_strict_edge(f, p);

	if (!h)
		return edge;
	if (p->run != PORT_ACTIVE)
		return seq_max(edge, f->adv_edge);
	edge = seq_max(edge, seq_min(seq_add(f->next_seq, h->rcv_win),
				     seq_add(f->vm_seq, hold_limit(f, port, p))));
	return seq_max(edge, f->adv_edge);
}

/* The right edge that the sender may be shown. */
static __always_inline struct seq flow_shown_edge(const struct flow *f, const struct hold *h,
						  const struct port_state *port,
						  const struct policy *p)
{
	struct seq edge = flow_allowed_edge(f, h, port, p);

	if (!f->incast.shaped)
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
	if (!f->incast.shaped || seq_lt(seq_add(ack, field << scale), f->adv_edge))
		field = ((__u32)bytes + (1u << scale) - 1) >> scale;
	granted = (__u32)seq_diff(seq_max(edge, f->right_edge), ack) >> scale;
	if (field > granted)
		field = granted;
	if (field > 0xffff)
		field = 0xffff;
	edge = seq_add(ack, field << scale);
	if (f->incast.bits & INCAST_GIVEN) {
		f->incast.bits &= ~INCAST_GIVEN;
		f->incast.cut = edge.v;
	}
	f->adv_edge = seq_max(f->adv_edge, edge);
	return field;
}

#endif
