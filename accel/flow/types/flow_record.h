/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows: key, mode, record; and handshakes under way.
 *
 * Names follow the vSnoop report, section III: NEXT_SEQ is the next in-order byte expected from the
 * sender, VM_SEQ is what the VM itself has acknowledged, FL_MODE is the mode of a flow.
 */
#ifndef VSNOOP_FLOW_TYPES_FLOW_RECORD_H
#define VSNOOP_FLOW_TYPES_FLOW_RECORD_H

#include "incast_accounts.h"

/* Key of a flow, from the sender to the VM whichever way a segment goes. */
struct flow_key {
	__u8 sender_addr[16]; /* IPv4 as ::ffff:a.b.c.d; network byte order */
	__u8 vm_addr[16]; /* likewise */
	__u16 sender_port; /* network byte order */
	__u16 vm_port; /* network byte order */
	__u16 vlan_outer; /* TCI & 0x0fff, plus VLAN_PRESENT; 0: untagged */
	__u16 vlan_inner; /* likewise; 0: no second tag */
	/* The VM answers to its own MAC only: a bridge also floods frames for other hosts to its
	 * ports, and another host may have the same addresses. */
	__u8 vm_mac[6];
	__u16 zero;
};

_Static_assert(sizeof(struct flow_key) == 2 * 16 + 4 * sizeof(__u16) + 6 + sizeof(__u16),
	       "the kernel hashes and compares all bytes of a key: it has no gaps");

#define VLAN_PRESENT 0x1000

/* FL_MODE. Only ACTIVE and HOLDING flows are acknowledged early. */
enum flow_mode {
	/* In order, and caught up: the next segment is acknowledged early. */
	FLOW_ACTIVE = 0,
	/* Offline until the VM's ACK passes the highest byte seen: a hole, a
	 * FIN, URG, a CE mark, anything that the VM itself must answer. */
	FLOW_UNEXPECTED_SEQ = 1,
	/* Offline: the host has no memory for a copy. */
	FLOW_NO_BUF = 2,
	/* Offline: the VM answers promptly by itself; nothing to gain. */
	FLOW_PASSIVE = 3,
	/* Never acknowledged early: options not understood, or denied. */
	FLOW_BYPASS = 4,
	/* Bytes that the host acknowledged cannot reach the VM: both ends are answered with RST. */
	FLOW_RESET = 5,
	/* The host has acknowledged bytes that it has not handed to the VM yet. They wait in the
	 * hold, and in-order data never overtake them. */
	FLOW_HOLDING = 6,
	FLOW_MODES = 7,
};

/* Why a flow is in BYPASS, or what is known about it. */
#define FLOW_F_TIMESTAMPS 0x0001 /* RFC 7323 timestamps are in use */
#define FLOW_F_SACK 0x0002 /* SACK is permitted */
#define FLOW_F_SCALE_KNOWN 0x0004 /* the VM's window scale is known */
#define FLOW_F_MID_FLOW 0x0008 /* set up without a handshake */
#define FLOW_F_VM_OPENED 0x0010 /* the VM sent the SYN */
#define FLOW_F_FIN_SENDER 0x0020 /* the sender has sent its FIN */
#define FLOW_F_FIN_VM 0x0040 /* the VM has sent its FIN */
#define FLOW_F_CLOSED 0x0080 /* torn down; the record waits to expire */
#define FLOW_F_REPLY_DUE 0x0100 /* the sender waits for an answer of the VM: pass it */
#define FLOW_F_CHALLENGE_DUE 0x0200 /* the next duplicate ACK may be a challenge ACK */
#define FLOW_F_ECE 0x0400 /* the VM echoes congestion (RFC 3168) */
/* The VM has sent nothing beyond its SYN-ACK: it may have no connection yet (full accept queue, SYN
 * cookies). */
#define FLOW_F_UNCONFIRMED 0x0800
#define FLOW_F_FAILED 0x1000 /* BYPASS: connections of this VM port failed lately */
#define FLOW_F_DENIED 0x2000 /* BYPASS by the operator's lists */
#define FLOW_F_FOREIGN 0x4000 /* BYPASS: an option that is not understood */
#define FLOW_F_UNPROVEN 0x8000 /* the ring may hold segments from before the record */

/* The far end is the host whose TCP answers behind the tap: see flow/far_end.h. */
#define FAR_NEIGHBOUR 0x01 /* one hop behind the VM: a container, or a host beside it */
#define FAR_PATH 0x02 /* two hops or more behind the VM */
#define FAR_LATE 0x04 /* it is late for another reason than the VM's CPU */
#define FAR_TOO_BIG 0x08 /* the VM has reported a smaller path MTU */
#define FAR_LEFT 0x10 /* nothing of this flow is acknowledged early at present */
#define FAR_COUNTED 0x20 /* it is counted as forwarded */
#define FAR_LOSSY 0x40 /* a path behind the VM loses what the engine sends */
/* The VM forwards this flow. */
#define FAR_FORWARDED (FAR_PATH | FAR_LATE | FAR_TOO_BIG | FAR_LOSSY)

/* The byte whose acknowledgement is timed, if there is one. */
enum flow_sample {
	FLOW_SAMPLE_NONE = 0, /* no byte is timed */
	FLOW_SAMPLE_PASSED = 1, /* one that only the VM acknowledges */
	FLOW_SAMPLE_EARLY = 2, /* one that the host has acknowledged */
};

/* One flow: 152 bytes, in three groups by their writer while data flow, and 64 more with incast
 * control. Different CPUs serve sender and VM, and a cache line that one of them writes costs the
 * other some 100 ns: in an element of the kernel's hash map each group has a line of its own. */
struct flow {
	/* Seldom written. */
	__u64 last_ns; /* last packet that was decided about under the lock; see flow_touch() */
	__u16 hold; /* number of its struct hold, from 1; 0: none */
	__u16 key_hash; /* hash of the key, see flow_key_hash(): detects a reused record */
	__u16 mss; /* largest segment payload seen, bytes */
	__u16 flags; /* FLOW_F_* */
	__u8 mode; /* enum flow_mode */
	__u8 scale; /* the VM's window scale; 0 while unknown */
	__u8 next_hop[6]; /* the MAC address that the VM sends to */

	/* Written for packets of the VM, and when the host acknowledges. */
	VSNOOP_LOCK; /* bpf_spin_lock */
	struct seq next_seq; /* NEXT_SEQ: acknowledged to the sender up to here */
	struct seq vm_seq; /* VM_SEQ: acknowledged by the VM up to here */
	__u32 vm_lease; /* jiffy of the VM's lease: see flow/vm_lease.h; 0: none */
	struct seq vm_lease_end; /* its ACKs are below this */
	struct seq right_edge; /* of the receive window that the VM advertised */
	struct seq adv_edge; /* highest right edge that the sender was shown */
	struct seq snd_nxt; /* the VM's SND.NXT */
	__u32 vm_tsval; /* the VM's last TSval */
	__u32 ts_recent; /* the VM may drop a lower TSval (PAWS) */
	__u32 heard_at; /* when the VM's last packet came, 2^20 ns */
	__u32 suppressed; /* ACKs of the VM that were dropped as superfluous */
	__u64 progress_ns; /* when VM_SEQ last advanced, or the backlog began */
	__u32 rewritten; /* packets of the VM whose ACK field was raised */
	__u32 traffic; /* of the VM's packets: traffic class << 20 | IPv6 flow label */

	/* Written for segments to the VM. */
	__u32 retired; /* bytes outstanding when the flow was reset */
	struct seq high_seq; /* highest byte handed to the VM, plus one */
	struct seq snd_una; /* highest ACK of the sender */
	struct seq sample_seq; /* byte whose acknowledgement is being timed */
	__u64 sample_ns; /* when sample_seq was handed to the VM */
	__u64 early_bytes; /* acknowledged early */
	__u32 early_acks; /* sent by the host */
	__u8 ramp; /* segments since the start or the last hole, up to FLOW_RAMP_MOST */
	__u8 sample; /* enum flow_sample */
	__u16 offline; /* how often the flow left ACTIVE, up to 65535 */
	__u32 lease_jiffy; /* the lease is for this jiffy: see flow/lease.h; 0: none */
	__u8 ttl; /* TTL or hop limit of the VM's last segment; 0: none was seen */
	__u8 far; /* FAR_* */
	__u16 zero;
	struct seq lease_edge; /* it ends here */
	__u32 lease_tsval; /* TSval of the segment with which it was granted */
	struct seq ts_seq; /* the VM's ACK beyond this covers the segment of ts_recent */
	__u32 reacked; /* retransmissions answered by the host */

#if INCAST_USED || !defined(PORT_MAPS)
	struct incast incast; /* see flow/incast.h */
#endif
};

/* Bytes of a record in the table of a port: where there is no incast control, those before
 * `incast`. The kernel gives an element 256 bytes then, else 512 (kernel/bpf/memalloc.c). */
#define FLOW_BYTES (INCAST_USED ? sizeof(struct flow) : __builtin_offsetof(struct flow, incast))
#if INCAST_USED || !defined(PORT_MAPS)
_Static_assert(__builtin_offsetof(struct flow, incast) == 152, "a record without incast control");
#endif

/* Stage of a handshake. Handshakes have a table of their own, so that a SYN flood evicts no working
 * flow; only the VM's own SYN or SYN-ACK makes an entry. */
enum embryo_stage {
	EMBRYO_VM_SYN = 1, /* the VM opened; the SYN-ACK is awaited */
	EMBRYO_VM_SYN_ANSWERED = 2, /* the SYN-ACK came; the VM's ACK is awaited */
	EMBRYO_VM_SYN_ACK = 3, /* the VM accepted; the sender's ACK is awaited */
};

/* An embryo: a connection that has no record yet. */
struct embryo {
	struct seq vm_iss; /* the VM's initial sequence number */
	struct seq rcv_nxt; /* the sender's ISS + 1 (stages 2 and 3) */
	__u32 vm_tsval; /* of the VM's SYN or SYN-ACK */
	__u32 window; /* bytes; never scaled in a SYN */
	__u32 shown; /* the part of `window` that the sender is shown */
	__u16 flags; /* FLOW_F_* that the record will start with */
	__u8 scale; /* the VM's own shift count */
	__u8 stage; /* enum embryo_stage */
	__u32 traffic; /* as in the record */
	__u16 syn_len; /* data on the VM's SYN (RFC 7413), bytes */
	__u8 next_hop[6]; /* as in the record */
	__u8 ttl; /* as in the record */
	__u8 zero[3];
	__u64 sent_ns; /* when the VM sent this SYN or SYN-ACK; 0: it was repeated */
};

#endif
