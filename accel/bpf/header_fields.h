/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fields of IPv4 and TCP headers that are read, compared or written as whole words, and the layouts
 * that this depends on. All values in host byte order.
 */
#ifndef VSNOOP_BPF_HEADER_FIELDS_H
#define VSNOOP_BPF_HEADER_FIELDS_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#define PROTOCOL_ICMP 1
#define PROTOCOL_TCP 6
#define PROTOCOL_ICMPV6 58

/* First byte of an IPv4 header of 20 bytes: version 4, 5 words. */
#define IPV4_PLAIN 0x45
/* `frag_off`: DF, MF and the offset. A packet that has MF or an offset is a fragment. */
#define IPV4_DONT_FRAGMENT 0x4000
#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV4_IS_FRAGMENT (IPV4_MORE_FRAGMENTS | IPV4_FRAGMENT_OFFSET)
/* ECN bits of TOS or traffic class (RFC 3168). */
#define ECN_MASK 3
#define ECN_CE 3

/* Word 0 of an IPv4 header: version and length of the header, TOS, total length. */
#define IPV4_WORD_LENGTHS 0
#define IPV4_LENGTHS_MASK 0xff00ffff /* all but TOS */
#define IPV4_LENGTHS_PLAIN ((__u32)IPV4_PLAIN << 24)
#define IPV4_LENGTH_MASK 0x0000ffff /* total length */
/* Word 2: TTL, protocol, checksum. */
#define IPV4_WORD_PROTOCOL 2
#define IPV4_PROTOCOL_MASK 0x00ff0000
#define IPV4_PROTOCOL_TCP ((__u32)PROTOCOL_TCP << 16)

/* First word of an IPv6 header: version, traffic class, flow label. */
#define IPV6_VERSION 0x60000000
/* The part of it that `traffic` of struct segment has: all but version and ECN. */
#define IPV6_TRAFFIC_MASK 0x0fcfffff

/* Words of a TCP header. */
#define TCP_WORD_PORTS 0
#define TCP_WORD_OFFSET 3 /* data offset, reserved bits, flags, window */
#define TCP_OFFSET_MASK 0xff000000 /* data offset and reserved bits */
#define TCP_OFFSET_8_WORDS 0x80000000 /* 32 bytes: timestamps alone; no reserved bits */
#define TCP_NOT_WINDOW 0xffff0000 /* all but the window */
/* Bytes of it. */
#define TCP_BYTE_OFFSET 12 /* data offset and reserved bits */
#define TCP_BYTE_FLAGS 13
#define TCP_RESERVED 0x0f /* of TCP_BYTE_OFFSET: AE (RFC 9768) and reserved bits */
/* Offsets of fields that are replaced. */
#define TCP_OFFSET_SEQ 4
#define TCP_OFFSET_ACK 8
#define TCP_OFFSET_CHECK 16

/* Kinds of TCP options (IANA, "TCP Option Kind Numbers"). */
#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_MSS 2
#define TCP_OPTION_SCALE 3
#define TCP_OPTION_SACK_PERMITTED 4
#define TCP_OPTION_SACK 5
#define TCP_OPTION_TIMESTAMPS 8
#define TCP_OPTION_FAST_OPEN 34
/* All options together have at most this length, bytes: the data offset counts to 15 words. */
#define TCP_OPTIONS_MOST 40
/* The MSS option's first half: kind 2, length 4. */
#define TCP_MSS_HEAD 0x0204

/* Begin of the timestamps option, as nearly all segments have it: NOP, NOP, kind 8, length 10. */
#define TIMESTAMPS_HEAD 0x0101080a
#define TIMESTAMPS_BYTES 12 /* with both NOPs */
/* Begin of the SACK option: NOP, NOP, kind 5, and a length that is to be added. */
#define SACK_HEAD 0x01010500
#define FOUR_NOPS 0x01010101

_Static_assert(sizeof(struct ethhdr) == ETH_HLEN &&
		       __builtin_offsetof(struct ethhdr, h_dest) == 0 &&
		       __builtin_offsetof(struct ethhdr, h_source) == ETH_ALEN &&
		       __builtin_offsetof(struct ethhdr, h_proto) == 2 * ETH_ALEN,
	       "IEEE 802.3, section 3.1.1");
_Static_assert(sizeof(struct iphdr) == 20 && __builtin_offsetof(struct iphdr, tot_len) == 2 &&
		       __builtin_offsetof(struct iphdr, frag_off) == 6 &&
		       __builtin_offsetof(struct iphdr, protocol) == 4 * IPV4_WORD_PROTOCOL + 1 &&
		       __builtin_offsetof(struct iphdr, saddr) == 12 &&
		       __builtin_offsetof(struct iphdr, daddr) == 16,
	       "RFC 791, section 3.1");
_Static_assert(sizeof(struct ipv6hdr) == 40 &&
		       __builtin_offsetof(struct ipv6hdr, payload_len) == 4 &&
		       __builtin_offsetof(struct ipv6hdr, nexthdr) == 6 &&
		       __builtin_offsetof(struct ipv6hdr, hop_limit) == 7 &&
		       __builtin_offsetof(struct ipv6hdr, saddr) == 8 &&
		       __builtin_offsetof(struct ipv6hdr, daddr) == 24,
	       "RFC 8200, section 3");
_Static_assert(sizeof(struct tcphdr) == 20 &&
		       __builtin_offsetof(struct tcphdr, source) == 4 * TCP_WORD_PORTS &&
		       __builtin_offsetof(struct tcphdr, dest) == 4 * TCP_WORD_PORTS + 2 &&
		       __builtin_offsetof(struct tcphdr, seq) == TCP_OFFSET_SEQ &&
		       __builtin_offsetof(struct tcphdr, ack_seq) == TCP_OFFSET_ACK &&
		       __builtin_offsetof(struct tcphdr, ack_seq) + 4 == 4 * TCP_WORD_OFFSET &&
		       __builtin_offsetof(struct tcphdr, window) == TCP_BYTE_FLAGS + 1 &&
		       __builtin_offsetof(struct tcphdr, check) == TCP_OFFSET_CHECK,
	       "RFC 9293, section 3.1");

#endif
