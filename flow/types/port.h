/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A port: the operator's settings, what is known of the VM behind it, and what hooks and
 * user space share of it.
 */
#ifndef VSNOOP_FLOW_TYPES_PORT_H
#define VSNOOP_FLOW_TYPES_PORT_H

#include "incast.h"

/* What the hooks do to packets of a port. */
enum port_run {
	PORT_OBSERVE = 0, /* measure only; no packet is changed */
	PORT_ACTIVE = 1, /* early ACKs are sent */
	PORT_PAUSED = 2, /* no new early ACKs; those given out are honoured */
};

/* In `run`, beside the operator's choice: the helper has suspended the port.  The
 * hooks then take it for paused, whatever was chosen. */
#define PORT_SUSPENDED 0x80000000

/* Settings of a port: the operator's choices, which may change while packets flow. */
struct policy {
	__u32 run; /* enum port_run, PORT_SUSPENDED */
	__u32 passive; /* 1: flows may be passive: left to a VM that answers promptly */
	__u32 hold_chunks; /* memory for the hold at most, chunks */
	__u32 ahead; /* how far a sender may run ahead of the VM's own window, bytes */
	__u32 silence_ms; /* the host vouches no longer for a VM that was silent so long */
	__u32 zero;
};

/* What is constant while a port is attached: the verifier drops what is not used. */
struct port_config {
	__u32 hold; /* 1: early acknowledgement; 0: the port is only observed */
	__u32 lists; /* LIST_* */
};

/* Of the operator's lists. */
#define LIST_PORTS 0x01 /* the port list is not empty */
#define LIST_PREFIXES 0x02 /* the prefix list is not empty */
#define LIST_PORTS_ALLOW 0x04 /* only listed ports are accelerated */
#define LIST_PREFIXES_ALLOW 0x08 /* only listed prefixes are accelerated */

/* Connections of one port number of the VM that failed for a reason of the host's own. */
struct failures {
	__u32 count; /* within the last minute */
	__u32 total; /* since the port was attached */
	__u64 since_ns; /* of the first that counts */
	__u64 until_ns; /* new connections are left alone until then */
};

/* What is known about the VM behind a port: how promptly it answers. */
struct port_state {
	__u64 late_ns; /* when it was last seen late */
	__u64 run_ns; /* start of the present run of observation */
	__u64 late_in_run_ns; /* how long it was late within it */
	__u64 prompt_until_ns; /* it is taken to be prompt until then */
	__u64 ring_full; /* segments that the ring refused */
	__u64 engine_ns; /* the engine was alive; written by it */
	__u32 slabs; /* how many there are; written by the engine */
	__u32 wants_slabs; /* the hooks want more; cleared by the engine */
	__u32 chunks_used; /* in chains, or claimed for one */
	__u32 chunk_cursor; /* where the search for a free chunk begins */
	__u32 hold_cursor; /* ... and for a free hold */
	__u32 zero;
	struct incast_port incast; /* see flow/incast.h */
};

/* What hooks and user space share of a port. */
struct port {
	struct policy policy; /* written by the command, read by the hooks */
	__u32 slot; /* index of its maps in the arrays of maps */
	__u32 id; /* never 0; no other port of this slot has had it lately */
	__u64 unused[4]; /* what the hooks write begins a cache line */
	struct port_state state; /* written by hooks and engine */
};

#endif
