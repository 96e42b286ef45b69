// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Compiles bpf/packet.h and bpf/rewrite.h natively, around a socket buffer with only the fields
 * that they read.
 */
#include "helpers.h"
#include "packets.h"

static __u32 sum_of(const void *bytes, __u32 len, bool negate)
{
	__u64 sum = 0;
	__u32 word, i;

	for (i = 0; i < len; i += 4) {
		memcpy(&word, (const __u8 *)bytes + i, 4);
		sum += negate ? ~word : word;
	}
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (__u32)((sum & 0xffffffff) + (sum >> 32));
}

static __s64 bpf_csum_diff(const void *from, __u32 from_len, const void *to, __u32 to_len,
			   __u32 seed)
{
	__u64 sum = (__u64)sum_of(from, from_len, true) + sum_of(to, to_len, false) + seed;

	return (__u32)((sum & 0xffffffff) + (sum >> 32));
}

static long bpf_l4_csum_replace(struct __sk_buff *skb, __u32 at, __u64 from, __u64 to, __u64 flags)
{
	__u16 check;
	__u64 sum;

	(void)from;
	(void)flags;
	if (bpf_skb_load_bytes(skb, at, &check, 2))
		return -14;
	sum = (__u64)(__u16)~check + (to & 0xffff) + (to >> 16 & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	check = ~sum;
	return bpf_skb_store_bytes(skb, at, &check, 2, 0);
}

/* For the verifier only. */
#define barrier_var(var) ((void)(var))

#include "packet.h"
#include "rewrite.h"

static struct __sk_buff buffer_of(const struct frame *frame)
{
	struct __sk_buff skb = {
		.data = (unsigned long)frame->bytes,
		.data_end = (unsigned long)frame->bytes + frame->linear,
		.len = frame->len,
		.gso_size = frame->gso_size,
		.vlan_present = frame->vlan_present,
		.vlan_tci = frame->vlan_tci,
		.bytes = frame->bytes,
	};

	return skb;
}

int vsnoop_parse(const struct frame *frame, struct parsed_frame *out)
{
	struct __sk_buff skb = buffer_of(frame);
	struct packet p = { 0 };
	int parsed = parse_packet(&skb, frame->to_vm, &p, &out->key, &out->segment);

	out->l3 = p.l3;
	out->l4 = p.l4;
	out->tcp_len = p.tcp_len;
	out->sack = p.sack;
	out->sack_len = p.sack_len;
	out->ipv6 = p.ipv6;
	return parsed;
}

int vsnoop_rewrite(const struct frame *frame, const struct parsed_frame *parsed,
		   const struct ack_fields *ack)
{
	struct __sk_buff skb = buffer_of(frame);
	struct packet p = {
		.l3 = parsed->l3,
		.l4 = parsed->l4,
		.tcp_len = parsed->tcp_len,
		.sack = parsed->sack,
		.sack_len = parsed->sack_len,
		.ipv6 = parsed->ipv6,
	};

	return rewrite_ack(&skb, &p, &parsed->segment, ack);
}
