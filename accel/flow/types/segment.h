/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A TCP segment as the hooks parse it, and the fields of one that they send.
 */
#ifndef VSNOOP_FLOW_TYPES_SEGMENT_H
#define VSNOOP_FLOW_TYPES_SEGMENT_H

#include "../seq.h"

/* TCP header flags (RFC 9293, section 3.1; RFC 9768 for AE). */
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10
#define TCP_URG 0x20
#define TCP_ECE 0x40
#define TCP_CWR 0x80

/* Bits of struct segment: options and IP header. */
#define SEG_TIMESTAMPS 0x01 /* tsval and tsecr are valid */
#define SEG_SACK 0x02 /* carries SACK blocks; sack_end is the highest right edge */
#define SEG_SACK_PERMITTED 0x04 /* carries that option */
#define SEG_SCALE 0x08 /* carries a window scale option */
#define SEG_FOREIGN 0x10 /* carries an option, or AE, that is not understood */
#define SEG_CE 0x20 /* the IP header says congestion experienced */
#define SEG_SACK_ODD 0x40 /* the SACK blocks are not 4-byte aligned: none can be removed */

/* A parsed TCP segment. All fields in host byte order. */
struct segment {
	struct seq seq; /* SEG.SEQ */
	struct seq ack; /* SEG.ACK; without TCP_ACK it means nothing */
	__u32 len; /* payload bytes; of a super-packet, of all its segments */
	__u32 tsval; /* TSval with SEG_TIMESTAMPS; else 0 */
	__u32 tsecr; /* likewise */
	struct seq sack_end; /* with SEG_SACK: highest right edge */
	__u16 window; /* raw */
	__u16 unit_len; /* of a super-packet, payload bytes of one segment; else len */
	__u8 tcp_flags; /* TCP_* */
	__u8 scale; /* with SEG_SCALE: shift count, at most 14 */
	__u16 bits; /* SEG_* */
	__u8 destination[6]; /* MAC address */
	__u8 ttl; /* TTL or hop limit */
	__u8 zero;
	__u32 traffic; /* traffic class << 20 | IPv6 flow label */
};

/* An ICMP message of the VM about a segment of the sender (RFC 1191, RFC 8201). */
struct too_big {
	struct seq seq; /* of the segment that it quotes */
	__u32 mtu; /* of the next hop, bytes */
	__u32 least; /* smallest MTU of the IP version that is believed */
	__u32 headers; /* IP and TCP header without options, bytes */
};

/* Fields of an ACK that the host sends, or that replace those of the VM's packet. */
struct ack_fields {
	struct seq seq; /* SEG.SEQ */
	struct seq ack; /* SEG.ACK */
	__u32 tsval; /* valid with `timestamps` */
	__u32 tsecr; /* likewise */
	__u16 window; /* raw, already scaled down */
	__u8 timestamps; /* 1: the ACK carries the timestamps option */
	__u8 ttl; /* TTL or hop limit; 0: not known */
	__u32 sack; /* number of the hold whose out-of-order ranges it reports; 0: none */
	__u32 traffic; /* traffic class << 20 | IPv6 flow label */
	__u8 next_hop[6]; /* MAC address of the sender's side */
	/* Bytes of the segment that it answers, from SEG.SEQ on, that came again: the first SACK
	 * block (RFC 2883). */
	__u16 repeated;
};

#endif
