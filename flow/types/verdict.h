/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a decision answers: a verdict, which says what becomes of the packet, and its outcome.
 */
#ifndef VSNOOP_FLOW_TYPES_VERDICT_H
#define VSNOOP_FLOW_TYPES_VERDICT_H

#include "segment.h"

/* What becomes of a segment on its way to the VM. */
enum to_vm_verdict {
	TO_VM_PASS = 0, /* hand on untouched */
	TO_VM_REACK = 1, /* the host has it: answer with an ACK, hand nothing on */
	TO_VM_RESET = 2, /* answer with RST, hand nothing on */
	TO_VM_KEEP = 3, /* copy from byte out->skip; see out->hand; then flow_kept() */
	TO_VM_DROP = 4, /* the sender will send it again */
	TO_VM_FORWARD = 5, /* hand on with out->ack's seq and tsval */
	TO_VM_NO_FLOW = 6, /* there is no record */
};

/* What becomes of a segment of which a copy was made. */
enum hand {
	HAND_NOTHING = 0, /* it waits in the hold */
	HAND_AND_ACK = 1, /* a clone goes to the VM; if the ring takes it, the host acknowledges */
	HAND_ON = 2, /* it passes to the VM, and a later one is acknowledged with it */
};

/* What becomes of a segment after TO_VM_KEEP. */
enum kept_verdict {
	KEPT_PASS = 0, /* hand on untouched */
	KEPT_ACK = 1, /* the host has it: answer with out->ack, hand nothing on */
	KEPT_DROP = 2, /* the sender will send it again, or the VM has it */
};

/* What becomes of a segment of the VM. */
enum from_vm_verdict {
	FROM_VM_PASS = 0, /* hand on untouched */
	FROM_VM_DROP = 1, /* superfluous: the sender has a better ACK already */
	FROM_VM_REWRITE = 2, /* replace ack and window, drop stale SACK blocks */
	FROM_VM_REPLACE = 3, /* out->ack goes in its place: it reports what is held */
	FROM_VM_RESET = 4, /* answer the VM with RST, hand nothing on */
	FROM_VM_RESET_BOTH = 5, /* RST to both ends */
	FROM_VM_NO_FLOW = 6, /* there is no record */
};

/* What happened, for the counters: a bit mask out of a decision. */
#define EVENT_OFFLINE_SEQ 0x00001 /* to FLOW_UNEXPECTED_SEQ, for a hole */
#define EVENT_OFFLINE_NO_BUF 0x00002 /* to FLOW_NO_BUF */
#define EVENT_OFFLINE_CE 0x00004 /* to FLOW_UNEXPECTED_SEQ, for congestion */
#define EVENT_BYPASS 0x00008 /* to FLOW_BYPASS */
#define EVENT_REFUSED 0x00010 /* the VM reset what only the host had asked it, or held for it */
#define EVENT_SAMPLE 0x00020 /* sample_ns of struct outcome is valid */
#define EVENT_SAMPLE_EARLY 0x00040 /* ... of a byte that was acknowledged early */
#define EVENT_LATE 0x00080 /* the VM was seen not to answer for 1 ms */
#define EVENT_PROMPT 0x00100 /* the VM was seen to answer within 1 ms */
#define EVENT_CLOSED 0x00200 /* the record can be removed now */
#define EVENT_PASSIVE 0x00400 /* a segment was left to a prompt VM */
#define EVENT_WAKE 0x00800 /* the engine has something to do */
#define EVENT_FREE 0x01000 /* hold.busy was set: free what the VM has acknowledged */
#define EVENT_HOLD_FULL 0x02000 /* no memory for a segment */
#define EVENT_ABANDONED 0x04000 /* reset: the engine that has its bytes is gone */
#define EVENT_OUT_OF_ORDER 0x08000 /* kept in an out-of-order range */
/* It tells the VM something beside its data; if the VM gets nothing of it, hold_news() goes
 * there. */
#define EVENT_NEWS 0x10000
/* The segment passes, but its FIN lies beyond the VM's window, and the host has shown the sender
 * more: the FIN is taken out.  Some guests take the data up to their window, and the FIN too. */
#define EVENT_EARLY_FIN 0x20000

/* Side results of a decision. */
struct outcome {
	struct ack_fields ack; /* what the verdict says of it */
	__u64 now; /* when it was decided, ns */
	__u64 sample_ns; /* how long the VM took to acknowledge the timed byte */
	__u64 late_since_ns; /* with EVENT_LATE: since when nothing moved */
	__u32 events; /* EVENT_* */
	__u32 hold; /* number of the flow's hold; 0: none */
	__u16 skip; /* TO_VM_KEEP: leading bytes that are kept already */
	__u16 hand; /* TO_VM_KEEP: enum hand */
};

#endif
