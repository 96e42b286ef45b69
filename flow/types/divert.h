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

/* Kinds of addresses in one trie. A packet is diverted if its sources are in it, too. */
enum divert_kind {
	DIVERT_TO_V4 = 4,
	DIVERT_TO_V6 = 6,
	DIVERT_FROM_V4 = 0x104,
	DIVERT_FROM_V6 = 0x106,
	DIVERT_FROM_MAC = 0x1ac,
};

/* Key of an LPM trie. Every prefix covers the whole of `kind`. */
struct divert_key {
	__u32 bits; /* length of the prefix, bits of `kind` and `addr` together */
	__u32 kind; /* enum divert_kind */
	__u8 addr[16]; /* of IPv4 the first four bytes, of a MAC address six */
};

/* A rule for one prefix: its action and its counters. Of a source it is all zero. */
struct divert_rule {
	__u32 action; /* enum divert_action */
	__u32 zero;
	__u64 packets; /* into the link; a super-packet is one */
	__u64 bytes; /* of these packets */
	__u64 missed; /* packets that came while the link was down */
	__u64 forged; /* packets with a source that is not the VM's */
};

#endif
