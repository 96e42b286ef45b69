/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The strict window policy.
 *
 * The VM's right edge is what it advertised itself; no byte beyond it is ever
 * acknowledged early.  What the sender is shown is that edge, capped to
 * `buf_size` bytes beyond VM_SEQ (the report's section III-C), but an edge once
 * shown is not taken back (RFC 9293, section 3.8.6) unless the VM does so
 * itself.  The VM's edge is rounded down to the scale's unit, the cap up: one
 * below the unit would close the window for ever.
 *
 * With an unknown scale (a flow found in mid-stream) the record's scale is 0:
 * the edge is then ACK plus the raw window, which is never beyond the true one,
 * and the window field shrinks by what was acknowledged since.  Whatever the
 * true scale, raw - x units is at most raw units - x bytes: safe.
 */
#ifndef VSNOOP_FLOW_WINDOW_H
#define VSNOOP_FLOW_WINDOW_H

#include "types.h"

/* The right edge that the sender may be shown. */
static __always_inline struct seq flow_shown_edge(const struct flow *f, const struct policy *p)
{
	struct seq cap;

	if (!p->buf_size || !(f->flags & FLOW_F_SCALE_KNOWN))
		return f->right_edge;
	cap = seq_max(f->adv_edge, seq_add(f->vm_seq, p->buf_size));
	return seq_min(f->right_edge, cap);
}

/* The window field for an ACK of `ack`, and the memory that it was shown. */
static __always_inline __u16 flow_advertise(struct flow *f, struct seq ack, const struct policy *p)
{
	__u8 scale = f->scale & 15;
	__s32 bytes = seq_diff(flow_shown_edge(f, p), ack);
	__u32 granted, field;

	if (bytes <= 0)
		return 0;
	field = ((__u32)bytes + (1u << scale) - 1) >> scale;
	granted = (__u32)seq_diff(f->right_edge, ack) >> scale;
	if (field > granted)
		field = granted;
	if (field > 0xffff)
		field = 0xffff;
	f->adv_edge = seq_max(f->adv_edge, seq_add(ack, field << scale));
	return field;
}

#endif
