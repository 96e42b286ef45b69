/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Out-of-order ranges of a hold: copies beyond a hole, which SACK reports to the sender (RFC
 * 2018). At most four; the latest comes first.
 */
#ifndef VSNOOP_FLOW_HOLD_RANGES_H
#define VSNOOP_FLOW_HOLD_RANGES_H

#include "window.h"

#define HOLD_RANGES 4
_Static_assert(sizeof(((struct hold *)0)->ranges) == 2 * HOLD_RANGES * sizeof(struct seq) &&
		       (HOLD_RANGES & (HOLD_RANGES - 1)) == 0,
	       "hold_note_range() and hold_join_ranges() mask indices of `ranges`");

/* Were out-of-order ranges reported to the sender by SACK? */
static __always_inline bool hold_reports_ranges(const struct flow *f, const struct hold *h)
{
	return h && h->range_count && f->flags & FLOW_F_SACK;
}

/* Lie all these bytes in an out-of-order range that there is? */
static __always_inline bool hold_has_range(const struct hold *h, struct seq left, struct seq right)
{
	__u32 i;

	for (i = 0; i < HOLD_RANGES && i < h->range_count; i++)
		if (seq_le(h->ranges[2 * i], left) && seq_ge(h->ranges[2 * i + 1], right))
			return true;
	return false;
}

/* Adds an out-of-order range, merged with those that it touches; false if that makes too many. */
static __always_inline bool hold_note_range(struct hold *h, struct seq left, struct seq right)
{
	struct seq others[2 * HOLD_RANGES] = {};
	__u32 count = 0, i;

	for (i = 0; i < HOLD_RANGES && i < h->range_count; i++) {
		struct seq l = h->ranges[2 * i], r = h->ranges[2 * i + 1];

		if (seq_ge(r, left) && seq_le(l, right)) {
			left = seq_min(left, l);
			right = seq_max(right, r);
		} else {
			others[2 * (count & (HOLD_RANGES - 1))] = l;
			others[2 * (count & (HOLD_RANGES - 1)) + 1] = r;
			count++;
		}
	}
	if (count >= HOLD_RANGES)
		return false;
	h->ranges[0] = left;
	h->ranges[1] = right;
	for (i = 0; i < HOLD_RANGES - 1; i++) {
		h->ranges[2 * i + 2] = others[2 * i];
		h->ranges[2 * i + 3] = others[2 * i + 1];
	}
	h->range_count = count + 1;
	return true;
}

/* All bytes below `end` are kept. Returns the end of the ranges that adjoin, and removes them.
 * Ranges do not touch each other, so one pass finds all. */
static __always_inline struct seq hold_join_ranges(struct hold *h, struct seq end)
{
	__u32 i, count = 0;

	for (i = 0; i < HOLD_RANGES && i < h->range_count; i++)
		if (seq_le(h->ranges[2 * i], end))
			end = seq_max(end, h->ranges[2 * i + 1]);
	for (i = 0; i < HOLD_RANGES && i < h->range_count; i++) {
		if (seq_le(h->ranges[2 * i], end))
			continue;
		h->ranges[2 * (count & (HOLD_RANGES - 1))] = h->ranges[2 * i];
		h->ranges[2 * (count & (HOLD_RANGES - 1)) + 1] = h->ranges[2 * i + 1];
		count++;
	}
	h->range_count = count;
	return end;
}

#endif
