/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The hold: copies of the bytes that the host has acknowledged (flow/hold.h).
 *
 * A port's memory comes in slabs. The engine adds slabs when the hooks want memory, and takes
 * unused ones back. A slab has chunks of bytes and a number of holds; the engine maps it. The
 * chunks of a flow form a chain of consecutive bytes of its stream, from the chunk with VM_SEQ to
 * the one with the last byte kept. Of the fields below, "hooks" and "engine" name the writer. The
 * flow's record is authoritative; the hooks copy parts of it here for the engine.
 *
 * The stream of a flow that is held, SEQ rising from left to right, over its chain:
 *
 *    front        vm_seq        handed           tail       ranges[2..3]      ranges[0..1]
 *      |             |             |              |          |         |       |          |
 *      +-------------+-------------+--------------+          +---------+       +----------+
 *      | the VM has  | handed to   | waits for    |   hole   | a range | hole  | latest   |
 *      | acknowledged| the VM      | the engine   |          |         |       | range    |
 *      +-------------+-------------+--------------+          +---------+       +----------+
 *      +----------+----------+----------+----------+----------+----------+----------+----------+
 *      |  HOLD_CHUNK bytes  --> next   --> next   --> next   --> next   --> next   --> next    |
 *      +----------+----------+----------+----------+----------+----------+----------+----------+
 *                                       |                                |          |
 *                                       at: latest copy in order         |          last
 *                                                      range_at: latest copy beyond a hole
 *
 *   front      SEQ of the chain's first byte, and its chunk: advances by whole chunks
 *   first      copies begin here if it is above vm_seq: the VM answers for the bytes before it
 *   sure       the ring has taken all bytes below; it may have refused those up to high_seq
 *   high_seq   `handed`, as far as the hooks have read it
 *   tail       NEXT_SEQ of the record; a FIN that is held follows it (HOLD_FIN)
 *
 * The chain has chunks for holes, too: the byte with SEQ s lies (s - SEQ of `front`) / HOLD_CHUNK
 * links from the first.
 */
#ifndef VSNOOP_FLOW_TYPES_HOLD_RECORD_H
#define VSNOOP_FLOW_TYPES_HOLD_RECORD_H

#include "flow_record.h"

#define HOLD_CHUNK 4096 /* bytes */
#define SLAB_CHUNKS 64 /* chunks of one slab */
#define SLAB_BYTES (SLAB_CHUNKS * HOLD_CHUNK)
#define SLAB_HOLDS 32 /* holds of one slab */
#define SLABS 1024 /* of one port at most: 256 MiB */
/* Free slabs for a new connection: enough for the window that its sender is shown until the engine
 * has added more. */
#define HOLD_READY_SLABS 8
/* Seconds without an engine, after which bytes that only an engine can hand over count as lost. */
#define HOLD_ENGINE_GONE_S 30
/* Size of the doorbell, in which the hooks write the numbers of holds: 16 bytes each. */
#define DOORBELL_BYTES 4096
/* `owner` of a chunk, or `used` of a hold, while the engine takes the slab away. */
#define HOLD_RESERVED 0xffffffff

/* Owner of a chunk, and its successor in the chain. */
struct hold_chunk {
	__u32 owner; /* number of the hold, from 1; 0: free */
	__u32 next; /* chunk with the bytes that follow; valid for all but the last */
};

/* The hold record of one flow. */
struct hold {
	struct flow_key key; /* key of the flow */
	__u32 used; /* 0: free; set and cleared by the hooks */
	__u32 claimed; /* 1: a CPU has claimed the chain, to extend it or free chunks */

	/* The chain: changed only by the CPU that set `claimed`. */
	__u64 front; /* SEQ of the first chunk's first byte << 32 | that chunk */
	__u32 last; /* the last chunk */
	__u32 chunks; /* number of chunks in the chain */
	__u32 at; /* the chunk with the byte at `at_base`, its first, somewhere in the chain */
	struct seq at_base; /* SEQ of that byte */
	__u32 range_at; /* the same for the latest out-of-order copy */
	struct seq range_base; /* likewise */

	/* Hooks, under the record's lock. */
	struct seq first; /* copies begin here, or at VM_SEQ if that is more */
	struct seq tail; /* copies in order end here */
	struct seq vm_seq; /* as in the record */
	struct seq right_edge; /* as in the record */
	struct seq high_seq; /* handed to the VM as far as the hooks know */
	struct seq snd_una; /* highest ACK of the sender that is valid */
	struct seq snd_nxt; /* as in the record */
	__u32 vm_tsval; /* as in the record */
	__u32 tsval; /* the highest TSval of the sender, or the VM's TSecr if that is later */
	__u32 tsecr; /* the sender's latest TSecr */
	__u32 range_count; /* number of out-of-order ranges, kept beyond a hole */
	struct seq ranges[8]; /* left and right edge of each, the latest first */
	__u32 rcv_win; /* RCV_WIN: bytes that the sender may be shown beyond NEXT_SEQ */
	__u64 since_ns; /* since when the oldest waiting byte waits */
	struct seq sender_seq; /* SEQ of the segment with sender_window, or more */
	__u16 sender_window; /* the sender's window, raw */
	__u16 mss; /* as in the record */
	__u16 flags; /* HOLD_* */
	__u8 next_hop[6]; /* as in the record: source address of frames for the VM */
	__u16 vlan_proto; /* of the outer VLAN tag, network byte order; 0: not seen yet */
	__u16 unanswered; /* bytes / 16 kept since the last early ACK */
	__u32 marked; /* held segments with a CE mark, which the VM must echo (RFC 3168) */
	struct seq sure; /* the ring has taken all bytes below */
	/* Segments of the VM in a row whose ACK is below VM_SEQ: it was rolled back, perhaps. */
	__u32 old_acks;
	struct seq fin_at; /* SEQ of the sender's FIN, with HOLD_FIN or HOLD_FIN_WAITS */
	__u32 answered; /* resends + probes when the VM's last segment came */
	__u32 vm_acks; /* ACKs of the VM */
	__u32 duplicate_acks; /* duplicate ACKs of the VM, which report a loss (RFC 5681) */
	__u32 sack_count; /* SACK blocks of the last duplicate ACK */
	struct seq sack[8]; /* left and right edge of each block */
	__u32 woken; /* WOKEN_*: the doorbell has the hold's number; 0: the engine has read it */
	__u16 path_mss; /* bytes in a segment for the path behind the VM at most; 0: any */
	__u8 sender_ttl; /* TTL or hop limit of the sender's last segment */
	__u8 neighbour; /* 1: the far end is one hop behind the VM */
	__u32 too_big; /* how often path_mss was lowered */
	__u32 due_acks; /* ACKs of a timed byte that were due: two segments waited for one */
	/* How often the VM opened a closed window, and had dropped what it was handed. */
	__u32 dropped;
	__u64 due_ns; /* how long they took in all */

	/* Engine. */
	__u64 handed_ns; /* time of the last hand-over to a VM with no backlog */
	struct seq handed; /* handed to the VM up to here, including a FIN */
	__u32 handed_tsval; /* the TSval of its latest frame */
	__u32 handovers; /* frames handed to the VM for the first time */
	__u32 resends; /* frames handed to it again */
	__u64 resent_bytes; /* payload of the resent frames */
	__u32 probes; /* keep-alive probes (RFC 9293, section 3.8.4) */
	__u32 wants_acks; /* 1: wake the engine for each ACK of the VM */
	__u32 late; /* LATE_*: why the connection is to be left to the VM; 0: it is not */
	__u32 sending; /* since when the engine writes a frame, 2^20 ns, odd; 0: it does not */
	__u32 ack_waits; /* 1: the hooks dropped an ACK of the sender, which the engine carries */
	__u32 portion; /* room in the VM's window from which it hands over again, bytes; 0: any */
	/* Hooks: copies in order reach up to here. Those from `tail` on are in the last memory:
	 * acknowledged once the VM has taken the others. */
	struct seq reach;
	__u32 acked_at; /* when the host last acknowledged a segment by itself, 2^20 ns */
};

/* Values of `woken`: what the engine was told. */
#define WOKEN_LATER 1 /* it reads the number when it looks next */
#define WOKEN_NOW 2 /* it was woken */
#define WOKEN_NOTED 3 /* it reads the number at its next tick */

/* Values of `late`. */
#define LATE_ACKS 1 /* the VM is late for another reason than its CPU */
#define LATE_LOSSES 2 /* a path behind it loses what it is sent */

/* Bits of `flags`. */
#define HOLD_TIMESTAMPS 0x01 /* the connection uses them */
/* The sender's FIN follows the last byte kept. A reader without the lock may see it before `tail`,
 * and takes it for true only where `fin_at` is `tail`. */
#define HOLD_FIN 0x02
#define HOLD_OVER 0x04 /* the connection was reset: the engine sends nothing more */
/* FLOW_F_UNCONFIRMED: the engine sends only data from VM_SEQ on, which complete the handshake. */
#define HOLD_UNCONFIRMED 0x08
#define HOLD_NO_WINDOW 0x10 /* `sender_window` is not known yet: the record's last user left it */
#define HOLD_FIN_WAITS 0x20 /* the sender's FIN follows the bytes that are not there yet */
#define HOLD_ACK_EACH 0x40 /* the sender has waited for an ACK that waited for a second segment */

/* Argument of reclaim(): what the engine wants freed of a hold. */
enum reclaim {
	RECLAIM_CHUNKS = 0, /* chunks that the VM has acknowledged */
	RECLAIM_HOLD = 1, /* the hold too: RECLAIMED_OVER was the result before */
	RECLAIM_RESET = 2, /* the same as RECLAIM_CHUNKS, after user space reset the flow */
};

/* Result of reclaim(). */
enum reclaimed {
	RECLAIMED_USED = 0, /* the flow still has this hold */
	RECLAIMED_OVER = 1, /* the flow is over or gone: end the hold once no hook can use it */
	RECLAIMED_FREE = 2, /* the hold is free */
};

/* Chunk c is chunk c % SLAB_CHUNKS of slab c / SLAB_CHUNKS; hold n, from 1, is hold
 * (n - 1) % SLAB_HOLDS of slab (n - 1) / SLAB_HOLDS. */
struct hold_slab {
	__u8 bytes[SLAB_BYTES]; /* of the chunks */
	struct hold_chunk chunks[SLAB_CHUNKS]; /* owner and successor of each */
	struct hold holds[SLAB_HOLDS]; /* one for each flow */
	/* A bit for each hold with copies that the VM may have to acknowledge. The hooks set it,
	 * the engine clears it. */
	__u32 busy;
	__u32 zero;
};
_Static_assert(SLAB_HOLDS <= 8 * sizeof(((struct hold_slab *)0)->busy), "`busy` has too few bits");
_Static_assert(__builtin_offsetof(struct hold, front) % sizeof(__u64) == 0 &&
		       __builtin_offsetof(struct hold_slab, holds) % sizeof(__u64) == 0 &&
		       sizeof(struct hold) % sizeof(__u64) == 0,
	       "hooks and engine read and write `front` as one word");

#endif
