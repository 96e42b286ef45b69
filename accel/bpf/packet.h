/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Parses an skb into a flow key and a segment.
 *
 * Understood: Ethernet with up to two VLAN tags (in the skb or in the frame), IPv4 without options
 * and unfragmented, IPv6 without extension headers, TCP with the options of RFC 9293, 7323 and
 * 2018. Everything else passes. Nothing is trusted: all lengths are checked against the packet, and
 * the packet against its lengths.
 */
#ifndef VSNOOP_BPF_PACKET_H
#define VSNOOP_BPF_PACKET_H

#include "header_fields.h"
#include "kernel.h"
#include "flow.h"

#define VLAN_VID 0x0fff

struct vlan_tag {
	__be16 tci;
	__be16 proto;
};
_Static_assert(sizeof(struct vlan_tag) == 4, "IEEE 802.1Q, section 9.6");

/* Offsets of headers, from the packet's first byte. */
struct packet {
	__u16 l3; /* IP header; 0: none was found. Valid where there is no TCP, too */
	__u16 l4;
	__u16 tcp_len; /* TCP header with options, bytes */
	__u16 sack; /* offset of the SACK option within the TCP header; 0: none */
	__u16 sack_len; /* length byte of the SACK option */
	__u16 timestamps; /* offset of TSval in the TCP header; 0: none, or unaligned */
	bool ipv6;
};

/* Sum of 32-bit words, to be folded. */
static __always_inline __u64 sum_words(const void *from, int words)
{
	const __u32 *w = from;
	__u64 sum = 0;
	int i;

#pragma unroll
	for (i = 0; i < words; i++)
		sum += w[i];
	return sum;
}

/* Folds a one's complement sum (RFC 1071). */
static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

enum parsed {
	PARSED_TCP = 0,
	PARSED_OTHER = 1, /* not a TCP segment that is understood */
	PARSED_MALFORMED = 2,
	PARSED_SHORT = 3, /* the headers are not all in the linear part */
};

/* The TCP options, copied out of the packet. */
struct options {
	struct segment *s;
	struct packet *p;
	__u32 len;
	__u32 at;
	__u8 bytes[64];
};
#define OPTION_BYTES_MASK 63 /* keeps an offset within `bytes`, for the verifier */
_Static_assert(sizeof(((struct options *)0)->bytes) == OPTION_BYTES_MASK + 1 &&
		       TCP_OPTIONS_MOST <= OPTION_BYTES_MASK,
	       "option_u32() would read other bytes of the options");

static __always_inline __u32 option_u32(const struct options *o, __u32 at)
{
	return (__u32)o->bytes[at & OPTION_BYTES_MASK] << 24 |
	       (__u32)o->bytes[(at + 1) & OPTION_BYTES_MASK] << 16 |
	       (__u32)o->bytes[(at + 2) & OPTION_BYTES_MASK] << 8 |
	       o->bytes[(at + 3) & OPTION_BYTES_MASK];
}

static __always_inline void option_sack(struct options *o, __u32 at, __u32 len)
{
	struct segment *s = o->s;
	__u32 i;

	if (len < 10 || (len - 2) % 8) {
		s->bits |= SEG_FOREIGN;
		return;
	}
	/* Senders put two NOPs before the option, and so its blocks on a word boundary (RFC 2018);
	 * at other offsets stale blocks cannot be removed (rewrite.h). */
	if (at % 4 != 2)
		s->bits |= SEG_SACK_ODD;
	o->p->sack = sizeof(struct tcphdr) + at;
	o->p->sack_len = len;
	s->bits |= SEG_SACK;
	s->sack_end = seq_of(option_u32(o, at + 6));
	for (i = 1; i < 4; i++)
		if (2 + 8 * i < len)
			s->sack_end = seq_max(s->sack_end, seq_of(option_u32(o, at + 6 + 8 * i)));
}

/* One option; 1 ends the walk. */
static long parse_option(__u32 i, struct options *o)
{
	__u32 at = o->at, kind, len;
	struct segment *s = o->s;

	if (at >= o->len || at >= TCP_OPTIONS_MOST)
		return 1;
	kind = o->bytes[at & OPTION_BYTES_MASK];
	if (kind == TCP_OPTION_END)
		return 1;
	if (kind == TCP_OPTION_NOP) {
		o->at = at + 1;
		return 0;
	}
	len = o->bytes[(at + 1) & OPTION_BYTES_MASK];
	if (at + 1 >= o->len || len < 2 || at + len > o->len) {
		s->bits |= SEG_FOREIGN;
		return 1;
	}
	if (kind == TCP_OPTION_TIMESTAMPS && len == 10) {
		s->bits |= SEG_TIMESTAMPS;
		s->tsval = option_u32(o, at + 2);
		s->tsecr = option_u32(o, at + 6);
		o->p->timestamps = at % 2 ? 0 : sizeof(struct tcphdr) + at + 2;
	} else if (kind == TCP_OPTION_SACK) {
		option_sack(o, at, len);
	} else if (kind == TCP_OPTION_SACK_PERMITTED && len == 2) {
		s->bits |= SEG_SACK_PERMITTED;
	} else if (kind == TCP_OPTION_SCALE && len == 3) {
		__u8 scale = o->bytes[(at + 2) & OPTION_BYTES_MASK];

		s->bits |= SEG_SCALE;
		s->scale = scale > 14 ? 14 : scale; /* RFC 7323, section 2.3 */
	} else if (kind != TCP_OPTION_MSS && kind != TCP_OPTION_FAST_OPEN) {
		/* Fast open (RFC 7413) is about data on the SYN. */
		s->bits |= SEG_FOREIGN;
	}
	o->at = at + len;
	return 0;
}

static __noinline bool parse_options(struct __sk_buff *skb, struct packet *p, struct segment *s)
{
	struct options o = { .s = s, .p = p };
	__u32 len = p->tcp_len - sizeof(struct tcphdr);

	if (len > TCP_OPTIONS_MOST)
		return false;
	/* In this order, as at all lengths that a helper gets: the verifier of Linux 7.3 has one
	 * range of values for each register, and 0 must be at its end to be left out. */
	barrier_var(len);
	if (len == 0)
		return true;
	if (bpf_skb_load_bytes(skb, p->l4 + sizeof(struct tcphdr), o.bytes, len))
		return false;
	o.len = len;
	bpf_loop(TCP_OPTIONS_MOST, parse_option, &o, 0);
	return true;
}

static __always_inline void copy_address(__u8 to[16], const void *from)
{
	const __u32 *w = from;

	((__u32 *)to)[0] = w[0];
	((__u32 *)to)[1] = w[1];
	((__u32 *)to)[2] = w[2];
	((__u32 *)to)[3] = w[3];
}

static __always_inline void map_address(__u8 to[16], __be32 from)
{
	((__u32 *)to)[0] = 0;
	((__u32 *)to)[1] = 0;
	((__u32 *)to)[2] = bpf_htonl(0xffff);
	((__u32 *)to)[3] = from;
}

/* Is this the address of an IPv4 packet (map_address())? */
static __always_inline bool is_mapped_ipv4(const __u8 addr[16])
{
	const __u32 *w = (const void *)addr;

	return !w[0] && !w[1] && w[2] == bpf_htonl(0xffff);
}

/* A packet on its way through the parser. */
struct parser {
	struct __sk_buff *skb;
	void *data;
	void *end;
	struct packet *p;
	struct flow_key *key;
	struct segment *s;
	__u32 l3; /* offset of the IP header */
	__u32 l4; /* offset of the TCP header */
	__u32 ip_len; /* IP header with payload, bytes */
	__be16 proto; /* EtherType behind the tags */
	__u8 ecn; /* of the IP header (RFC 3168) */
	bool to_vm;
};

/* The Ethernet header and at most two VLAN tags, of which one may be in the skb. */
static __always_inline enum parsed parse_ethernet(struct parser *c)
{
	struct flow_key *key = c->key;
	struct ethhdr *eth = c->data;
	struct vlan_tag *tag;
	bool outer = false;
	__u16 id;
	int i;

	key->vlan_outer = key->vlan_inner = key->zero = 0;
	/* VID 0 is a priority tag: the frame belongs to no VLAN (IEEE 802.1Q, section 6.9). */
	if (c->skb->vlan_present && c->skb->vlan_tci & VLAN_VID) {
		key->vlan_outer = (c->skb->vlan_tci & VLAN_VID) | VLAN_PRESENT;
		outer = true;
	}
	if ((void *)(eth + 1) > c->end)
		return PARSED_SHORT;
	copy_mac(key->vm_mac, c->to_vm ? eth->h_dest : eth->h_source);
	copy_mac(c->s->destination, eth->h_dest);
	c->proto = eth->h_proto;
	c->l3 = sizeof(*eth);
	for (i = 0; i < 2; i++) {
		if (c->proto != bpf_htons(ETH_P_8021Q) && c->proto != bpf_htons(ETH_P_8021AD))
			break;
		tag = c->data + c->l3;
		if ((void *)(tag + 1) > c->end)
			return PARSED_SHORT;
		id = bpf_ntohs(tag->tci) & VLAN_VID;
		c->proto = tag->proto;
		c->l3 += sizeof(*tag);
		if (!id)
			continue;
		id |= VLAN_PRESENT;
		if (!outer)
			key->vlan_outer = id;
		else if (!key->vlan_inner)
			key->vlan_inner = id;
		else
			return PARSED_OTHER; /* three tags */
		outer = true;
	}
	return PARSED_TCP;
}

static __always_inline enum parsed parse_ipv4(struct parser *c)
{
	struct iphdr *ip = c->data + c->l3;
	struct flow_key *key = c->key;

	if ((void *)(ip + 1) > c->end)
		return PARSED_SHORT;
	if (ip->protocol != PROTOCOL_TCP || *(__u8 *)ip != IPV4_PLAIN ||
	    ip->frag_off & bpf_htons(IPV4_IS_FRAGMENT))
		return PARSED_OTHER;
	/* The TCP checksum covers only a part of this header. */
	if (fold(sum_words(ip, 5)) != 0xffff)
		return PARSED_MALFORMED;
	c->ip_len = bpf_ntohs(ip->tot_len);
	c->ecn = ip->tos & ECN_MASK;
	c->s->traffic = (__u32)(ip->tos & ~ECN_MASK) << 20;
	c->s->ttl = ip->ttl;
	c->p->ipv6 = false;
	c->l4 = c->l3 + sizeof(*ip);
	map_address(c->to_vm ? key->sender_addr : key->vm_addr, ip->saddr);
	map_address(c->to_vm ? key->vm_addr : key->sender_addr, ip->daddr);
	return PARSED_TCP;
}

static __always_inline enum parsed parse_ipv6(struct parser *c)
{
	struct ipv6hdr *ip = c->data + c->l3;
	struct flow_key *key = c->key;

	if ((void *)(ip + 1) > c->end)
		return PARSED_SHORT;
	if (ip->nexthdr != PROTOCOL_TCP || *(__u8 *)ip >> 4 != 6)
		return PARSED_OTHER;
	c->ip_len = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	c->ecn = ip->flow_lbl[0] >> 4 & ECN_MASK;
	c->s->traffic = bpf_ntohl(*(__be32 *)ip) & IPV6_TRAFFIC_MASK;
	c->s->ttl = ip->hop_limit;
	c->p->ipv6 = true;
	c->l4 = c->l3 + sizeof(*ip);
	copy_address(c->to_vm ? key->sender_addr : key->vm_addr, &ip->saddr);
	copy_address(c->to_vm ? key->vm_addr : key->sender_addr, &ip->daddr);
	return PARSED_TCP;
}

static __always_inline enum parsed parse_tcp(struct parser *c)
{
	struct __sk_buff *skb = c->skb;
	struct flow_key *key = c->key;
	struct packet *p = c->p;
	struct segment *s = c->s;
	struct tcphdr *tcp = c->data + c->l4;
	__u32 l4_len, tcp_len;

	if ((void *)(tcp + 1) > c->end)
		return PARSED_SHORT;
	if (c->l3 + c->ip_len > skb->len)
		return PARSED_MALFORMED;
	l4_len = c->l3 + c->ip_len - c->l4;
	tcp_len = tcp->doff * 4;
	if (l4_len > 0xffff || tcp_len < sizeof(*tcp) || tcp_len > l4_len)
		return PARSED_MALFORMED;
	p->l3 = c->l3;
	p->l4 = c->l4;
	p->tcp_len = tcp_len;
	key->sender_port = c->to_vm ? tcp->source : tcp->dest;
	key->vm_port = c->to_vm ? tcp->dest : tcp->source;

	s->seq = seq_of(bpf_ntohl(tcp->seq));
	s->ack = seq_of(bpf_ntohl(tcp->ack_seq));
	s->len = l4_len - tcp_len;
	s->unit_len = skb->gso_size && skb->gso_size < s->len ? skb->gso_size : s->len;
	s->window = bpf_ntohs(tcp->window);
	s->tcp_flags = ((__u8 *)tcp)[TCP_BYTE_FLAGS];
	s->scale = 0;
	s->tsval = s->tsecr = 0;
	s->sack_end = seq_of(0);
	s->bits = c->ecn == ECN_CE ? SEG_CE : 0;
	if (((__u8 *)tcp)[TCP_BYTE_OFFSET] & TCP_RESERVED)
		s->bits |= SEG_FOREIGN;
	p->sack = p->sack_len = p->timestamps = 0;
	if (tcp_len == sizeof(*tcp))
		return PARSED_TCP;
	if (tcp_len == sizeof(*tcp) + TIMESTAMPS_BYTES) {
		__be32 *opt = (void *)(tcp + 1);

		/* NOP, NOP, timestamps: nearly all segments. */
		if ((void *)(opt + 3) <= c->end && opt[0] == bpf_htonl(TIMESTAMPS_HEAD)) {
			s->bits |= SEG_TIMESTAMPS;
			s->tsval = bpf_ntohl(opt[1]);
			s->tsecr = bpf_ntohl(opt[2]);
			p->timestamps = sizeof(*tcp) + 4;
			return PARSED_TCP;
		}
	}
	return parse_options(skb, p, s) ? PARSED_TCP : PARSED_MALFORMED;
}

/* Fills `p`, `s` and `key`, the key as seen from the sender whichever way the
 * packet goes. */
static __always_inline enum parsed parse(struct __sk_buff *skb, bool to_vm, struct packet *p,
					 struct flow_key *key, struct segment *s)
{
	struct parser c = {
		.skb = skb,
		.data = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
		.p = p,
		.key = key,
		.s = s,
		.to_vm = to_vm,
	};
	enum parsed parsed = parse_ethernet(&c);

	p->l3 = parsed == PARSED_TCP ? c.l3 : 0;
	if (parsed != PARSED_TCP)
		return parsed;
	if (c.proto == bpf_htons(ETH_P_IP))
		parsed = parse_ipv4(&c);
	else if (c.proto == bpf_htons(ETH_P_IPV6))
		parsed = parse_ipv6(&c);
	else
		parsed = PARSED_OTHER;
	return parsed == PARSED_TCP ? parse_tcp(&c) : parsed;
}

/* Calls parse(), and again after it has pulled the headers into the linear part, where they nearly
 * always are: pulling more than is missing would copy. A global function: the verifier proves it
 * once. */
__noinline enum parsed parse_packet(struct __sk_buff *skb, bool to_vm, struct packet *p,
				    struct flow_key *key, struct segment *s)
{
	__u32 want = sizeof(struct ethhdr) + 2 * sizeof(struct vlan_tag) + sizeof(struct ipv6hdr) +
		     sizeof(struct tcphdr);
	enum parsed parsed;
	int tries;

	if (!p || !key || !s)
		return PARSED_OTHER;
	p->l3 = 0;
	for (tries = 0; tries < 2; tries++) {
		parsed = parse(skb, to_vm, p, key, s);
		if (parsed != PARSED_SHORT)
			return parsed;
		if (want > skb->len)
			want = skb->len;
		if (bpf_skb_pull_data(skb, want))
			return PARSED_OTHER;
	}
	return PARSED_MALFORMED;
}

#endif
