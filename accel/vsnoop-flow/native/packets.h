/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The packet side of the hooks (bpf/packet.h, bpf/rewrite.h), compiled for the
 * machine that builds: for tests and fuzzing, never for use.
 */
#ifndef VSNOOP_NATIVE_PACKETS_H
#define VSNOOP_NATIVE_PACKETS_H

#include "types.h"

/* A frame with its metadata. */
struct frame {
	__u8 *bytes;
	__u32 len;
	__u32 linear; /* bytes in the linear part, readable without a pull */
	__u32 gso_size;
	__u16 vlan_tci;
	bool vlan_present;
	bool to_vm;
};

struct parsed_frame {
	struct flow_key key;
	struct segment segment;
	__u32 l3;
	__u32 l4;
	__u32 tcp_len;
	__u32 sack;
	__u32 sack_len;
	bool ipv6;
};

/* Parses a frame. Returns enum parsed of bpf/packet.h: 0 for TCP. */
int vsnoop_parse(const struct frame *frame, struct parsed_frame *out);

/* Rewrites ACK and window in place, as from_vm does.  0 on success. */
int vsnoop_rewrite(const struct frame *frame, const struct parsed_frame *parsed,
		   const struct ack_fields *ack);

#endif
