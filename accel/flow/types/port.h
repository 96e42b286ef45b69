/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A port: the operator's settings, the measured state of its VM, and its share of the maps.
 */
#ifndef VSNOOP_FLOW_TYPES_PORT_H
#define VSNOOP_FLOW_TYPES_PORT_H

#include "incast_accounts.h"

/* The mode says how the hooks treat packets of a port. */
enum port_run {
	PORT_OBSERVE = 0, /* measure only; no packet is changed */
	PORT_ACCELERATE = 1, /* early ACKs are sent; "active" in JSON */
	PORT_PAUSED = 2, /* no new early ACKs; those given out are honoured */
};

/* Bit of `run`, beside the operator's choice: the helper has suspended the port. The hooks then
 * treat it as paused, whatever the operator chose. */
#define PORT_SUSPENDED 0x80000000

/* Bit of `run` that the service sets: the VM is about to leave this host, or its state is being
 * saved. */
#define PORT_MIGRATING 0x40000000

/* Settings of a port: the operator's choices, which may change while packets flow. */
struct policy {
	__u32 run; /* enum port_run, PORT_SUSPENDED, PORT_MIGRATING */
	__u32 passive; /* 1: flows may be passive: left to a VM that answers promptly */
	__u32 hold_chunks; /* memory for the hold at most, chunks */
	__u32 ahead; /* bytes that a sender may send beyond the VM's own window */
	__u32 silence_ms; /* a VM that sent nothing for this time gets no early ACKs */
	__u32 downloads; /* 1: the splitter splits connections (flow/split.h) */
	/* Congestion control of the sockets that face the peers of split connections; empty: the
	 * host's default. */
	char congestion_control[16];
};

/* Settings that stay while a port is attached: the verifier drops code that they rule out. */
struct port_config {
	__u32 hold; /* 1: early acknowledgement; 0: the port is only observed */
	__u32 lists; /* LIST_* */
};

/* Bits of `lists`: the operator's lists. */
#define LIST_PORTS 0x01 /* the port list is not empty */
#define LIST_PREFIXES 0x02 /* the prefix list is not empty */
#define LIST_PORTS_ALLOW 0x04 /* only listed ports are accelerated */
#define LIST_PREFIXES_ALLOW 0x08 /* only listed prefixes are accelerated */

/* Connections of one port number of the VM that failed for a reason of the host's own. */
struct failures {
	__u32 count; /* within the last minute */
	__u32 total; /* since the port was attached */
	__u64 since_ns; /* when the first of `count` failed */
	__u64 until_ns; /* new connections go to BYPASS until then */
};

/* State of a port: promptness of its VM (flow/state.h), memory of its hold. */
struct port_state {
	__u64 late_ns; /* when it was last seen late */
	__u64 run_ns; /* start of the present run of observation */
	__u64 late_in_run_ns; /* time for which it was late in this run */
	__u64 prompt_until_ns; /* it counts as prompt until then */
	__u64 ring_full; /* segments that the ring refused */
	__u64 engine_ns; /* when the engine was last alive; written by it */
	__u64 starved_ns; /* when it last saw the VM wait for a CPU; written by it */
	__u32 slabs; /* number of slabs; written by the engine */
	__u32 wants_slabs; /* the hooks want more slabs; cleared by the engine */
	__u32 chunks_used; /* chunks in chains, or claimed for one */
	__u32 chunk_cursor; /* where the search for a free chunk begins */
	__u64 coarse; /* the latest jiffy with a packet that asked for the time: coarse_ns() */
	__u32 hold_cursor; /* where the search for a free hold begins */
	__u32 zero;
	__u32 engine_looks; /* 1: the engine reads the doorbell within 1 ms; written by it */
	__u32 unused;
	struct incast_port incast; /* see flow/incast.h */
};

/* The state of a port that hooks and user space share. */
struct port {
	struct policy policy; /* written by the command, read by the hooks */
	__u32 slot; /* index of its maps in the arrays of maps */
	__u32 id; /* never 0; not reused soon for another port of the slot */
	__u64 unused[2]; /* `state`, which the hooks write, begins a cache line */
	struct port_state state; /* written by hooks and engine */
};
_Static_assert(__builtin_offsetof(struct port, state) % 64 == 0, "it begins a cache line");

/* A decision depends on these besides the flow and the segment. */
struct decision_context {
	const struct port_state *port;
	const struct policy *policy;
	__u64 now; /* CLOCK_MONOTONIC, ns */
};

#endif
