/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The hold: what the host keeps of what it has acknowledged (flow/hold.h).
 *
 * A port's memory comes in slabs, which the engine adds when the hooks want memory
 * and takes back when it is not used.  A slab has chunks of bytes and a number of
 * holds.  The chunks of a flow form a chain of consecutive bytes of its stream, from
 * the chunk with VM_SEQ to the one with the last byte kept.  Slabs are shared with the
 * engine, which maps them; "hooks" and "engine" say who writes.  The flow's record
 * holds the truth; what the hooks write here is told to the engine.
 *
 * The stream of a flow that is held, SEQ rising from left to right, over its chain:
 *
 *    front        vm_seq        released         tail       ranges[2..3]      ranges[0..1]
 *      |             |             |              |          |         |       |          |
 *      +-------------+-------------+--------------+          +---------+       +----------+
 *      | the VM has  | the VM was  | waits for    |   hole   | a range | hole  | latest   |
 *      | acknowledged| handed it   | the engine   |          |         |       | range    |
 *      +-------------+-------------+--------------+          +---------+       +----------+
 *      +----------+----------+----------+----------+----------+----------+----------+----------+
 *      |  HOLD_CHUNK bytes  --> next   --> next   --> next   --> next   --> next   --> next    |
 *      +----------+----------+----------+----------+----------+----------+----------+----------+
 *                                       |                                |          |
 *                                       at: latest copy in order         |          last
 *                                                      range_at: latest copy beyond a hole
 *
 *   front      SEQ of the chain's first byte, and its chunk: moves on by whole chunks
 *   first      if above vm_seq: copies begin here; what is before it the VM was left to answer
 *   sure       the ring has taken all below; what was handed on beyond, up to high_seq, it may
 *              have refused
 *   high_seq   `released`, as far as the hooks know
 *   tail       NEXT_SEQ of the record; a FIN that is held follows it (HOLD_FIN)
 *
 * The chain has chunks under holes, too: the byte with SEQ s lies (s - SEQ of `front`) /
 * HOLD_CHUNK links from the first.
 */
#ifndef VSNOOP_FLOW_TYPES_HOLD_H
#define VSNOOP_FLOW_TYPES_HOLD_H

#include "flow.h"

#define HOLD_CHUNK 4096 /* bytes */
#define SLAB_CHUNKS 64 /* chunks of one slab */
#define SLAB_BYTES (SLAB_CHUNKS * HOLD_CHUNK)
#define SLAB_HOLDS 32 /* holds of one slab */
#define SLABS 1024 /* of one port at most: 256 MiB */
/* What a new connection is to find free: all of it then goes within what its sender is shown
 * before more is there. */
#define HOLD_READY_SLABS 8
/* Seconds without an engine, after which what only it could hand over is taken for lost. */
#define HOLD_ABANDONED_S 30
/* As owner of a chunk, or in `used` of a hold: the engine takes the slab away. */
#define HOLD_RESERVED 0xffffffff

/* Whose a chunk is, and what follows it. */
struct hold_chunk {
	__u32 owner; /* number of the hold, from 1; 0: free */
	__u32 next; /* chunk with the bytes that follow; valid for all but the last */
};

/* One flow that is kept copies of. */
struct hold {
	struct flow_key key; /* whose it is */
	__u32 used; /* 0: free; taken and given back by the hooks */
	__u32 busy; /* 1: somebody adds to the chain or takes from it */

	/* The chain; changed by who has set `busy`. */
	__u64 front; /* SEQ of the first chunk's first byte << 32 | that chunk */
	__u32 last; /* the last chunk */
	__u32 chunks; /* how many */
	__u32 at; /* the chunk with the byte at `at_base`, its first, somewhere in the chain */
	struct seq at_base; /* SEQ of that byte */
	__u32 range_at; /* the same for the latest out-of-order copy */
	struct seq range_base; /* likewise */

	/* Hooks, under the record's lock. */
	struct seq first; /* copies are kept from here, or from VM_SEQ if that is more */
	struct seq tail; /* ... to here */
	struct seq vm_seq; /* as in the record */
	struct seq right_edge; /* as in the record */
	struct seq high_seq; /* what the hooks know to have been handed to the VM */
	struct seq snd_una; /* highest ACK of the sender that is valid */
	struct seq snd_nxt; /* as in the record */
	__u32 vm_tsval; /* as in the record */
	__u32 tsval; /* the highest TSval of the sender */
	__u32 tsecr; /* its latest TSecr */
	__u32 range_count; /* out-of-order ranges: what is kept beyond a hole */
	struct seq ranges[8]; /* left and right edge of each, the latest first */
	__u32 rcv_win; /* RCV_WIN: what the sender may be shown beyond NEXT_SEQ, bytes */
	__u64 since_ns; /* the oldest byte that waits has done so since then */
	struct seq sender_seq; /* SEQ of the segment that told sender_window, or more */
	__u16 sender_window; /* the sender's window, raw */
	__u16 mss; /* as in the record */
	__u16 flags; /* HOLD_* */
	__u8 next_hop[6]; /* as in the record: frames for the VM come from there */
	__u16 tag_proto; /* of the outer VLAN tag, network byte order; 0: not seen yet */
	__u16 unanswered; /* bytes / 16 that were kept since the last early ACK */
	__u32 marked; /* held segments with a CE mark (RFC 3168): the VM is to echo it */
	struct seq sure; /* the ring is known to have taken everything below */
	__u32 answered; /* resends and probes when the VM was last heard of */
	__u32 heard; /* ACKs of the VM */
	__u32 repeated; /* those that report a loss */
	__u32 sack_count; /* SACK blocks of the last one that did */
	struct seq sack[8]; /* left and right edge of each */
	__u32 rung; /* the engine was told of news, and has not looked yet */

	/* Engine. */
	__u64 released_ns; /* when it last handed over to a VM that had answered for everything */
	struct seq released; /* handed to the VM up to here, a FIN included */
	__u32 released_tsval; /* the TSval that it used last */
	__u32 releases; /* frames handed to the VM for the first time */
	__u32 resends; /* frames handed to it again */
	__u64 resent_bytes; /* payload of these */
	__u32 probes; /* segments without news that ask the VM for an answer */
	__u32 zero2;
};

/* Bits of `flags`. */
#define HOLD_TIMESTAMPS 0x01 /* the connection uses them */
#define HOLD_FIN 0x02 /* the sender's FIN follows the last byte kept */
#define HOLD_OVER 0x04 /* the connection was reset: nothing is to be sent any more */
/* The VM may have no connection yet: it is sent nothing but what completes the
 * handshake, data from its VM_SEQ on. */
#define HOLD_UNCONFIRMED 0x08

/* What the engine wants reclaimed of a hold. */
enum reclaim {
	RECLAIM_CHUNKS = 0, /* what the VM has acknowledged */
	RECLAIM_HOLD = 1, /* the hold too: its flow was found gone before */
	RECLAIM_RESET = 2, /* the flow was reset by user space: nothing more is to be sent */
};

/* What is left of it. */
enum reclaimed {
	RECLAIMED_USED = 0, /* the flow has this hold */
	RECLAIMED_OVER = 1, /* it has not, or is over: to be ended once no hook can be at it */
	RECLAIMED_FREE = 2, /* nobody has it, or it was given back now */
};

/* Chunk c is chunk c % SLAB_CHUNKS of slab c / SLAB_CHUNKS; hold n, from 1, is hold
 * (n - 1) % SLAB_HOLDS of slab (n - 1) / SLAB_HOLDS. */
struct hold_slab {
	__u8 bytes[SLAB_BYTES]; /* of the chunks */
	struct hold_chunk chunks[SLAB_CHUNKS]; /* which are whose */
	struct hold holds[SLAB_HOLDS]; /* for as many flows */
	/* A bit for each hold: something was kept, and the VM may have to acknowledge it.  The
	 * hooks set it, the engine clears it. */
	__u32 busy;
	__u32 zero;
};

#endif
