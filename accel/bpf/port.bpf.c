// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The maps of one port. The loader puts them, by name, into the port's slot of the arrays of maps
 * (maps.h) of its programs; only user space uses `meta`.
 */
#define VSNOOP_BPF
#define PORT_MAPS
#include "tables.h"

struct port_map ports SEC(".maps");
struct flows_map flows SEC(".maps");
struct embryos_map embryos SEC(".maps");
struct stats_map stats SEC(".maps");
struct port_list_map port_list SEC(".maps");
struct prefix_list_map prefix_list SEC(".maps");
struct failures_map failures SEC(".maps");
struct doorbell_map doorbell SEC(".maps");
struct grant_queue_map grant_queue SEC(".maps"), finished_queue SEC(".maps");
struct beside_map beside SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	KEY(__u32);
	VALUE(struct port_meta);
} meta SEC(".maps");
