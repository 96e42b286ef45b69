/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How programs, maps and user space find each other, and what is pinned about an attachment.
 */
#ifndef VSNOOP_FLOW_TYPES_ABI_H
#define VSNOOP_FLOW_TYPES_ABI_H

#include "../base.h"

/* Changes whenever a pinned map's layout or meaning changes. */
#define VSNOOP_ABI 10

/* Ports that share programs, at most: each has the slot of this number in their arrays of maps. */
#define PORT_SLOTS 64

/* Of skb->cb, in which the programs are told which port is meant. */
#define CB_ID 3
#define CB_SLOT 4

/* Why user space reset a connection. */
enum reset_reason {
	RESET_REFUSED = 0, /* the VM has room, answers, and refuses the same bytes repeatedly */
	RESET_SILENT = 1, /* it ran, and answered nothing for long */
	RESET_ENGINE_GONE = 2, /* no engine can hand over what is held */
	RESET_DETACHED = 3, /* the port was detached with bytes in the hold */
	RESET_TAP_GONE = 4, /* the tap was deleted with bytes in the hold */
	RESET_DESERTED = 5, /* the tap has no reader any more */
	RESET_REASONS = 6,
};

/* About the attachment itself; written by the userland only, and pinned with
 * the rest so that it outlives every process. */
struct port_meta {
	__u32 abi; /* VSNOOP_ABI */
	__u32 ifindex; /* of the tap */
	__u64 netns; /* inode of the tap's network namespace */
	__u64 attached_at; /* seconds since the epoch */
	char ifname[16]; /* of the tap when it was attached */
	char qdisc[16]; /* the default that noqueue replaced; empty: none was */
	__u32 tx_queue_len; /* of the tap when it was attached */
	__u32 tx_queues; /* how many the tap had then */
	__u32 bridge; /* index of the bridge that the tap is a port of; 0: none */
	__u32 uplink; /* index of the interface that incast control looks at; 0: none */
	__u64 times_suspended; /* how often PORT_SUSPENDED was set */
	__u64 resets[RESET_REASONS]; /* connections that user space reset */
	__u64 reset_bytes; /* ... and what the VM had not acknowledged of them */
	__u32 lists; /* LIST_*, as in the configuration */
};

#endif
