/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Diversion (bpf/divert.bpf.c): rules that send a VM's packets for chosen prefixes into a link.
 */
#ifndef VSNOOP_FLOW_TYPES_DIVERT_H
#define VSNOOP_FLOW_TYPES_DIVERT_H

#include "../base.h"

enum divert_action {
	DIVERT_NEVER = 0, /* an exception from a shorter prefix */
	DIVERT_OR_PASS = 1, /* into the link; the ordinary way while that is down */
	DIVERT_OR_DROP = 2, /* into the link; dropped while that is down */
};

/* Key of an LPM trie. Every prefix covers the whole of `family`. */
struct divert_key {
	__u32 bits; /* length of the prefix, bits of `family` and `addr` together */
	__u32 family; /* 4 or 6 */
	__u8 addr[16]; /* of IPv4 the first four bytes */
};

/* A rule for one prefix: its action and its counters. */
struct divert_rule {
	__u32 action; /* enum divert_action */
	__u32 zero;
	__u64 packets; /* into the link; a super-packet is one */
	__u64 bytes; /* of these packets */
	__u64 missed; /* packets that came while the link was down */
};

#endif
