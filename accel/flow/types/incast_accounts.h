/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Incast control (flow/incast.h): its accounts of a flow and of a port.
 */
#ifndef VSNOOP_FLOW_TYPES_INCAST_ACCOUNTS_H
#define VSNOOP_FLOW_TYPES_INCAST_ACCOUNTS_H

#include "../seq.h"

/* 1: compiled with incast control. Ports without it have programs of their own, compiled without:
 * code that the verifier removes from a program still takes memory. */
#ifndef INCAST_USED
#define INCAST_USED 1
#endif

/* Bits of struct incast. */
#define INCAST_BY_TSVAL 0x0001 /* `asked` is a TSval */
#define INCAST_FINISHED 0x0002 /* the sender ended its answer, and the VM sent no request since */
#define INCAST_SPEAKS 0x0004 /* it has sent unasked after it had finished, not after a pause */
#define INCAST_STILL 0x0008 /* its window was closed at the last grant */
#define INCAST_MARKED 0x0010 /* CE marks came within the round trip */
#define INCAST_WIDE 0x0020 /* it was shown a window of two segments once */
#define INCAST_GIVEN 0x0040 /* granted an edge that its sender was not shown yet */
#define INCAST_ASKED 0x0080 /* the VM sent it something, and it has not answered yet */
#define INCAST_ANSWERS 0x0100 /* the VM sent a request after it had finished */
#define INCAST_AVOIDS 0x0200 /* its window grows by steps; else it is in slow start, and doubles */
#define INCAST_BESIDE 0x0400 /* its segments do not come through the uplink */
#define INCAST_SHAPED 0x0800 /* the edge binds; else the flow is left alone */
#define INCAST_VARIES 0x1000 /* its last two answers differ in length */

/* The reason why a flow waits. */
enum incast_waiting {
	INCAST_NOT_WAITING = 0, /* its window is open, or it is not shaped */
	INCAST_QUEUED = 1, /* for credit, with a closed window: in the grant queue */
	INCAST_FINISHED_ANSWERER = 2, /* finished when its window closed; it only ever answers */
	INCAST_FINISHED_OTHER = 3, /* the same; it may send unasked, or pauses */
};

/* Result of offering a grant to the flows of a port. */
enum incast_grant_result {
	GRANT_NONE = 0, /* no flow can take one now */
	GRANT_SENT = 1, /* a flow took it: its sender is sent an ACK */
	GRANT_RETRY = 2, /* the flows that were tried could not take it; others may */
};

/* Result of offering a grant to one flow. */
enum incast_served {
	SERVED_GONE = 0, /* it does not wait in this queue any more */
	SERVED_NOT_YET = 1, /* there is not credit enough: back into the queue */
	SERVED_ACK = 2, /* its sender is to be sent an ACK */
};

/* Incast control of one flow: one cache line. */
struct incast {
	struct seq received; /* highest byte that came from the sender, plus one */
	struct seq edge; /* right edge that it was granted */
	__u32 window; /* bytes beyond `received` that it asks for */
	__u32 measured; /* b_m, bytes per 2^20 ns */
	__u32 sample_at; /* start of the round trip that is measured, 2^8 ns */
	__u32 sample_bytes; /* bytes received since sample_at */
	__u16 answer; /* length of its last answer, 2^8 bytes; 0: not known */
	__u16 answer_at; /* `received` when the present answer began, 2^8 bytes */
	__u32 rtt_ns; /* smoothed; 0: not known yet */
	__u32 min_rtt_ns; /* shortest so far; beyond INCAST_SCOPE_NS: far away */
	__u32 asked; /* the TSval, or the edge, whose echo ends a round trip */
	__u32 asked_at; /* when it was sent, 2^4 ns; 0: none is under way */
	__u32 epoch; /* its outstanding credit counts until this one ends */
	__u16 grown_at; /* last growth beyond the share, 2^14 ns */
	__u16 before; /* low half of the edge shown before it was last given a window */
	__u16 cut; /* low half of the lowest edge shown since then */
	__u16 bits; /* INCAST_BY_TSVAL to INCAST_VARIES; the verifier takes no bit fields */
	__u32 ts_recent; /* the sender's last TSval */
	__u8 over; /* round trips in a row with d > INCAST_GAMMA2 */
	__u8 far; /* round trips in a row that were long */
	__u8 census; /* low byte of the census that has counted it */
	__u8 waiting; /* enum incast_waiting */
};
_Static_assert(sizeof(struct incast) == 64, "one cache line");

#define INCAST_EPOCHS 16 /* a power of two */

/* Outstanding credit of flows: of one port, or of all ports behind an uplink. */
struct incast_account {
	__s64 outstanding; /* of live flows: the sum of granted edge - received */
	__s64 silent; /* the same of silent flows: not active of late, or finished */
	__s64 ends[INCAST_EPOCHS]; /* the part of `outstanding` that counts until that epoch ends */
	__u32 epoch; /* see INCAST_EPOCH_BITS */
	__s32 open; /* flows that are shaped, idle ones too */
	__s32 queued; /* flows in the grant queue */
	__u32 train; /* of a port: the train that the latest flow from its queue asked for, bytes */
};

/* Incast control of one port; written by its hooks, without a lock. */
struct incast_port {
	struct incast_account own; /* of the port's flows */
	__u32 flows; /* flows that sent data during the last census, or wait */
	__u32 counted; /* the same so far in the present census */
	__u32 census; /* the uplink's, when `flows` was set */
	__u32 wanted; /* the latest census in which the port wanted more than there was */
	__s32 finished_answerers; /* flows in INCAST_FINISHED_ANSWERER */
	__s32 finished_others; /* flows in INCAST_FINISHED_OTHER */
	__u32 grants; /* grants to waiting flows */
	__u32 wanted_before; /* the census before `wanted` in which it did */
	__u64 room_ns; /* time of `room` */
	__s64 room; /* bytes that may be granted at once */
};

#endif
