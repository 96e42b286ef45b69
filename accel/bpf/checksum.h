/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Verifies TCP checksums: nothing is believed of a segment before.
 */
#ifndef VSNOOP_BPF_CHECKSUM_H
#define VSNOOP_BPF_CHECKSUM_H

#include "packet.h"

/* Buffer for verifying a checksum. */
#define CHECKSUM_CHUNK 512
struct scratch {
	__u8 bytes[CHECKSUM_CHUNK];
};
_Static_assert(
	(CHECKSUM_CHUNK & (CHECKSUM_CHUNK - 1)) == 0,
	"checksum_chunk() masks offsets, and counts on chunks that fill a segment's 65536 bytes");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

struct checksum_walk {
	struct __sk_buff *skb;
	struct scratch *scratch;
	__u32 at;
	__u32 left;
	__u32 sum;
};

static long checksum_chunk(__u32 i, struct checksum_walk *w)
{
	__u32 n = w->left < CHECKSUM_CHUNK ? w->left : CHECKSUM_CHUNK;
	__u32 padded;

	if (n > CHECKSUM_CHUNK)
		return 1;
	barrier_var(n);
	if (n == 0)
		return 1;
	padded = (n + 3) & ~3u;
	if (padded > CHECKSUM_CHUNK)
		return 1;
	if (n < CHECKSUM_CHUNK && padded >= 4)
		*(__u32 *)(w->scratch->bytes + ((padded - 4) & (CHECKSUM_CHUNK - 4))) = 0;
	if (bpf_skb_load_bytes(w->skb, w->at, w->scratch->bytes, n))
		return 1;
	w->sum = bpf_csum_diff(0, 0, (__be32 *)w->scratch->bytes, padded, w->sum);
	w->at += n;
	w->left -= n;
	return w->left == 0;
}

/* Sum of the pseudo-header, RFC 9293 section 3.1 and RFC 8200 section 8.1. */
static __always_inline __u64 pseudo_sum(const struct flow_key *key, bool ipv6, __u32 l4_len)
{
	const __u32 *a = (const void *)key->sender_addr, *b = (const void *)key->vm_addr;
	__u64 sum = (__u64)a[3] + b[3] + bpf_htonl(l4_len) + bpf_htonl(PROTOCOL_TCP);

	if (ipv6)
		sum += (__u64)a[0] + a[1] + a[2] + b[0] + b[1] + b[2];
	return sum;
}

/* Does a checksum over `len` bytes at `at` come out right? `pseudo`: sum of the pseudo-header. Not
 * inline: the walk would take space in the frames of the hooks, which the longest chains of calls
 * need. */
static __noinline bool sums_up(struct __sk_buff *skb, __u32 at, __u32 len, __u64 pseudo)
{
	struct checksum_walk w = { .skb = skb };
	__u32 zero = 0;

	w.scratch = bpf_map_lookup_elem(&scratch, &zero);
	if (!w.scratch)
		return false;
	w.at = at;
	w.left = len;
	w.sum = 0;
	bpf_loop(65536 / CHECKSUM_CHUNK, checksum_chunk, &w, 0);
	return !w.left && fold(w.sum + pseudo) == 0xffff;
}

/* Sums the TCP segment, and says whether its checksum is good. */
static __always_inline bool verify_checksum(struct __sk_buff *skb, const struct packet *p,
					    const struct flow_key *key, const struct segment *s)
{
	__u32 l4_len = p->tcp_len + s->len;

	return sums_up(skb, p->l4, l4_len, pseudo_sum(key, p->ipv6, l4_len));
}

/* Is the TCP checksum good? Verified here, unless the device or the stack has. */
static __always_inline bool checksum_is_good(struct __sk_buff *skb, const struct packet *p,
					     const struct flow_key *key, const struct segment *s)
{
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	__u8 ip_summed = BPF_CORE_READ_BITFIELD(k, ip_summed);

	if (ip_summed == CHECKSUM_PARTIAL || ip_summed == CHECKSUM_UNNECESSARY)
		return true;
	/* CHECKSUM_COMPLETE is verified here, too: it is rare, because bridge and router turn it
	 * into CHECKSUM_NONE. */
	return verify_checksum(skb, p, key, s);
}

#endif
