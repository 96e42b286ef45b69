/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps that each port has for itself, so that no VM can fill another one's tables, and keys
 * need no port. The programs reach them through arrays of maps (maps.h); port.bpf.c defines them,
 * with sizes that the loader sets.
 */
#ifndef VSNOOP_BPF_TABLES_H
#define VSNOOP_BPF_TABLES_H

#include "kernel.h"
#include "types.h"

/* Keys and values by size in the programs: clang leaves types out of their object that only inner
 * maps use. By type in port.bpf.c, so that the kernel has the types of a port's own maps. */
#ifdef PORT_MAPS
#define KEY(of) __type(key, of)
#define VALUE(of) __type(value, of)
#else
#define KEY(of) __uint(key_size, sizeof(of))
#define VALUE(of) __uint(value_size, sizeof(of))
#endif

/* Flows. A port without incast control has shorter records (FLOW_BYTES), in port.bpf.c by type. */
struct flows_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	KEY(struct flow_key);
#ifdef PORT_MAPS
	__type(value, struct flow);
#else
	__uint(value_size, FLOW_BYTES);
#endif
};

/* Handshakes under way: a full table evicts the oldest, so that a SYN flood does no more harm. */
struct embryos_map {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	KEY(struct flow_key);
	VALUE(struct embryo);
};

struct stats_map {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	KEY(__u32);
	VALUE(struct port_stats);
};

/* State that the hooks share with user space, by mmap(). */
struct port_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	KEY(__u32);
	VALUE(struct port);
};

/* The operator's lists: 1 allows, 0 denies. */
struct port_list_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	KEY(__u32); /* port number, host byte order */
	VALUE(__u32);
};

struct prefix {
	__u32 bits; /* prefix length of `addr`; IPv4 is ::ffff:0:0/96 */
	__u8 addr[16];
};

struct prefix_list_map {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	KEY(struct prefix);
	VALUE(__u32);
};

/* VM ports whose connections failed for a reason of the host's own. */
struct failures_map {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 64);
	KEY(__u32); /* port number, host byte order */
	VALUE(struct failures);
};

/* Numbers of holds that need the engine; 0: memory is wanted. */
struct doorbell_map {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, DOORBELL_BYTES);
};

/* Flows that wait for credit, and finished flows that wait for a new window (grant_queue.h). Only
 * ports with incast control have these queues. */
struct grant_queue_map {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 4096);
	VALUE(struct flow_key);
};

/* Connections without a record whose last SYN or SYN-ACK from the sender did not come through the
 * uplink (incast_flows.h). */
struct beside_map {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	KEY(struct flow_key);
	VALUE(__u32);
};

#endif
