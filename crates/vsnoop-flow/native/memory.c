// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Compiles bpf/hold.h natively, around maps that the caller describes.
 */
#include "flow.h"
#include "helpers.h"
#include "memory.h"

/* The maps are the caller's. */
#define VSNOOP_BPF_MAPS_H

static char flows, chunks, holds, pool, doorbell;
static __thread const struct native_maps *maps;

static void *bpf_map_lookup_elem(const void *map, const void *key)
{
	__u32 index;

	if (map == &flows)
		return maps->flow && !memcmp(key, maps->key, sizeof(*maps->key)) ? maps->flow : 0;
	memcpy(&index, key, sizeof(index));
	if (map == &pool)
		return maps->pool;
	if (map == &chunks)
		return index < maps->chunk_count ? &maps->chunks[index] : 0;
	return index < maps->sizes.holds ? &maps->holds[index] : 0;
}

static long bpf_ringbuf_output(const void *ring, const void *data, __u64 size, __u64 flags)
{
	(void)ring;
	(void)data;
	(void)size;
	(void)flags;
	return 0;
}

#define bpf_ktime_get_ns() (maps->now)
#define bpf_spin_lock(lock) ((void)(lock))
#define bpf_spin_unlock(lock) ((void)(lock))

#include "packet.h"

#define port (*maps->port)
#define policy (*maps->policy)
#define hold_sizes (maps->sizes)

/* Not the one of flow/. */
#include "../../../bpf/hold.h"

#undef port
#undef policy
#undef hold_sizes

int native_hold_copy(const struct native_maps *these, __u8 *bytes, __u32 len, __u32 number,
		     __u32 seq)
{
	struct __sk_buff skb = { .len = len, .bytes = bytes };

	maps = these;
	return hold_copy(&skb, number, seq, 0, len);
}

int native_hold_release(const struct native_maps *these, __u32 number, bool all)
{
	maps = these;
	return hold_release(number, all);
}

int native_hold_take(const struct native_maps *these)
{
	maps = these;
	return hold_take(these->key);
}

int native_hold_tend(const struct native_maps *these, __u32 number, __u32 why)
{
	maps = these;
	return hold_tend(number, why);
}
