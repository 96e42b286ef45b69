/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rules that send a VM's packets for chosen prefixes into a link: what divert.bpf.c shares with
 * user space.
 */
#ifndef VSNOOP_LINK_DIVERT_H
#define VSNOOP_LINK_DIVERT_H

#include <linux/types.h>

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
_Static_assert(__builtin_offsetof(struct divert_key, kind) == sizeof(__u32) &&
		       sizeof(struct divert_key) == 2 * sizeof(__u32) + 16,
	       "the kernel compares the bits that follow `bits`: they have no gaps");

/* A rule for one prefix: its action and its counters. Of a source it is all zero. */
struct divert_rule {
	__u32 action; /* enum divert_action */
	__u32 zero;
	__u64 packets; /* into the link; a super-packet is one */
	__u64 bytes; /* of these packets */
	__u64 missed; /* packets that came while the link was down */
	__u64 forged; /* packets with a source that is not the VM's */
};
_Static_assert(sizeof(struct divert_rule) == 2 * sizeof(__u32) + 4 * sizeof(__u64),
	       "user space reads a rule as bytes: it has no gaps");

#endif
