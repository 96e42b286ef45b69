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

#define seq_of(number) ((struct seq){ (number) })

/* Macros, because clang drops the alignment of a structure passed by value: in BPF each comparison
 * would load eight single bytes. */
#define seq_add(a, bytes) seq_of((a).v + (__u32)(bytes))

/* How many bytes `a` is ahead of `b`; negative when it is behind. */
#define seq_diff(a, b) ((__s32)((a).v - (b).v))

#define seq_eq(a, b) ((a).v == (b).v)
#define seq_lt(a, b) (seq_diff(a, b) < 0)
#define seq_le(a, b) (seq_diff(a, b) <= 0)
#define seq_gt(a, b) (seq_diff(a, b) > 0)
#define seq_ge(a, b) (seq_diff(a, b) >= 0)

/* The later and the earlier of two. */
#define seq_max(a, b)                                                                              \
	({                                                                                         \
		const __u32 seq_one = (a).v, seq_other = (b).v;                                    \
		seq_of((__s32)(seq_one - seq_other) < 0 ? seq_other : seq_one);                    \
	})
#define seq_min(a, b)                                                                              \
	({                                                                                         \
		const __u32 seq_one = (a).v, seq_other = (b).v;                                    \
		seq_of((__s32)(seq_one - seq_other) < 0 ? seq_one : seq_other);                    \
	})

#endif
