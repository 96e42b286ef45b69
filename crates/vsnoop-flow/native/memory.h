/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The hold's memory (bpf/hold.h), compiled for the machine that builds: for tests,
 * never for use.
 */
#ifndef VSNOOP_NATIVE_MEMORY_H
#define VSNOOP_NATIVE_MEMORY_H

#include "types.h"

/* What the maps have: the port's memory, and one flow at most. */
struct native_maps {
	struct port_state *port;
	const struct policy *policy;
	struct hold_sizes sizes;
	__u32 chunk_count;
	struct hold_chunk *chunks;
	struct hold *holds;
	__u8 *pool;
	const struct flow_key *key;
	struct flow *flow;
	__u64 now;
};

/* As the functions of bpf/hold.h; `bytes` is the packet. */
int native_hold_copy(const struct native_maps *maps, __u8 *bytes, __u32 len, __u32 number,
		     __u32 seq);
int native_hold_release(const struct native_maps *maps, __u32 number, bool all);
int native_hold_take(const struct native_maps *maps);
int native_hold_tend(const struct native_maps *maps, __u32 number, __u32 why);

#endif
