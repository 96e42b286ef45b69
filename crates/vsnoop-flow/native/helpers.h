/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A socket buffer that has no more than the fields the hooks look at, and the
 * helpers of the kernel that they call.  Included by what is compiled natively,
 * before the headers of bpf/.
 */
#ifndef VSNOOP_NATIVE_HELPERS_H
#define VSNOOP_NATIVE_HELPERS_H

/* The include guards of the headers that speak to the kernel are taken, so that
 * they stay out. */
#define VSNOOP_BPF_KERNEL_H
#define VSNOOP_BPF_REPLY_H

#include <string.h>

#include "types.h"

struct __sk_buff {
	unsigned long data;
	unsigned long data_end;
	__u32 len;
	__u32 gso_size;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u8 *bytes;
};

#define __noinline
#define bpf_htons(x) __builtin_bswap16(x)
#define bpf_ntohs(x) __builtin_bswap16(x)
#define bpf_htonl(x) __builtin_bswap32(x)
#define bpf_ntohl(x) __builtin_bswap32(x)

static long bpf_skb_load_bytes(const struct __sk_buff *skb, __u32 at, void *to, __u32 len)
{
	if (at > skb->len || len > skb->len - at)
		return -14;
	memcpy(to, skb->bytes + at, len);
	return 0;
}

static long bpf_skb_store_bytes(struct __sk_buff *skb, __u32 at, const void *from, __u32 len,
				__u64 flags)
{
	(void)flags;
	if (at > skb->len || len > skb->len - at)
		return -14;
	memcpy(skb->bytes + at, from, len);
	return 0;
}

static long bpf_skb_pull_data(struct __sk_buff *skb, __u32 len)
{
	if (len > skb->len)
		return -12;
	if (skb->data_end - skb->data < len)
		skb->data_end = skb->data + len;
	return 0;
}

/* Its callback is an integer's worth of arguments, as the kernel calls it. */
#define bpf_loop(n, callback, context, flags)                                                      \
	do {                                                                                       \
		__u32 loop_i;                                                                      \
		for (loop_i = 0; loop_i < (n) && !callback(loop_i, context); loop_i++)             \
			;                                                                          \
	} while (0)

#endif
