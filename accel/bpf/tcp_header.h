/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Changes a TCP header in place, with an incremental checksum (RFC 1624).
 */
#ifndef VSNOOP_BPF_TCP_HEADER_H
#define VSNOOP_BPF_TCP_HEADER_H

#include "packet.h"

/* Replaces `len` bytes (a multiple of 4) at offset `at` of the TCP header, and updates the
 * checksum. */
static __always_inline int replace_in_tcp(struct __sk_buff *skb, const struct packet *p, __u32 at,
					  void *from, void *to, __u32 len)
{
	__s64 diff = bpf_csum_diff(from, len, to, len, 0);

	if (diff < 0 || bpf_skb_store_bytes(skb, p->l4 + at, to, len, 0))
		return -1;
	return bpf_l4_csum_replace(skb, p->l4 + TCP_OFFSET_CHECK, 0, diff, 0);
}

#endif
