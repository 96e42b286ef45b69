/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TCP sequence numbers (RFC 9293, section 3.4).
 *
 * A sequence number is a type of its own, compared modulo 2^32, so that no
 * decision can use bare integer arithmetic by mistake.  Comparisons are right
 * for numbers less than 2^31 apart.
 */
#ifndef VSNOOP_FLOW_SEQ_H
#define VSNOOP_FLOW_SEQ_H

#include "base.h"

struct seq {
	__u32 v;
};

static __always_inline struct seq seq_of(__u32 v)
{
	struct seq s = { v };

	return s;
}

static __always_inline struct seq seq_add(struct seq a, __u32 bytes)
{
	return seq_of(a.v + bytes);
}

/* How many bytes `a` is ahead of `b`; negative when it is behind. */
static __always_inline __s32 seq_diff(struct seq a, struct seq b)
{
	return (__s32)(a.v - b.v);
}

static __always_inline bool seq_eq(struct seq a, struct seq b)
{
	return a.v == b.v;
}

static __always_inline bool seq_lt(struct seq a, struct seq b)
{
	return seq_diff(a, b) < 0;
}

static __always_inline bool seq_le(struct seq a, struct seq b)
{
	return seq_diff(a, b) <= 0;
}

static __always_inline bool seq_gt(struct seq a, struct seq b)
{
	return seq_diff(a, b) > 0;
}

static __always_inline bool seq_ge(struct seq a, struct seq b)
{
	return seq_diff(a, b) >= 0;
}

static __always_inline struct seq seq_max(struct seq a, struct seq b)
{
	return seq_of(seq_lt(a, b) ? b.v : a.v);
}

static __always_inline struct seq seq_min(struct seq a, struct seq b)
{
	return seq_of(seq_lt(a, b) ? a.v : b.v);
}

#endif
