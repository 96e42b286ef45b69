/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Split connections (bpf/split.bpf.c): each end talks to a socket of the host, which has the
 * connection's own numbers, and the splitter moves the bytes between both sockets.
 *
 * "The peer" is the other end of the VM's connection.
 */
#ifndef VSNOOP_FLOW_TYPES_SPLIT_RECORDS_H
#define VSNOOP_FLOW_TYPES_SPLIT_RECORDS_H

#include "flow_record.h"

/* Bytes of one copy in the ring. */
#define SPLIT_COPY_BYTES 4096
/* Bytes that a VM has in flight before its connection is split, in segments: the initial window of
 * most stacks (RFC 6928). What fits into it passes untouched. */
#define SPLIT_SEGMENTS 10

/* Value of split_port.is_on. */
#define SPLIT_DRAINS 2

/* Bits of struct split_candidate. */
#define SPLIT_F_PEER_SYN 0x01 /* the peer's SYN or SYN-ACK was seen */
#define SPLIT_F_VM_SYN 0x02 /* the same of the VM */
#define SPLIT_F_TIMESTAMPS 0x04 /* in use: both ends offered them (RFC 7323) */
#define SPLIT_F_SACK 0x08 /* likewise */
#define SPLIT_F_SCALES 0x10 /* likewise: window scales */
#define SPLIT_F_NEVER 0x20 /* ECN, fast open, or an option that is not understood */
#define SPLIT_F_PEER 0x40 /* the fields of the peer are of the port's present epoch */
#define SPLIT_F_VM 0x80 /* likewise of the VM */

/* State of a candidate, in the upper half of `sent`. */
enum split_state {
	SPLIT_PASSES = 0, /* its segments pass */
	SPLIT_WANTED = 1, /* the splitter was asked */
	SPLIT_DONE = 2, /* it is split */
	SPLIT_REFUSED = 3, /* the splitter cannot now; SPLIT_PASSES again with the next epoch */
};

/* An open connection that may be split: what both handshake and later segments say. */
struct split_candidate {
	/* enum split_state << 32 | SEQ behind the last byte that the VM has sent. One word, changed
	 * by compare-and-swap: no segment passes once the state is SPLIT_DONE. */
	__u64 sent;
	__u64 waits_ns; /* since when the VM owes an answer to a SYN or an ACK; 0: it does not */
	struct seq peer_ack; /* highest ACK of the peer */
	struct seq peer_nxt; /* SEQ behind the last byte of the peer */
	struct seq vm_ack; /* highest ACK of the VM */
	__u32 peer_tsval; /* the peer's last TSval */
	__u32 vm_tsval; /* the VM's */
	__u32 peer_traffic; /* traffic class << 20 | IPv6 flow label */
	__u32 vm_traffic;
	__u32 epoch; /* of the port, in which the candidate was last seen */
	__u16 peer_window; /* raw */
	__u16 vm_window;
	__u16 peer_mss; /* the option's value */
	__u16 vm_mss;
	__u8 peer_scale; /* shift count */
	__u8 vm_scale;
	__u8 peer_ttl; /* TTL or hop limit */
	__u8 vm_ttl;
	__u8 flags; /* SPLIT_F_* */
	__u8 next_hop[6]; /* the MAC address that the VM sends to */
	__u8 asked; /* how often the splitter was asked in this epoch */
};

/* A split connection: what the segments of its sockets have from both ends. */
struct split_flow {
	__u32 peer_tsval; /* the peer's last TSval: that of the segments to the VM */
	__u32 vm_tsval; /* likewise */
	__u32 peer_traffic;
	__u32 vm_traffic;
	/* TSecr of the first ACK for the socket that faces the peer: the kernel's round trip begins
	 * with it. 0 afterwards. Only an ACK of the first flight above `first_ack` until
	 * `first_until_ns` has it: of a segment that was sent again it would say that the first one
	 * had only been late (RFC 3522). */
	__u32 first_tsecr;
	struct seq first_ack;
	struct seq first_end;
	struct seq sent_end; /* SEQ behind what has come in by the tap towards the peer */
	__u64 first_until_ns;
	__u64 last_ns; /* its last segment of either end */
	__u8 peer_ttl;
	__u8 vm_ttl;
	__u8 next_hop[6];
	__u8 vm_mac[6]; /* of the key of the connection's record */
	__u8 timestamps; /* 1: in use */
	__u8 is_over; /* 1: both sockets are closed: a SYN begins another connection */
	__u32 moved; /* enum split_place */
	/* The VM's MAC addresses of the last segment by the VM, and of the last one for it. The
	 * sockets' segments have them, too: a VM may change its address amid a connection. */
	__u8 mac_by_vm[6];
	__u8 mac_to_vm[6];
};

/* Where the VM of a split connection is. */
enum split_place {
	SPLIT_AT_TAP = 0,
	/* Its Ethernet address was learned at another port of the bridge, and it has sent nothing
	 * here since. Nothing leaves towards the peer: the bridge would learn that it is here. */
	SPLIT_MOVED = 1,
	SPLIT_TAKEN = 2, /* another Ethernet address has announced its IP address */
	SPLIT_GONE = 3, /* no process reads the tap any more */
};

/* A record of the ring. */
enum split_kind {
	SPLIT_COPY = 1, /* a copy of what the VM sent */
	SPLIT_WANTS = 2, /* the connection is to be split */
};

struct split_record {
	struct flow_key key; /* with the VM's MAC address */
	__u32 kind; /* enum split_kind */
	struct seq seq; /* of the first byte */
	__u32 len; /* bytes */
	__u32 zero;
	__u64 ns; /* CLOCK_MONOTONIC */
	__u8 bytes[SPLIT_COPY_BYTES];
};
_Static_assert(65536 % SPLIT_COPY_BYTES == 0, "copy_segment() copies a segment in whole parts");

/* Requests of user space to the program change_split. */
enum split_ask {
	SPLIT_BEGIN = 1, /* the sockets are there: split, if the numbers are still those */
	SPLIT_END = 2, /* both sockets have delivered all: join */
	SPLIT_LATER = 3, /* not now: ask again */
	SPLIT_REFUSE = 4, /* not in this epoch */
	SPLIT_AGAIN =
		5, /* a segment came to a socket just before SPLIT_END: it is split as before */
	SPLIT_OVER = 6, /* both sockets are closed */
	SPLIT_PLACE = 7, /* the VM is where flow.moved says */
};

/* Argument of the program change_split, which user space runs. */
struct split_change {
	struct flow_key key;
	/* SPLIT_BEGIN, SPLIT_AGAIN: as it begins; SPLIT_END: filled in as it was. */
	struct split_flow flow;
	struct seq sent; /* SPLIT_BEGIN: only if the VM has sent up to here; SPLIT_END: it has */
	struct seq peer_nxt; /* the same of the peer */
	__u32 ask; /* enum split_ask */
	__u32 result; /* 1: done; 0: not, and nothing was changed */
};

/* Why a connection was not split when the hooks asked for it. */
enum split_refusal {
	SPLIT_NO_UNFIT = 0, /* ECN, fast open, or an option that is not understood */
	SPLIT_NO_COPY = 1, /* the copies of what is in flight are not complete */
	SPLIT_NO_ROOM = 2, /* no memory is left, or too many connections are split */
	SPLIT_NO_BUSY = 3, /* something else is on its way, or held */
	SPLIT_NO_CHANGED = 4, /* an end has sent something meanwhile */
	SPLIT_NO_SOCKET = 5, /* the kernel has refused a socket */
	SPLIT_REFUSALS = 6,
};

/* Counters of the splitter since downloads are on; it alone writes them. */
struct split_totals {
	__u64 split; /* connections */
	__u64 joined; /* of these: nothing was on its way any more */
	__u64 ended; /* both ends have closed */
	__u64 reset;
	__u64 to_peer_bytes; /* that peers have acknowledged to the host */
	__u64 to_vm_bytes; /* likewise the VM */
	__u64 retransmitted_bytes; /* to peers */
	__u64 refused[SPLIT_REFUSALS]; /* by enum split_refusal */
	__u64 held_to_peer_bytes; /* now: acknowledged to the VM, and not by peers */
	__u64 held_to_vm_bytes; /* the other way */
};

/* The state of a port that hooks and splitter share. */
struct split_port {
	__u32 is_on; /* 1: connections are split; 0: all are to be joined; SPLIT_DRAINS: and the
		      * ends are shown no room; written by user space */
	__u32 epoch; /* raised whenever the VM becomes late anew */
	__u64 late_until_ns; /* the VM counts as late until then */
	__u32 socket_ifindex; /* the device behind which the sockets are; written by user space */
	__u32 tap_ifindex;
	__u64 late_seen; /* answers of the VM that were late */
	__u64 copies; /* records with bytes */
	__u64 no_room; /* copies that the ring had no room for */
	__u64 wanted; /* connections for which the splitter was asked */
	__u64 to_sockets; /* segments that were sent to sockets */
	__u64 from_sockets; /* segments of sockets that left */
	__u64 strays; /* packets from the sockets' namespace of no split connection; dropped */
	__u64 splits; /* split connections now */
	__u64 moves; /* how often a VM of one was found elsewhere */
	struct split_totals totals;
};

#endif
