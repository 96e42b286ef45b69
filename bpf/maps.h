/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The state of all ports that share these programs.  Each port has a slot: the index of its
 * own maps (tables.h) in the arrays of maps here.  Its hooks bring the number along, in
 * skb->cb[CB_SLOT]; what user space runs for a port brings the port's id as well, because
 * the slot may be another port's by then.
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
ALL_PORTS(line, line_map);
ALL_PORTS(shut, line_map);
ALL_PORTS(beside, beside_map);

/* The hold's memory (hold.h), mapped by the engines, which make the slabs: SLABS for each slot. */
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

/* As the loader has set them; constants, so that the verifier drops what is not used. */
const volatile struct port_config config = { .hold = 1 };

/* Of an array with one value. */
static __always_inline void *only_value(void *map)
{
	__u32 zero = 0;

	return map ? bpf_map_lookup_elem(map, &zero) : 0;
}

static __always_inline struct port *port_of(__u32 slot)
{
	return only_value(bpf_map_lookup_elem(&ports, &slot));
}

/* The port that user space means; null when it has gone. */
static __always_inline struct port *port_of_run(const struct __sk_buff *skb)
{
	struct port *port = port_of(skb->cb[CB_SLOT]);

	return port && port->id == skb->cb[CB_ID] ? port : 0;
}

/* One of the port's own maps, or null. */
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

static __always_inline struct port_stats *stats_of(const struct port *port)
{
	return only_value(table(stats, port));
}

static __always_inline struct flow *flow_of(const struct port *port, const struct flow_key *key)
{
	return find(table(flows, port), key);
}

static __always_inline struct embryo *embryo_of(const struct port *port, const struct flow_key *key)
{
	return find(table(embryos, port), key);
}

/* floor(log2(ns)), without a loop; the last bucket has what is beyond, too. */
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
