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
#define ICMP_OFFSET_CHECK 2
/* Of the quoted TCP header, ports and SEQ are always there (RFC 792). */
#define QUOTED_TCP_BYTES 8
#define QUOTE_OFFSET_SEQ 4
#define QUOTE_OFFSET_CHECK 16
#define REPORT4_BYTES (2 * sizeof(struct iphdr) + ICMP_BYTES + QUOTED_TCP_BYTES)
#define REPORT6_BYTES (2 * sizeof(struct ipv6hdr) + ICMP_BYTES + QUOTED_TCP_BYTES)
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

static __always_inline __u32 word_at(const __u8 *bytes)
{
	return *(const __u32 *)bytes;
}

static __always_inline __u16 half_at(const __u8 *bytes)
{
	return *(const __u16 *)bytes;
}

/* Ports and SEQ of the quoted segment of the sender. */
static __always_inline void read_quoted_tcp(const __u8 *tcp, struct flow_key *key, struct report *r)
{
	key->sender_port = half_at(tcp);
	key->vm_port = half_at(tcp + 2);
	r->said.seq = seq_of(bpf_ntohl(word_at(tcp + QUOTE_OFFSET_SEQ)));
}

/* `b`: the IP header and what follows, in a buffer of the CPU. */
static __always_inline bool read_report4(__u32 l3, const __u8 *b, struct flow_key *key,
					 struct report *r)
{
	const __u8 *icmp = b + sizeof(struct iphdr), *quoted = icmp + ICMP_BYTES;
	__u32 len = bpf_ntohs(half_at(b + 2));

	if (b[0] != 0x45 || b[9] != 1 || half_at(b + 6) & bpf_htons(0x3fff) || icmp[0] != 3 ||
	    icmp[1] != 4 || len < REPORT4_BYTES || fold(sum_words(b, 5)) != 0xffff)
		return false;
	/* A whole segment or its first fragment, of the host that is told. */
	if (quoted[0] != 0x45 || quoted[9] != 6 || half_at(quoted + 6) & bpf_htons(0x1fff) ||
	    word_at(quoted + 12) != word_at(b + 16))
		return false;
	r->icmp = l3 + sizeof(struct iphdr);
	r->icmp_len = len - sizeof(struct iphdr);
	r->tcp = r->icmp + ICMP_BYTES + sizeof(struct iphdr);
	r->said.mtu = bpf_ntohs(half_at(icmp + 6));
	r->said.least = LEAST_MTU4;
	r->said.headers = sizeof(struct iphdr) + sizeof(struct tcphdr);
	map_address(key->sender_addr, word_at(quoted + 12));
	map_address(key->vm_addr, word_at(quoted + 16));
	read_quoted_tcp(quoted + sizeof(struct iphdr), key, r);
	return true;
}

static __always_inline bool read_report6(__u32 l3, const __u8 *b, struct flow_key *key,
					 struct report *r)
{
	const __u8 *icmp = b + sizeof(struct ipv6hdr), *quoted = icmp + ICMP_BYTES;
	__u32 len = bpf_ntohs(half_at(b + 4)), i;

	if (b[0] >> 4 != 6 || b[6] != 58 || icmp[0] != 2 || icmp[1] != 0 ||
	    len < REPORT6_BYTES - sizeof(struct ipv6hdr) || quoted[0] >> 4 != 6 || quoted[6] != 6)
		return false;
#pragma unroll
	for (i = 0; i < 16; i += 4)
		if (word_at(quoted + 8 + i) != word_at(b + 24 + i))
			return false;
	r->icmp = l3 + sizeof(struct ipv6hdr);
	r->icmp_len = len;
	r->tcp = r->icmp + ICMP_BYTES + sizeof(struct ipv6hdr);
	r->pseudo = sum_words(b + 8, 8) + bpf_htonl(len) + bpf_htonl(58);
	r->said.mtu = bpf_ntohl(word_at(icmp + 4));
	r->said.least = LEAST_MTU6;
	r->said.headers = sizeof(struct ipv6hdr) + sizeof(struct tcphdr);
	copy_address(key->sender_addr, quoted + 8);
	copy_address(key->vm_addr, quoted + 24);
	read_quoted_tcp(quoted + sizeof(struct ipv6hdr), key, r);
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
	bool has_check = r->tcp + QUOTE_OFFSET_CHECK + 2 <= r->icmp + r->icmp_len;
	__be32 old = bpf_htonl(r->said.seq.v), new = bpf_htonl(seq.v);
	__s64 diff = bpf_csum_diff(&old, sizeof(old), &new, sizeof(new), 0);

	if (diff < 0 || bpf_skb_store_bytes(skb, r->tcp + QUOTE_OFFSET_SEQ, &new, sizeof(new), 0))
		return -1;
	return bpf_l4_csum_replace(
		skb, has_check ? r->tcp + QUOTE_OFFSET_CHECK : r->icmp + ICMP_OFFSET_CHECK, 0, diff,
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
