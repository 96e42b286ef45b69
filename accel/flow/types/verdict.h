/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Result of a decision: a verdict on the packet, and an outcome with what the verdict needs.
 */
#ifndef VSNOOP_FLOW_TYPES_VERDICT_H
#define VSNOOP_FLOW_TYPES_VERDICT_H

#include "segment.h"

/* Verdict on a segment to the VM. */
enum to_vm_verdict {
	TO_VM_PASS = 0, /* pass untouched */
	TO_VM_REACK = 1, /* the host has it: answer with out->ack, pass nothing */
	TO_VM_RESET = 2, /* answer with RST, pass nothing */
	TO_VM_KEEP = 3, /* copy from byte out->skip; see out->hand; then flow_kept() */
	TO_VM_DROP = 4, /* drop: the sender sends it again */
	TO_VM_FORWARD = 5, /* pass with the seq and tsval of out->ack */
	TO_VM_NO_FLOW = 6, /* there is no record */
};

/* How a segment that was copied goes to the VM. */
enum hand {
	HAND_NOTHING = 0, /* not now: it waits in the hold */
	HAND_AND_ACK = 1, /* as a clone; if the ring takes it, the host acknowledges */
	HAND_ON = 2, /* it passes itself, and a later early ACK covers it */
};

/* The hold's result for a segment after TO_VM_KEEP. */
#define KEEP_COPIED 0x01 /* it was copied */
#define KEEP_TAKEN 0x02 /* the ring took the clone; else refused it, or was not asked */
#define KEEP_NO_MEMORY 0x04 /* it was not copied, because the hold had no chunk for it */
#define KEEP_LAST 0x08 /* it was copied, and the hold uses its last memory */
/* Other reasons why it was not copied. */
#define KEEP_NO_HOLD 0x10 /* it has no hold record, or no new bytes */
#define KEEP_FREED 0x20 /* the VM has acknowledged its bytes meanwhile: their chunk was freed */
#define KEEP_TOO_FAR 0x40 /* its chunk is too many links away (HOLD_SEEK), or beyond the chain */
#define KEEP_UNREADABLE 0x80 /* the packet's bytes could not be read */

/* Verdict on a segment after TO_VM_KEEP. */
enum kept_verdict {
	KEPT_PASS = 0, /* pass untouched */
	KEPT_ACK = 1, /* the host has it: answer with out->ack, pass nothing */
	KEPT_DROP = 2, /* drop: the sender sends it again, or the VM has it */
	KEPT_REACK = 3, /* the host does not have it: answer with out->ack, pass nothing */
	KEPT_WAIT = 4, /* the host has it: a later answer acknowledges it, pass nothing */
};

/* Verdict on a segment of the VM. */
enum from_vm_verdict {
	FROM_VM_PASS = 0, /* pass untouched */
	FROM_VM_DROP = 1, /* drop: the sender has a later ACK already */
	FROM_VM_REWRITE = 2, /* replace ack and window, drop stale SACK blocks */
	FROM_VM_REPLACE = 3, /* send out->ack instead: it reports out-of-order ranges */
	FROM_VM_RESET = 4, /* answer the VM with RST, pass nothing */
	FROM_VM_RESET_BOTH = 5, /* RST to both ends */
	FROM_VM_NO_FLOW = 6, /* there is no record */
	FROM_VM_ACCOUNT = 7, /* incast control must account for it before */
};

/* Bits of outcome.events: what happened, for the counters and for the caller. */
#define EVENT_OFFLINE_SEQ 0x00001 /* to FLOW_UNEXPECTED_SEQ, for a hole */
#define EVENT_OFFLINE_NO_BUF 0x00002 /* to FLOW_NO_BUF */
#define EVENT_OFFLINE_CE 0x00004 /* to FLOW_UNEXPECTED_SEQ, for congestion */
#define EVENT_BYPASS 0x00008 /* to FLOW_BYPASS */
#define EVENT_REFUSED 0x00010 /* a RST of the VM that only the host's actions can explain */
#define EVENT_SAMPLE 0x00020 /* sample_ns of struct outcome is valid */
#define EVENT_SAMPLE_EARLY 0x00040 /* ... of a byte that was acknowledged early */
#define EVENT_LATE 0x00080 /* the VM was seen not to answer for 1 ms */
#define EVENT_PROMPT 0x00100 /* the VM was seen to answer within 1 ms */
#define EVENT_CLOSED 0x00200 /* the record can be removed now */
#define EVENT_PASSIVE 0x00400 /* a segment was left to a prompt VM */
#define EVENT_WAKE 0x00800 /* wake the engine */
#define EVENT_FREE 0x01000 /* hold.claimed was set: free chunks that the VM has acknowledged */
#define EVENT_HOLD_FULL 0x02000 /* no memory for a segment */
#define EVENT_ENGINE_GONE 0x04000 /* reset: no engine is left to hand over its bytes */
#define EVENT_OUT_OF_ORDER 0x08000 /* kept in an out-of-order range */
/* The segment has an ACK or a window that the VM does not know. If the VM does not get the
 * segment, send it hold_fill_sender_ack(). */
#define EVENT_SENDER_ACK 0x10000
/* The segment passes, but its FIN lies beyond the VM's window because the host has shown the sender
 * more: remove the FIN. Some guests accept the data up to their window, and the FIN too. */
#define EVENT_EARLY_FIN 0x20000
/* The VM's RST says that it does not know the connection (any more), which it has not closed, and
 * the host has bytes for it: it was rebooted, say. */
#define EVENT_FORGOTTEN 0x40000
/* TO_VM_DROP: the engine carries the ACK of this segment, which is all it had. */
#define EVENT_ACK_WAITS 0x80000
#define EVENT_HOLD_BUSY 0x100000 /* a segment found the chain claimed by another CPU */
#define EVENT_NOT_COPIED 0x200000 /* a segment was not copied, and memory is not the reason */
#define EVENT_FORWARDED 0x400000 /* the VM is seen to forward the flow */
/* Tell the engine: wake it, unless it looks within 1 ms anyway. */
#define EVENT_TELL 0x800000
/* Leave a note for the engine, which reads it at its next tick at the latest. */
#define EVENT_NOTE 0x1000000

/* Outcome of a decision. */
struct outcome {
	struct ack_fields ack; /* fields that the verdict refers to */
	__u64 now; /* time of the decision, CLOCK_MONOTONIC, ns */
	__u64 sample_ns; /* how long the VM took to acknowledge the timed byte */
	__u64 late_since_ns; /* with EVENT_LATE: when VM_SEQ last moved */
	__u32 events; /* EVENT_* */
	__u32 hold; /* number of the flow's hold; 0: none */
	__u16 skip; /* TO_VM_KEEP: leading bytes that are kept already */
	__u16 hand; /* TO_VM_KEEP: enum hand */
};

#endif
