/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A socket buffer with only the fields that the hooks read, and the kernel's helpers that they
 * call. Included by natively compiled files before the headers of bpf/.
 */
#ifndef VSNOOP_NATIVE_HELPERS_H
#define VSNOOP_NATIVE_HELPERS_H

/* Defines the include guards of headers that need the kernel, to leave these out. */
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

/* The callback returns 1 to end the loop, as in the kernel. */
#define bpf_loop(n, callback, context, flags)                                                      \
	do {                                                                                       \
		__u32 loop_i;                                                                      \
		for (loop_i = 0; loop_i < (n) && !callback(loop_i, context); loop_i++)             \
			;                                                                          \
	} while (0)

#endif
