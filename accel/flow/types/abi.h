/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The ABI between programs, maps and user space, and the pinned record of an attachment.
 */
#ifndef VSNOOP_FLOW_TYPES_ABI_H
#define VSNOOP_FLOW_TYPES_ABI_H

#include "../base.h"

/* Raised whenever the layout or the meaning of a pinned map changes. */
#define VSNOOP_ABI 22

/* Most ports that can share programs: each port has the entry of its slot in their arrays of
 * maps. */
#define PORT_SLOTS 64

/* Indices into skb->cb: the program on a tap passes the port's id and slot to the shared
 * programs. */
#define CB_ID 3
#define CB_SLOT 4

/* Offsets in struct __sk_buff (linux/bpf.h): user space runs a program with these fields set, and
 * reads the mark afterwards. */
#define CONTEXT_MARK 8
#define CONTEXT_INGRESS_IFINDEX 36
#define CONTEXT_IFINDEX 40
#define CONTEXT_CB 48
#define CONTEXT_BYTES 68 /* to the end of `cb`; the kernel takes the rest for zero */

/* Where the program `inject` sends its frame: cb[0]. */
enum inject_way {
	INJECT_TO_VM = 0, /* out of the tap */
	INJECT_TO_SENDER = 1, /* in by the tap, as if the VM had sent it */
	INJECT_OUT = 2, /* out of another interface */
	INJECT_IN = 3, /* in by another interface */
};

/* Why user space reset a connection. */
enum reset_reason {
	RESET_REFUSED = 0, /* the VM has room, answers, and refuses the same bytes repeatedly */
	RESET_SILENT = 1, /* the VM ran, and sent nothing for long */
	RESET_ENGINE_GONE = 2, /* no engine is left to hand over the held bytes */
	RESET_DETACHED = 3, /* the port was detached with bytes in the hold */
	RESET_NO_READER = 4, /* the tap has no reader any more */
	RESET_ROLLED_BACK = 5, /* the VM takes back what it has acknowledged */
	RESET_MOVED = 6, /* the VM, or its address, is behind another port or host */
	RESET_REASONS = 7,
};

/* The attachment itself: written by user space only, and pinned with the maps, so that it outlives
 * every process. */
struct port_meta {
	__u32 abi; /* VSNOOP_ABI */
	__u32 ifindex; /* of the tap */
	__u64 netns; /* inode of the tap's network namespace */
	__u64 attached_at; /* seconds since the epoch */
	char ifname[16]; /* of the tap when it was attached */
	char qdisc[16]; /* the default qdisc that noqueue replaced; empty: none */
	__u32 tx_queue_len; /* of the tap when it was attached */
	__u32 tx_queues; /* number of transmit queues at that time */
	__u32 bridge; /* ifindex of the tap's bridge; 0: none */
	__u32 uplink; /* ifindex of the uplink of incast control; 0: none */
	__u64 times_suspended; /* how often PORT_SUSPENDED was set */
	__u64 resets[RESET_REASONS]; /* connections that user space reset */
	__u64 reset_bytes; /* their bytes that the VM had not acknowledged */
	__u64 resets_unsent; /* those of them whose sender could not be sent a RST */
	__u32 lists; /* LIST_*, as in the configuration */
	__u32 service_bounds; /* digest of the bounds that the service gave it */
	__u64 service; /* digest of the service's settings; 0: a command attached it */
	char table[32]; /* the service's table [[port]] that it meets */
	__u8 mac[8]; /* Ethernet address of the tap; two bytes are unused */
};

#endif
