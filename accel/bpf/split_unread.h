/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What is for the sockets of split connections, and is not read as a segment (packet.h): ICMP
 * messages, and TCP segments in fragments.
 */
#ifndef VSNOOP_BPF_SPLIT_UNREAD_H
#define VSNOOP_BPF_SPLIT_UNREAD_H

#include "packet.h"

#define ICMP_BYTES 8
#define ICMP_UNREACHABLE 3
#define ICMPV6_UNREACHABLE 1
#define ICMPV6_TOO_BIG 2

/* The begin of an ICMP message: its headers, and those of the quoted segment up to the ports. */
struct quote4 {
	struct iphdr ip;
	__u8 icmp[ICMP_BYTES];
	struct iphdr quoted;
	__be16 ports[2];
};

struct quote6 {
	struct ipv6hdr ip;
	__u8 icmp[ICMP_BYTES];
	struct ipv6hdr quoted;
	__be16 ports[2];
};
_Static_assert(sizeof(struct quote4) == 2 * sizeof(struct iphdr) + ICMP_BYTES + 4 &&
		       sizeof(struct quote6) == 2 * sizeof(struct ipv6hdr) + ICMP_BYTES + 4,
	       "RFC 792 and RFC 4443: no gaps");

/* Both read the key of the quoted segment as one of the VM. */
static __always_inline bool read_quote4(struct __sk_buff *skb, __u32 l3, struct flow_key *key)
{
	struct quote4 q;

	if (bpf_skb_load_bytes(skb, l3, &q, sizeof(q)) || *(__u8 *)&q.ip != IPV4_PLAIN ||
	    q.ip.protocol != PROTOCOL_ICMP || q.icmp[0] != ICMP_UNREACHABLE ||
	    *(__u8 *)&q.quoted != IPV4_PLAIN || q.quoted.protocol != PROTOCOL_TCP)
		return false;
	map_address(key->vm_addr, q.quoted.saddr);
	map_address(key->sender_addr, q.quoted.daddr);
	key->vm_port = q.ports[0];
	key->sender_port = q.ports[1];
	return true;
}

static __always_inline bool read_quote6(struct __sk_buff *skb, __u32 l3, struct flow_key *key)
{
	struct quote6 q;

	if (bpf_skb_load_bytes(skb, l3, &q, sizeof(q)) || *(__u8 *)&q.ip >> 4 != 6 ||
	    q.ip.nexthdr != PROTOCOL_ICMPV6 ||
	    (q.icmp[0] != ICMPV6_UNREACHABLE && q.icmp[0] != ICMPV6_TOO_BIG) ||
	    *(__u8 *)&q.quoted >> 4 != 6 || q.quoted.nexthdr != PROTOCOL_TCP)
		return false;
	copy_address(key->vm_addr, &q.quoted.saddr);
	copy_address(key->sender_addr, &q.quoted.daddr);
	key->vm_port = q.ports[0];
	key->sender_port = q.ports[1];
	return true;
}

#define IPV6_FRAGMENT 44
#define IPV6_FRAGMENT_OFFSET 0xfff8
#define FRAGMENT_BYTES 8

struct fragment6 {
	struct ipv6hdr ip;
	__u8 next;
	__u8 reserved;
	__be16 offset; /* with flags */
	__be32 identification;
};
_Static_assert(sizeof(struct fragment6) == sizeof(struct ipv6hdr) + FRAGMENT_BYTES &&
		       __builtin_offsetof(struct fragment6, offset) == sizeof(struct ipv6hdr) + 2,
	       "RFC 8200, section 4.5");

static __always_inline bool is_later_fragment(struct __sk_buff *skb, __u32 l3)
{
	struct fragment6 six;
	struct iphdr four;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return !bpf_skb_load_bytes(skb, l3, &four, sizeof(four)) &&
		       four.protocol == PROTOCOL_TCP &&
		       four.frag_off & bpf_htons(IPV4_FRAGMENT_OFFSET);
	return !bpf_skb_load_bytes(skb, l3, &six, sizeof(six)) && six.ip.nexthdr == IPV6_FRAGMENT &&
	       six.next == PROTOCOL_TCP && six.offset & bpf_htons(IPV6_FRAGMENT_OFFSET);
}

/* Reads the IP header of a first fragment of TCP. */
static __always_inline bool read_first4(struct __sk_buff *skb, bool to_vm, struct packet *p,
					struct flow_key *key, struct segment *s)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, p->l3, &ip, sizeof(ip)) || *(__u8 *)&ip != IPV4_PLAIN ||
	    ip.protocol != PROTOCOL_TCP ||
	    (ip.frag_off & bpf_htons(IPV4_IS_FRAGMENT)) != bpf_htons(IPV4_MORE_FRAGMENTS))
		return false;
	map_address(to_vm ? key->sender_addr : key->vm_addr, ip.saddr);
	map_address(to_vm ? key->vm_addr : key->sender_addr, ip.daddr);
	s->traffic = (__u32)(ip.tos & ~ECN_MASK) << 20;
	s->ttl = ip.ttl;
	p->ipv6 = false;
	p->l4 = p->l3 + sizeof(ip);
	return true;
}

static __always_inline bool read_first6(struct __sk_buff *skb, bool to_vm, struct packet *p,
					struct flow_key *key, struct segment *s)
{
	struct fragment6 six;

	if (bpf_skb_load_bytes(skb, p->l3, &six, sizeof(six)) || six.ip.nexthdr != IPV6_FRAGMENT ||
	    six.next != PROTOCOL_TCP || six.offset & bpf_htons(IPV6_FRAGMENT_OFFSET))
		return false;
	copy_address(to_vm ? key->sender_addr : key->vm_addr, &six.ip.saddr);
	copy_address(to_vm ? key->vm_addr : key->sender_addr, &six.ip.daddr);
	s->traffic = bpf_ntohl(*(__be32 *)&six.ip) & IPV6_TRAFFIC_MASK;
	s->ttl = six.ip.hop_limit;
	p->ipv6 = true;
	p->l4 = p->l3 + sizeof(six);
	return true;
}

/* Reads the IP and TCP headers of a first fragment, after parse_packet() has read the Ethernet
 * header. The sockets' kernel verifies the checksum, when it has all fragments. */
static __noinline bool read_first_fragment(struct __sk_buff *skb, bool to_vm, struct packet *p,
					   struct flow_key *key, struct segment *s)
{
	struct tcphdr tcp;

	if (p->l3 != ETH_HLEN)
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP) ? !read_first4(skb, to_vm, p, key, s) :
						   !read_first6(skb, to_vm, p, key, s))
		return false;
	if (bpf_skb_load_bytes(skb, p->l4, &tcp, sizeof(tcp)) || tcp.doff * 4 < sizeof(tcp))
		return false;
	key->sender_port = to_vm ? tcp.source : tcp.dest;
	key->vm_port = to_vm ? tcp.dest : tcp.source;
	p->tcp_len = tcp.doff * 4;
	p->timestamps = 0;
	s->seq = seq_of(bpf_ntohl(tcp.seq));
	s->ack = seq_of(bpf_ntohl(tcp.ack_seq));
	s->bits = 0;
	s->tsval = 0;
	return parse_options(skb, p, s);
}

#endif
