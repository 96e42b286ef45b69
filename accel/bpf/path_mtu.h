/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reports of the VM that a packet is larger than the path behind it: ICMP "fragmentation needed"
 * (RFC 1191), ICMPv6 "packet too big" (RFC 8201).
 *
 * The report quotes a segment that the host may have acknowledged since. The sender would ignore
 * it then (RFC 5927, section 4.1: SEQ is below SND.UNA), and send on in the old size. So the quoted
 * SEQ is replaced by one within the sender's window. A report that cannot be verified passes
 * untouched.
 */
#ifndef VSNOOP_BPF_PATH_MTU_H
#define VSNOOP_BPF_PATH_MTU_H

#include "decide.h"
#include "handover.h"

#define ICMP_BYTES 8
#define ICMP_UNREACHABLE 3
#define ICMP_FRAGMENTATION_NEEDED 4 /* code of ICMP_UNREACHABLE */
#define ICMPV6_TOO_BIG 2
#define ICMP_OFFSET_CHECK 2
/* The quote always has ports and SEQ of the TCP header (RFC 792). */
#define QUOTED_TCP_BYTES 8
_Static_assert(TCP_OFFSET_SEQ + sizeof(((struct tcphdr *)0)->seq) == QUOTED_TCP_BYTES,
	       "read_quoted_tcp() reads SEQ");
#define REPORT4_BYTES (2 * sizeof(struct iphdr) + ICMP_BYTES + QUOTED_TCP_BYTES)
#define REPORT6_BYTES (2 * sizeof(struct ipv6hdr) + ICMP_BYTES + QUOTED_TCP_BYTES)
_Static_assert(REPORT4_BYTES <= sizeof(struct scratch) && REPORT6_BYTES <= sizeof(struct scratch),
	       "a report is read into the buffer for checksums");
/* Smallest MTU that is believed: RFC 791's for hosts, RFC 8200's for links. */
#define LEAST_MTU4 576
#define LEAST_MTU6 1280

/* Offsets from the packet's first byte, and sizes, of a report. */
struct report {
	__u32 icmp; /* ICMP header */
	__u32 icmp_len; /* ICMP message, bytes */
	__u32 tcp; /* quoted TCP header */
	__u64 pseudo; /* sum of the pseudo-header */
	struct too_big said;
};

/* The ICMP header of a report (RFC 1191, section 4). */
struct icmp_too_big {
	__u8 type;
	__u8 code;
	__be16 check;
	__be16 unused;
	__be16 mtu;
};

/* The ICMPv6 header of a report (RFC 4443, section 3.2). */
struct icmpv6_too_big {
	__u8 type;
	__u8 code;
	__be16 check;
	__be32 mtu;
};
_Static_assert(sizeof(struct icmp_too_big) == ICMP_BYTES &&
		       sizeof(struct icmpv6_too_big) == ICMP_BYTES &&
		       __builtin_offsetof(struct icmp_too_big, check) == ICMP_OFFSET_CHECK &&
		       __builtin_offsetof(struct icmpv6_too_big, check) == ICMP_OFFSET_CHECK,
	       "the headers of a report have gaps");

/* Ports and SEQ of the quoted segment of the sender. */
static __always_inline void read_quoted_tcp(const struct tcphdr *tcp, struct flow_key *key,
					    struct report *r)
{
	key->sender_port = tcp->source;
	key->vm_port = tcp->dest;
	r->said.seq = seq_of(bpf_ntohl(tcp->seq));
}

/* `bytes`: the IP header and what follows, in a buffer of the CPU. */
static __always_inline bool read_report4(__u32 l3, const void *bytes, struct flow_key *key,
					 struct report *r)
{
	const struct iphdr *ip = bytes, *quoted;
	const struct icmp_too_big *icmp = (const void *)(ip + 1);
	__u32 len = bpf_ntohs(ip->tot_len);

	quoted = (const void *)(icmp + 1);
	if (*(const __u8 *)ip != IPV4_PLAIN || ip->protocol != PROTOCOL_ICMP ||
	    ip->frag_off & bpf_htons(IPV4_IS_FRAGMENT) || icmp->type != ICMP_UNREACHABLE ||
	    icmp->code != ICMP_FRAGMENTATION_NEEDED || len < REPORT4_BYTES ||
	    fold(sum_words(ip, 5)) != 0xffff)
		return false;
	/* A whole segment or its first fragment, of the host that is told. */
	if (*(const __u8 *)quoted != IPV4_PLAIN || quoted->protocol != PROTOCOL_TCP ||
	    quoted->frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET) || quoted->saddr != ip->daddr)
		return false;
	r->icmp = l3 + sizeof(*ip);
	r->icmp_len = len - sizeof(*ip);
	r->tcp = r->icmp + sizeof(*icmp) + sizeof(*quoted);
	r->said.mtu = bpf_ntohs(icmp->mtu);
	r->said.least = LEAST_MTU4;
	r->said.headers = sizeof(*quoted) + sizeof(struct tcphdr);
	map_address(key->sender_addr, quoted->saddr);
	map_address(key->vm_addr, quoted->daddr);
	read_quoted_tcp((const void *)(quoted + 1), key, r);
	return true;
}

static __always_inline bool read_report6(__u32 l3, const void *bytes, struct flow_key *key,
					 struct report *r)
{
	const struct ipv6hdr *ip = bytes, *quoted;
	const struct icmpv6_too_big *icmp = (const void *)(ip + 1);
	const __be32 *told = ip->daddr.in6_u.u6_addr32, *source;
	__u32 len = bpf_ntohs(ip->payload_len), i;

	quoted = (const void *)(icmp + 1);
	source = quoted->saddr.in6_u.u6_addr32;
	if (*(const __u8 *)ip >> 4 != 6 || ip->nexthdr != PROTOCOL_ICMPV6 ||
	    icmp->type != ICMPV6_TOO_BIG || icmp->code != 0 || len < REPORT6_BYTES - sizeof(*ip) ||
	    *(const __u8 *)quoted >> 4 != 6 || quoted->nexthdr != PROTOCOL_TCP)
		return false;
#pragma unroll
	for (i = 0; i < 4; i++)
		if (source[i] != told[i])
			return false;
	r->icmp = l3 + sizeof(*ip);
	r->icmp_len = len;
	r->tcp = r->icmp + sizeof(*icmp) + sizeof(*quoted);
	/* Both addresses. */
	r->pseudo = sum_words(&ip->saddr, 8) + bpf_htonl(len) + bpf_htonl(PROTOCOL_ICMPV6);
	r->said.mtu = bpf_ntohl(icmp->mtu);
	r->said.least = LEAST_MTU6;
	r->said.headers = sizeof(*quoted) + sizeof(struct tcphdr);
	copy_address(key->sender_addr, &quoted->saddr);
	copy_address(key->vm_addr, &quoted->daddr);
	read_quoted_tcp((const void *)(quoted + 1), key, r);
	return true;
}

/* Reads a report, and verifies its checksum. `key`: has the VM's MAC and tags. */
static __noinline int read_report(struct __sk_buff *skb, const struct packet *p,
				  struct flow_key *key, struct report *r)
{
	struct scratch *buffer;
	__u32 zero = 0, l3;
	__be16 proto;

	buffer = bpf_map_lookup_elem(&scratch, &zero);
	l3 = p->l3;
	if (!buffer || l3 < ETH_HLEN || bpf_skb_load_bytes(skb, l3 - 2, &proto, sizeof(proto)))
		return 0;
	if (proto == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, l3, buffer->bytes, REPORT4_BYTES) ||
		    !read_report4(l3, buffer->bytes, key, r))
			return 0;
	} else if (proto == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, l3, buffer->bytes, REPORT6_BYTES) ||
		    !read_report6(l3, buffer->bytes, key, r))
			return 0;
	} else {
		return 0;
	}
	return r->icmp + r->icmp_len <= skb->len && sums_up(skb, r->icmp, r->icmp_len, r->pseudo);
}

/* Replaces the quoted SEQ. Where the quoted checksum is there, it changes by the opposite, and the
 * ICMP checksum stays right; else the ICMP checksum is updated. */
static __always_inline int rewrite_quoted_seq(struct __sk_buff *skb, const struct report *r,
					      struct seq seq)
{
	bool has_check = r->tcp + TCP_OFFSET_CHECK + 2 <= r->icmp + r->icmp_len;
	__be32 old = bpf_htonl(r->said.seq.v), new = bpf_htonl(seq.v);
	__s64 diff = bpf_csum_diff(&old, sizeof(old), &new, sizeof(new), 0);

	if (diff < 0 || bpf_skb_store_bytes(skb, r->tcp + TCP_OFFSET_SEQ, &new, sizeof(new), 0))
		return -1;
	return bpf_l4_csum_replace(
		skb, has_check ? r->tcp + TCP_OFFSET_CHECK : r->icmp + ICMP_OFFSET_CHECK, 0, diff,
		0);
}

/* A packet of the VM that is no TCP segment: is it a report about a connection on record? `p`,
 * `key`: as parse_packet() has left them. */
__noinline int report_of_vm(struct __sk_buff *skb, struct port *port, const struct packet *p,
			    struct flow_key *key, struct outcome *out)
{
	struct report r = {};

	if (!port || !p || !key || !out || !p->l3 || !read_report(skb, p, key, &r) ||
	    !decide_too_big(port, key, &r.said, out) || seq_eq(out->ack.seq, r.said.seq))
		return HOOK_NEXT;
	return rewrite_quoted_seq(skb, &r, out->ack.seq) ? HOOK_DROP : HOOK_NEXT;
}

#endif
