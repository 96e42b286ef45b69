/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Interface between kernel.c and src/kernel.rs. Rust's declarations are written by hand in
 * src/native.rs.
 */
#ifndef VSNOOP_NATIVE_KERNEL_H
#define VSNOOP_NATIVE_KERNEL_H

#include <linux/types.h>
#include <stdbool.h>

/* A socket buffer as it enters and leaves a program. */
struct world_frame {
	__u8 *bytes; /* `room` bytes, below 4 GiB: __sk_buff has 32-bit pointers */
	__u32 len;
	__u32 linear; /* bytes that can be read without a pull */
	__u32 room;
	__u32 mark;
	__u32 gso_size;
	__u32 gso_segs;
	__u32 gso_type; /* SKB_GSO_* */
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto; /* network byte order */
	__u32 protocol; /* network byte order */
	__u32 ifindex;
	__u32 ingress_ifindex;
	__u32 cb[5];
	__u32 ip_summed; /* CHECKSUM_* */
	__u32 csum_start; /* CHECKSUM_PARTIAL: first byte of the TCP header */
	__u32 csum; /* CHECKSUM_COMPLETE: sum of all after the Ethernet header */
	__u32 redirect_ifindex; /* after TC_ACT_REDIRECT */
	__u32 redirect_flags;
};

/* The device of a port. */
struct world_device {
	__u32 has_qdisc; /* one that queues */
	__u32 is_multiqueue;
	__u64 features;
	__u32 gso_max_size;
	__u32 gso_ipv4_max_size;
	__u32 gso_max_segs;
};

enum world_program {
	WORLD_TO_VM,
	WORLD_FROM_VM,
	WORLD_INJECT,
	WORLD_GRANT,
	WORLD_RECLAIM,
	WORLD_UPLINK,
	WORLD_SPLIT_TO_VM,
	WORLD_SPLIT_FROM_VM,
	WORLD_SPLIT_FROM_SOCKET,
	WORLD_CHANGE_SPLIT,
};

struct world_map {
	const void *map;
	const char *name;
	__u32 type; /* enum bpf_map_type */
	__u32 key_size;
	__u32 value_size;
	__u32 max_entries;
	__u32 flags;
	__s32 inner; /* index of the inner maps' definition, or -1 */
};

struct world_global {
	void *start;
	const char *name;
	__u32 size;
};

/* The programs, and all maps and global variables that they have. */
struct world_programs {
	int (*run)(enum world_program program, struct world_frame *frame,
		   const struct world_device *device);
	const struct world_map *maps;
	const struct world_global *globals;
	__u32 map_count;
	__u32 global_count;
};

/* build.rs links several copies of this, each with variables of its own: world_programs_0, ... */
extern const struct world_programs world_programs;

/* In Rust. */
void *world_lookup(const void *map, const void *key);
long world_update(const void *map, const void *key, const void *value, __u64 flags);
long world_delete(const void *map, const void *key);
long world_push(const void *map, const void *value, __u64 flags);
long world_pop(const void *map, void *value, bool remove);
long world_ring(const void *ring, const void *data, __u64 size, __u64 flags);
bool world_ring_reserve(const void *ring, __u64 size);
void world_ring_submit(const void *ring, const void *data, __u64 size, __u64 flags);
__u64 world_ring_bytes(const void *ring);
__u64 world_now(void);
__u32 world_random(void);
__u32 world_cpu(void);
long world_transmit(const struct world_frame *clone, __u32 ifindex, __u64 flags);
/* Called in each helper: another CPU may act at this moment. */
void world_gap(const char *helper);
void world_lock(const void *lock);
void world_unlock(const void *lock);
_Noreturn void world_bug(const char *what);

#endif
