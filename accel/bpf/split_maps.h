/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Split connections: their maps, and what is looked up there.
 */
#ifndef VSNOOP_BPF_SPLIT_MAPS_H
#define VSNOOP_BPF_SPLIT_MAPS_H

#include "packet.h"
#include "split.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct split_port);
} split_port SEC(".maps");

/* By key with the VM's MAC address. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct flow_key);
	__type(value, struct split_candidate);
} split_candidates SEC(".maps");

/* By key without MAC address, which the sockets' segments do not have. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct flow_key);
	__type(value, struct split_flow);
} split_flows SEC(".maps");

/* struct split_record. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} split_ring SEC(".maps");

/* The inner end of the veth pair has this MAC address. */
static const __u8 socket_mac[6]
	__attribute__((aligned(2))) = { 0x02, 0x76, 0x73, 0x6e, 0x6f, 0x70 };

/* A parsed packet. Aligned, because the verifier refuses words on the stack that are not. */
struct arrival {
	struct flow_key key __attribute__((aligned(8)));
	struct segment s __attribute__((aligned(8)));
	struct packet p;
};

/* A key by itself: the same. */
struct found_by {
	struct flow_key key __attribute__((aligned(8)));
};

static __always_inline struct split_port *this_port(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&split_port, &zero);
}

static __always_inline void count(__u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

/* The key by which split connections are found. */
static __always_inline void split_key(struct found_by *by, const struct flow_key *key)
{
	by->key = *key;
	__builtin_memset(by->key.vm_mac, 0, sizeof(by->key.vm_mac));
}

/* The split connection to which a segment of an end belongs. */
static __always_inline struct split_flow *find_split(const struct flow_key *key)
{
	struct found_by by;

	split_key(&by, key);
	return bpf_map_lookup_elem(&split_flows, &by.key);
}

/* Its ends talk to each other from now on. */
static __always_inline bool remove_split(struct split_port *port, const struct flow_key *key)
{
	struct found_by by;

	split_key(&by, key);
	if (bpf_map_delete_elem(&split_flows, &by.key))
		return false;
	__sync_fetch_and_add(&port->splits, -1);
	return true;
}

/* The key for a segment that goes the other way. */
static __always_inline void turned_key(struct found_by *by, const struct flow_key *key)
{
	__builtin_memset(by, 0, sizeof(*by));
	copy_address(by->key.sender_addr, key->vm_addr);
	copy_address(by->key.vm_addr, key->sender_addr);
	by->key.sender_port = key->vm_port;
	by->key.vm_port = key->sender_port;
}

#endif
