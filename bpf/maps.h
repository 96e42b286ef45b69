/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * State of one port.  The programs are loaded once per port, each time with
 * maps of their own, so that no VM can fill another one's tables and a record
 * needs no port in its key.  Sizes are set by the loader before loading.
 */
#ifndef VSNOOP_BPF_MAPS_H
#define VSNOOP_BPF_MAPS_H

#include "uplink.h"

/* Working flows. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

/* Handshakes under way: the oldest gives way, so that a SYN flood ends here. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, struct embryo);
} embryos SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct port_stats);
} stats SEC(".maps");

/* floor(log2(ns)), without a loop; the last bucket has what is beyond, too. */
static __always_inline __u32 histogram_bucket(__u64 ns)
{
	__u32 high = ns >> 32, v = high ? high : (__u32)ns, bucket = high ? 32 : 0;

	if (v >> 16) { v >>= 16; bucket += 16; }
	if (v >> 8) { v >>= 8; bucket += 8; }
	if (v >> 4) { v >>= 4; bucket += 4; }
	if (v >> 2) { v >>= 2; bucket += 2; }
	bucket += v >> 1;
	return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

/* The operator's lists: 1 allows, 0 denies. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u32); /* port number, host byte order */
	__type(value, __u32);
} port_list SEC(".maps");

struct prefix {
	__u32 bits; /* of 128; IPv4 prefixes are those of ::ffff:0:0/96 */
	__u8 addr[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct prefix);
	__type(value, __u32);
} prefix_list SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct port_meta);
} meta SEC(".maps");

/* Room for verifying a checksum that nobody has verified. */
#define CHECKSUM_CHUNK 512
struct scratch {
	__u8 bytes[CHECKSUM_CHUNK];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

/* The hold's memory (hold.h), mapped by the engine, which makes the slabs. */
struct slab {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct hold_slab));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SLABS);
	__uint(key_size, sizeof(__u32));
	__array(values, struct slab);
} slabs SEC(".maps");

/* VM ports whose connections failed for a reason of the host's own. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 64);
	__type(key, __u32); /* port number, host byte order */
	__type(value, struct failures);
} failures SEC(".maps");

/* Numbers of holds that the engine has something to do with; 0: memory is wanted. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} doorbell SEC(".maps");

/* Flows in line for credit, and those that are shut (line.h).  These and what belongs to them are
 * made for ports with incast control only. */
struct flow_queue {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 4096);
	__type(value, struct flow_key);
} line SEC(".maps"), shut SEC(".maps");

/* Connections whose last SYN or SYN-ACK of the sender did not come through the uplink, until they
 * have a record (incast_flows.h). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct flow_key);
	__type(value, __u32);
} beside SEC(".maps");

/* As the loader has set them; constants, so that the verifier drops what is not used. */
const volatile struct port_config config = { .hold = 1 };

/* Written by the command, read by the hooks. */
struct policy policy = {
	.run = PORT_OBSERVE,
	.thin = 1,
	.ahead = 0xffffffff,
	.silence_ms = 300000,
};

/* Written by the hooks. */
struct port_state port;

#endif
