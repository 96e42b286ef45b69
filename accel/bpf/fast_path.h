/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fast path: the usual segments of flows with a lease, to the VM (flow/lease.h) and from it
 * (flow/vm_lease.h).
 *
 * It is part of the programs on the tap, which know their port's own maps, and runs before the
 * shared programs are called. Under traffic most of what a packet costs are cache misses, of code
 * too: so it is short, and knows one form of segment only. All others take the usual way
 * (vsnoop.bpf.c).
 *
 * Checksums are not verified here, since nothing is acknowledged: a damaged segment that continues
 * the flow counts as handed over, and is repeated by its sender, as one that the guest itself has
 * lost. Of a flow with a lease the host has no copies that a damaged ACK could free.
 */
#ifndef VSNOOP_BPF_FAST_PATH_H
#define VSNOOP_BPF_FAST_PATH_H

#include "header_fields.h"
#include "kernel.h"
#include "lease.h"
#include "marks.h"
#include "vm_lease.h"

/* Two words of a key: it is written in words of the size in which it is hashed and compared. */
typedef __u64 __attribute__((may_alias)) key_word;

_Static_assert(sizeof(struct flow_key) == 6 * sizeof(key_word) &&
		       __builtin_offsetof(struct flow_key, vm_addr) == 2 * sizeof(key_word) &&
		       __builtin_offsetof(struct flow_key, sender_port) == 4 * sizeof(key_word) &&
		       __builtin_offsetof(struct flow_key, vm_port) == 4 * sizeof(key_word) + 2 &&
		       __builtin_offsetof(struct flow_key, vlan_outer) ==
			       4 * sizeof(key_word) + 4 &&
		       __builtin_offsetof(struct flow_key, vm_mac) == 5 * sizeof(key_word),
	       "read_usual() writes a key as six words");

/* IPv4 and TCP headers of the usual form, with timestamps. */
#define USUAL_HEADERS ((__u32)(sizeof(struct iphdr) + sizeof(struct tcphdr) + TIMESTAMPS_BYTES))
/* First word of TCP, counted from IPv4 of 20 bytes. */
#define USUAL_TCP (sizeof(struct iphdr) / sizeof(__be32))
#define USUAL_PORTS (USUAL_TCP + TCP_WORD_PORTS)

/* VLAN ID of a tag; 0: a priority tag, which is no VLAN. */
#define USUAL_VID 0x0fff

/* ::ffff:a.b.c.d, the second word of an address. */
#define MAPPED_IPV4(addr) ((__u64)bpf_htonl(0xffff) | (__u64)(addr) << 32)

/* Reads a segment of the usual form: Ethernet without a VLAN tag, IPv4 without options, TCP with
 * timestamps behind two NOPs. Only the fields that decisions about leases read are filled in. */
static __always_inline bool read_usual(const struct __sk_buff *skb, bool to_vm,
				       struct flow_key *key, struct segment *s)
{
	const struct ethhdr *eth = (void *)(long)skb->data;
	const struct iphdr *ip = (const void *)(eth + 1);
	const struct tcphdr *tcp = (const void *)(ip + 1);
	const __be32 *options = (const void *)(tcp + 1), *word = (const void *)ip;
	const __u8 *mac = to_vm ? eth->h_dest : eth->h_source;
	key_word *k = (void *)key;
	__u32 len = skb->len - (__u32)sizeof(*eth);

	if ((void *)(options + 3) > (void *)(long)skb->data_end ||
	    (skb->vlan_present && skb->vlan_tci & USUAL_VID))
		return false;
	/* IPv4 of 20 bytes, and no more bytes than it says; not a fragment, TCP; no congestion
	 * experienced; TCP of 32 bytes, no reserved bits. */
	if (eth->h_proto != bpf_htons(ETH_P_IP) ||
	    (word[IPV4_WORD_LENGTHS] & bpf_htonl(IPV4_LENGTHS_MASK)) !=
		    bpf_htonl(IPV4_LENGTHS_PLAIN | (len & IPV4_LENGTH_MASK)) ||
	    (word[IPV4_WORD_PROTOCOL] & bpf_htonl(IPV4_PROTOCOL_MASK)) !=
		    bpf_htonl(IPV4_PROTOCOL_TCP) ||
	    ip->frag_off & bpf_htons(IPV4_IS_FRAGMENT) || (ip->tos & ECN_MASK) == ECN_CE ||
	    (word[USUAL_TCP + TCP_WORD_OFFSET] & bpf_htonl(TCP_OFFSET_MASK)) !=
		    bpf_htonl(TCP_OFFSET_8_WORDS) ||
	    options[0] != bpf_htonl(TIMESTAMPS_HEAD) || len > IPV4_LENGTH_MASK ||
	    len < USUAL_HEADERS)
		return false;
	s->len = len - USUAL_HEADERS;
	s->unit_len = skb->gso_size && skb->gso_size < s->len ? skb->gso_size : s->len;
	s->tcp_flags = ((const __u8 *)tcp)[TCP_BYTE_FLAGS];
	s->bits = SEG_TIMESTAMPS;
	s->seq = seq_of(bpf_ntohl(tcp->seq));
	s->ack = seq_of(bpf_ntohl(tcp->ack_seq));
	s->window = bpf_ntohs(tcp->window);
	s->tsval = bpf_ntohl(options[1]);
	s->tsecr = bpf_ntohl(options[2]);
	k[0] = k[2] = 0;
	k[1] = MAPPED_IPV4(to_vm ? ip->saddr : ip->daddr);
	k[3] = MAPPED_IPV4(to_vm ? ip->daddr : ip->saddr);
	/* Both ports; no VLAN. */
	k[4] = to_vm ? word[USUAL_PORTS] : word[USUAL_PORTS] << 16 | word[USUAL_PORTS] >> 16;
	k[5] = *(const __u32 *)mac | (__u64) * (const __u16 *)(mac + 4) << 32;
	return true;
}

/* Reads the packet if the port's flows have leases in this jiffy. `stats`: the port's own map.
 * Returns the counters, or null if the packet takes the usual way. */
static __always_inline struct port_stats *read_for_lease(const struct __sk_buff *skb, bool to_vm,
							 void *stats, __u64 jiffy,
							 struct flow_key *key, struct segment *s)
{
	struct port_stats *st;
	__u32 zero = 0;

	st = bpf_map_lookup_elem(stats, &zero);
	/* First: a port whose flows have no leases pays for no more. */
	if (!st || st->lease_jiffy != jiffy || skb->mark & MARK_MASK ||
	    !read_usual(skb, to_vm, key, s))
		return 0;
	return st;
}

/* Passes a segment to the VM that a lease covers, and updates record and counters. `flows`,
 * `stats`: the port's own maps. Returns false if the segment must take the usual way. */
static __always_inline bool fast_to_vm(const struct __sk_buff *skb, void *flows, void *stats)
{
	__u64 jiffy = bpf_jiffies64();
	struct port_stats *st;
	struct flow_key key;
	struct segment s;
	struct flow *f;

	st = read_for_lease(skb, true, stats, jiffy, &key, &s);
	if (!st)
		return false;
	f = bpf_map_lookup_elem(flows, &key);
	if (!f || !flow_lease_covers(f, &s, jiffy))
		return false;
	f->high_seq = seq_add(s.seq, s.len);
	st->to_vm_packets++;
	st->to_vm_bytes += skb->len;
	st->passive++;
	return true;
}

/* Passes an ACK of the VM that a lease covers, and updates record and counters. `flows`, `stats`:
 * the port's own maps. Returns false if the ACK must take the usual way. */
static __always_inline bool fast_from_vm(const struct __sk_buff *skb, void *flows, void *stats)
{
	__u64 jiffy = bpf_jiffies64();
	struct port_stats *st;
	struct flow_key key;
	struct segment s;
	struct flow *f;

	st = read_for_lease(skb, false, stats, jiffy, &key, &s);
	if (!st)
		return false;
	f = bpf_map_lookup_elem(flows, &key);
	/* The clock only where there is a lease. */
	if (!f || f->vm_lease != (__u32)jiffy ||
	    !flow_pass_by_vm_lease(f, &s, jiffy, bpf_ktime_get_ns()))
		return false;
	st->from_vm_packets++;
	st->from_vm_bytes += skb->len;
	return true;
}

#endif
