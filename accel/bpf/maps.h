/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * State of all ports that share these programs. Each port has a slot: the index of its own maps
 * (tables.h) in the arrays of maps here. The program on the tap puts the slot into
 * skb->cb[CB_SLOT]. User space that runs a program for a port passes the port's id as well, because
 * the slot may have been reused.
 */
#ifndef VSNOOP_BPF_MAPS_H
#define VSNOOP_BPF_MAPS_H

#include "tables.h"
#include "uplink.h"

#define ALL_PORTS(name, of)                                                                        \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);                                          \
		__uint(max_entries, PORT_SLOTS);                                                   \
		__uint(key_size, sizeof(__u32));                                                   \
		__array(values, struct of);                                                        \
	} name SEC(".maps")

ALL_PORTS(ports, port_map);
ALL_PORTS(flows, flows_map);
ALL_PORTS(embryos, embryos_map);
ALL_PORTS(stats, stats_map);
ALL_PORTS(port_list, port_list_map);
ALL_PORTS(prefix_list, prefix_list_map);
ALL_PORTS(failures, failures_map);
ALL_PORTS(doorbell, doorbell_map);
ALL_PORTS(grant_queue, grant_queue_map);
ALL_PORTS(finished_queue, grant_queue_map);
ALL_PORTS(beside, beside_map);

/* Memory of the hold (hold_memory.h): SLABS entries for each slot. The engines create the slabs and
 * map them. */
struct slab {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct hold_slab));
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, PORT_SLOTS * SLABS);
	__uint(key_size, sizeof(__u32));
	__array(values, struct slab);
} slabs SEC(".maps");

/* Set by the loader before the programs are loaded; constants, so that the verifier removes unused
 * code. */
const volatile struct port_config config = { .hold = 1 };

/* The value of an array with one entry; null without an array. */
static __always_inline void *only_value(void *map)
{
	__u32 zero = 0;

	return map ? bpf_map_lookup_elem(map, &zero) : 0;
}

static __always_inline struct port *port_in(const __u32 *slot)
{
	return only_value(bpf_map_lookup_elem(&ports, slot));
}

/* The port for which user space runs a program; null if that port is gone. */
static __always_inline struct port *port_of_run(const struct __sk_buff *skb)
{
	__u32 slot = skb->cb[CB_SLOT];
	struct port *port = port_in(&slot);

	return port && port->id == skb->cb[CB_ID] ? port : 0;
}

/* The port's own map `name`, or null. */
#define table(name, port) bpf_map_lookup_elem(&(name), &(port)->slot)

static __always_inline void *find(void *map, const void *key)
{
	return map ? bpf_map_lookup_elem(map, key) : 0;
}

static __always_inline long store(void *map, const void *key, const void *value, __u64 flags)
{
	return map ? bpf_map_update_elem(map, key, value, flags) : -1;
}

static __always_inline void forget(void *map, const void *key)
{
	if (map)
		bpf_map_delete_elem(map, key);
}

/* The counters of the port in a slot. */
static __always_inline struct port_stats *stats_in(const __u32 *slot)
{
	return only_value(bpf_map_lookup_elem(&stats, slot));
}

static __always_inline struct port_stats *stats_of(const struct port *port)
{
	return stats_in(&port->slot);
}

/* Loads a cache line that is needed soon: the CPU waits for several that were touched together as
 * long as for one of them. The clock and the lock wait for what was loaded before. */
#define touch(word) ((void)*(const volatile __u32 *)&(word))

static __always_inline struct flow *flow_of(const struct port *port, const struct flow_key *key)
{
	return find(table(flows, port), key);
}

static __always_inline struct embryo *embryo_of(const struct port *port, const struct flow_key *key)
{
	return find(table(embryos, port), key);
}

/* floor(log2(ns)), without a loop. Larger values count in the last bucket. */
static __always_inline __u32 histogram_bucket(__u64 ns)
{
	__u32 high = ns >> 32, v = high ? high : (__u32)ns, bucket = high ? 32 : 0;

	if (v >> 16) {
		v >>= 16;
		bucket += 16;
	}
	if (v >> 8) {
		v >>= 8;
		bucket += 8;
	}
	if (v >> 4) {
		v >>= 4;
		bucket += 4;
	}
	if (v >> 2) {
		v >>= 2;
		bucket += 2;
	}
	bucket += v >> 1;
	return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

#endif
