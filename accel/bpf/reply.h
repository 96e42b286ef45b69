/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Turns a packet into an ACK or RST, in place, and sends it to either end. The headers are built
 * and summed on the stack and written at once, which also keeps skb->csum right for
 * CHECKSUM_COMPLETE.
 */
#ifndef VSNOOP_BPF_REPLY_H
#define VSNOOP_BPF_REPLY_H

#include "handover.h"
#include "hold_memory.h"
#include "marks.h"

struct tcp_options {
	__be32 head; /* NOP, NOP, kind 8, length 10 */
	__be32 tsval;
	__be32 tsecr;
};

struct reply4 {
	struct iphdr ip;
	struct tcphdr tcp;
	struct tcp_options opt;
};

struct reply6 {
	struct ipv6hdr ip;
	struct tcphdr tcp;
	struct tcp_options opt;
};

_Static_assert(sizeof(struct tcp_options) == TIMESTAMPS_BYTES &&
		       sizeof(struct reply4) == sizeof(struct iphdr) + sizeof(struct tcphdr) +
							sizeof(struct tcp_options) &&
		       sizeof(struct reply6) == sizeof(struct ipv6hdr) + sizeof(struct tcphdr) +
							sizeof(struct tcp_options),
	       "make_reply() writes headers without gaps");

/* Beside timestamps there is no room for more. */
#define SACK_BLOCKS 3

/* Follows the timestamps option, or else the TCP header (RFC 2018). */
struct sack_option {
	__be32 head; /* NOP, NOP, kind 5, length */
	__be32 edges[2 * SACK_BLOCKS];
};
#define SACK_BYTES(blocks) (4 + 8 * (blocks))
_Static_assert(sizeof(struct sack_option) == SACK_BYTES(SACK_BLOCKS) && SACK_BLOCKS == 3,
	       "store_sack() has a case for each number of blocks");
/* Keeps an index within the edges of a hold's ranges, for the verifier. */
#define RANGE_EDGES_MASK (2 * HOLD_RANGES - 1)

/* Fills in a SACK option for the answer to this packet: what came again with it (RFC 2883: the
 * first block), and the out-of-order ranges of a hold. Returns its length, bytes. Reads the ranges
 * without the record's lock: twice, and reports none if another CPU changed them. */
static __always_inline __u32 fill_sack(struct sack_option *sack, struct __sk_buff *skb,
				       const struct packet *p, const struct ack_fields *a)
{
	volatile struct hold *h = hold_number(skb->cb[CB_SLOT], a->sack);
	__u32 i, own = 0, count = h ? h->range_count : 0;

	if (a->repeated && !bpf_skb_load_bytes(skb, p->l4 + 4, sack->edges, 4)) {
		sack->edges[1] = bpf_htonl(bpf_ntohl(sack->edges[0]) + a->repeated);
		own = 1;
	}
	if (count > SACK_BLOCKS - own)
		count = SACK_BLOCKS - own;
	for (i = 0; h && i < 2 * SACK_BLOCKS; i++)
		if (i >= 2 * own && i < 2 * (own + count))
			sack->edges[i] = bpf_htonl(h->ranges[(i - 2 * own) & RANGE_EDGES_MASK].v);
	for (i = 0; h && i < 2 * SACK_BLOCKS; i++)
		if (i >= 2 * own && i < 2 * (own + count) &&
		    sack->edges[i] != bpf_htonl(h->ranges[(i - 2 * own) & RANGE_EDGES_MASK].v))
			count = 0;
	for (i = 0; i < 2 * SACK_BLOCKS; i++)
		if (i >= 2 * (own + count))
			sack->edges[i] = 0;
	count += own;
	if (!count)
		return 0;
	sack->head = bpf_htonl(SACK_HEAD | (2 + 8 * count));
	return SACK_BYTES(count);
}

static __always_inline void fill_tcp(struct tcphdr *tcp, struct tcp_options *opt,
				     const struct flow_key *key, bool to_sender,
				     const struct ack_fields *a, __u32 tcp_len, __u8 flags)
{
	tcp->source = to_sender ? key->vm_port : key->sender_port;
	tcp->dest = to_sender ? key->sender_port : key->vm_port;
	tcp->seq = bpf_htonl(a->seq.v);
	tcp->ack_seq = bpf_htonl(a->ack.v);
	((__u8 *)tcp)[TCP_BYTE_OFFSET] = tcp_len / 4 << 4;
	((__u8 *)tcp)[TCP_BYTE_FLAGS] = flags;
	tcp->window = bpf_htons(a->window);
	tcp->check = 0;
	tcp->urg_ptr = 0;
	opt->head = bpf_htonl(TIMESTAMPS_HEAD);
	opt->tsval = bpf_htonl(a->tsval);
	opt->tsecr = bpf_htonl(a->tsecr);
}

/* With CHECKSUM_PARTIAL the field gets the sum of the pseudo-header. `opt`: 0 without
 * timestamps. */
static __always_inline void fill_checksum(struct tcphdr *tcp, const struct tcp_options *opt,
					  const struct flow_key *key, bool ipv6,
					  const struct sack_option *sack, __u32 tcp_len,
					  bool partial)
{
	__u64 sum = pseudo_sum(key, ipv6, tcp_len);

	if (partial) {
		tcp->check = fold(sum);
		return;
	}
	sum += sum_words(tcp, 5);
	if (opt)
		sum += sum_words(opt, 3);
	/* The part that is not sent is zero. */
	sum += sum_words(sack, sizeof(*sack) / sizeof(__be32));
	tcp->check = ~fold(sum);
}

/* Constant lengths: not every kernel's verifier can bound a variable one. */
static __always_inline long store_sack(struct __sk_buff *skb, __u32 at,
				       const struct sack_option *sack, __u32 len)
{
	switch (len) {
	case SACK_BYTES(1):
		return bpf_skb_store_bytes(skb, at, sack, SACK_BYTES(1), BPF_F_RECOMPUTE_CSUM);
	case SACK_BYTES(2):
		return bpf_skb_store_bytes(skb, at, sack, SACK_BYTES(2), BPF_F_RECOMPUTE_CSUM);
	default:
		return bpf_skb_store_bytes(skb, at, sack, SACK_BYTES(3), BPF_F_RECOMPUTE_CSUM);
	}
}

/* Bit of make_reply()'s `what`, beside the TCP flags. */
#define REPLY_TO_SENDER 0x100 /* else to the VM */

/* TTL or hop limit of a packet where no packet of its source was seen. */
#define REPLY_TTL 64

/* Rewrites the packet's addresses, headers and length. A packet that the host sends for the VM
 * takes next hop, TTL, traffic class and flow label from the VM's own packets (struct ack_fields).
 * Returns 0 on success. */
__noinline int make_reply(struct __sk_buff *skb, const struct packet *p, const struct flow_key *key,
			  const struct ack_fields *a, __u32 what)
{
	bool to_sender = what & REPLY_TO_SENDER, partial;
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	struct sack_option sack = {};
	__u32 sack_len, sack_at, tcp_len;
	__u8 flags = what;
	/* For bpf_skb_store_bytes(). With a store into the packet itself the kernel would begin
	 * both hooks with bpf_skb_pull_data(), for every packet that has a clone. */
	__u8 macs[2 * ETH_ALEN] __attribute__((aligned(4)));

	if (!p || !key || !a)
		return -1;
	/* A priority tag is its sender's own; no other tag may move into its place. */
	if (skb->vlan_present && !(skb->vlan_tci & VLAN_VID) && p->l3 == ETH_HLEN &&
	    bpf_skb_vlan_pop(skb))
		return -1;
	partial = BPF_CORE_READ_BITFIELD(k, ip_summed) == CHECKSUM_PARTIAL;
	sack_len = fill_sack(&sack, skb, p, a);
	sack_at = p->l4 + sizeof(struct tcphdr) + (a->timestamps ? TIMESTAMPS_BYTES : 0);
	tcp_len = sack_at - p->l4 + sack_len;

	if (skb->len != p->l4 + tcp_len && bpf_skb_change_tail(skb, p->l4 + tcp_len, 0))
		return -1;
	if (p->ipv6) {
		struct reply6 r = {};

		*(__be32 *)&r.ip = bpf_htonl(IPV6_VERSION | (to_sender ? a->traffic : 0));
		r.ip.payload_len = bpf_htons(tcp_len);
		r.ip.nexthdr = PROTOCOL_TCP;
		r.ip.hop_limit = a->ttl ? a->ttl : REPLY_TTL;
		copy_address((void *)&r.ip.saddr, to_sender ? key->vm_addr : key->sender_addr);
		copy_address((void *)&r.ip.daddr, to_sender ? key->sender_addr : key->vm_addr);
		fill_tcp(&r.tcp, &r.opt, key, to_sender, a, tcp_len, flags);
		fill_checksum(&r.tcp, a->timestamps ? &r.opt : 0, key, true, &sack, tcp_len,
			      partial);
		if (bpf_skb_store_bytes(skb, p->l3, &r,
					a->timestamps ? sizeof(r) : sizeof(r) - sizeof(r.opt),
					BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH))
			return -1;
	} else {
		struct reply4 r = {};

		*(__u8 *)&r.ip = IPV4_PLAIN;
		r.ip.tos = to_sender ? a->traffic >> 20 : 0;
		r.ip.tot_len = bpf_htons(sizeof(r.ip) + tcp_len);
		r.ip.frag_off = bpf_htons(IPV4_DONT_FRAGMENT);
		r.ip.ttl = a->ttl ? a->ttl : REPLY_TTL;
		r.ip.protocol = PROTOCOL_TCP;
		r.ip.saddr = ((__be32 *)(to_sender ? key->vm_addr : key->sender_addr))[3];
		r.ip.daddr = ((__be32 *)(to_sender ? key->sender_addr : key->vm_addr))[3];
		r.ip.check = ~fold(sum_words(&r.ip, 5));
		fill_tcp(&r.tcp, &r.opt, key, to_sender, a, tcp_len, flags);
		fill_checksum(&r.tcp, a->timestamps ? &r.opt : 0, key, false, &sack, tcp_len,
			      partial);
		if (bpf_skb_store_bytes(skb, p->l3, &r,
					a->timestamps ? sizeof(r) : sizeof(r) - sizeof(r.opt),
					BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH))
			return -1;
	}
	if (sack_len && store_sack(skb, sack_at, &sack, sack_len))
		return -1;
	copy_mac(macs, to_sender ? a->next_hop : key->vm_mac);
	copy_mac(macs + ETH_ALEN, to_sender ? key->vm_mac : a->next_hop);
	return bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0) ? -1 : 0;
}

static __always_inline void set_mark(struct __sk_buff *skb, __u32 mark)
{
	skb->mark = mark;
	/* Keeps clang from merging this with other stores to the context. */
	barrier_var(mark);
}

/* Turns the packet into a segment of the VM for the sender, and sends it. */
static __always_inline int reply_to_sender(struct __sk_buff *skb, const struct packet *p,
					   const struct flow_key *key, const struct ack_fields *a,
					   __u8 flags)
{
	if (make_reply(skb, p, key, a, REPLY_TO_SENDER | flags))
		return HOOK_DROP;
	set_mark(skb, MARK_REPLY);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* Turns the packet of the VM into a segment of the sender for the VM, and sends it. */
static __always_inline int reply_to_vm(struct __sk_buff *skb, const struct packet *p,
				       const struct flow_key *key, const struct ack_fields *a,
				       __u8 flags)
{
	if (make_reply(skb, p, key, a, flags))
		return HOOK_DROP;
	set_mark(skb, MARK_HANDED);
	return bpf_redirect(skb->ifindex, 0);
}

#endif
