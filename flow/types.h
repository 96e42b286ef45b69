/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Everything that the BPF programs, the Rust userland and the tests share.
 * Rust's view of these types is generated from this file (crates/vsnoop-flow).
 *
 * Names follow the vSnoop report, section III: NEXT_SEQ is the next in-order
 * byte expected from the sender, VM_SEQ is what the VM itself has acknowledged,
 * FL_MODE is the mode of a flow.  "The sender" is the remote end whose data
 * goes to the VM.  Times are CLOCK_MONOTONIC in nanoseconds.
 */
#ifndef VSNOOP_FLOW_TYPES_H
#define VSNOOP_FLOW_TYPES_H

#include "seq.h"

/* Changes whenever a pinned map's layout or meaning changes. */
#define VSNOOP_ABI 8

/* Which flow: always seen from the sender towards the VM. */
struct flow_key {
	__u8 sender_addr[16]; /* IPv4 as ::ffff:a.b.c.d; network byte order */
	__u8 vm_addr[16];
	__u16 sender_port; /* network byte order */
	__u16 vm_port;
	__u16 vlan_outer; /* TCI & 0x0fff, plus VLAN_PRESENT; 0: untagged */
	__u16 vlan_inner;
	/* A bridge floods frames for others to all its ports, and another host
	 * may have the addresses: the VM answers to its own MAC only. */
	__u8 vm_mac[6];
	__u16 zero;
};

#define VLAN_PRESENT 0x1000

/* FL_MODE. Only ACTIVE and HOLDING flows are acknowledged early. */
enum flow_mode {
	FLOW_ACTIVE = 0,
	/* Offline until the VM's ACK passes the highest byte seen: a hole, a
	 * FIN, URG, a CE mark, anything that the VM itself must answer. */
	FLOW_UNEXPECTED_SEQ = 1,
	/* Offline: the host has no memory for a copy. */
	FLOW_NO_BUF = 2,
	/* Offline: the VM answers promptly by itself; nothing to gain. */
	FLOW_ASIDE = 3,
	/* Never acknowledged early: options not understood, or denied. */
	FLOW_BYPASS = 4,
	/* What the host acknowledged cannot reach the VM: both ends are answered
	 * with RST. */
	FLOW_RESET = 5,
	/* The host has acknowledged bytes that it has not handed to the VM yet:
	 * they wait in the hold, and nothing in order overtakes them. */
	FLOW_HOLDING = 6,
	FLOW_MODES = 7,
};

/* Why a flow is in BYPASS, or what is known about it. */
#define FLOW_F_TIMESTAMPS 0x0001 /* RFC 7323 timestamps are in use */
#define FLOW_F_SACK 0x0002 /* SACK is permitted */
#define FLOW_F_SCALE_KNOWN 0x0004 /* the VM's window scale is known */
#define FLOW_F_MID_FLOW 0x0008 /* set up without a handshake */
#define FLOW_F_VM_OPENED 0x0010 /* the VM sent the SYN */
#define FLOW_F_FIN_SENDER 0x0020
#define FLOW_F_FIN_VM 0x0040
#define FLOW_F_CLOSED 0x0080 /* torn down; only waits to expire */
#define FLOW_F_REPLY_DUE 0x0100 /* the VM owes the sender an answer: pass it */
#define FLOW_F_CHALLENGE_DUE 0x0200 /* the next repeated ACK may be a challenge ACK */
#define FLOW_F_ECE 0x0400 /* the VM echoes congestion (RFC 3168) */
/* The VM accepted, and has sent nothing beyond its SYN-ACK: it may have no
 * connection yet (full accept queue, SYN cookies). */
#define FLOW_F_UNCONFIRMED 0x0800
#define FLOW_F_FAILED 0x1000 /* BYPASS: connections of this VM port failed lately */
#define FLOW_F_DENIED 0x2000 /* BYPASS by the operator's lists */
#define FLOW_F_FOREIGN 0x4000 /* BYPASS: an option that is not understood */
#define FLOW_F_UNPROVEN 0x8000 /* the ring may hold segments from before the record */

/* What incast control knows of a flow (incast.h): one cache line. */

#define INCAST_BY_TSVAL 0x01 /* `asked` is a TSval */
#define INCAST_FINISHED 0x02 /* the sender had nothing more to send, and was not asked since */
#define INCAST_SPEAKS 0x04 /* it has spoken unasked after it had finished */
#define INCAST_AVOIDS 0x200 /* its window grows by steps; else it is in slow start, and doubles */
#define INCAST_ANSWERS 0x100 /* it was asked after it had finished */
#define INCAST_STILL 0x08 /* its window was closed when it was last given one */
#define INCAST_MARKED 0x10 /* CE marks came within the round trip */
#define INCAST_WIDE 0x20 /* it was shown a window of two segments once */
#define INCAST_ASKED 0x80 /* the VM sent it something, and it has not answered yet */
#define INCAST_GIVEN 0x40 /* it was given a window that its sender was not shown yet */
#define INCAST_BESIDE 0x400 /* its sender's segments do not come through the uplink */

enum incast_waiting {
	INCAST_NOT_WAITING = 0,
	INCAST_IN_LINE = 1, /* for credit, its window closed */
	INCAST_SHUT = 2, /* it had nothing to send when its window closed, and only answers */
	INCAST_IDLE = 3, /* it had nothing to send, and may speak at any time */
};

/* What came of a turn that the helper offered. */
enum incast_turn_taken {
	TURN_NOBODY = 0, /* nobody can have one now */
	TURN_TAKEN = 1,
	TURN_LATER = 2, /* those that were asked did not take it; others may */
};

struct incast {
	struct seq received; /* highest byte that came from the sender, plus one */
	struct seq edge; /* right edge that it was granted */
	__u32 window; /* what it should be granted beyond `received`, bytes */
	__u32 measured; /* b_m, bytes per 2^20 ns */
	__u64 sample_ns; /* start of the round trip that is measured */
	__u32 sample_bytes; /* what came since */
	__u32 rtt_ns; /* smoothed; 0: not known yet */
	__u32 min_rtt_ns;
	__u32 asked; /* the TSval, or the edge, whose echo ends a round trip */
	__u32 asked_at; /* when it was sent, 2^4 ns; 0: none is under way */
	__u32 epoch; /* what it owes counts until this one ends */
	__u16 grown_at; /* last growth beyond the share, 2^14 ns */
	__u16 before; /* low half of the edge that its sender was shown before it was last given one, */
	__u16 cut; /* ... and of that which it was shown then */
	__u16 bits; /* INCAST_BY_TSVAL, ...; the verifier takes no bit fields */
	__u32 ts_recent; /* the sender's last TSval */
	__u8 over; /* round trips in a row with d > 1/2; in steps of INCAST_FAR_STEP those that were long */
	__u8 census; /* the one that has counted it */
	__u8 waiting; /* enum incast_waiting */
	__u8 shaped; /* the edge binds; else the flow is left alone */
};

/* One flow: 128 bytes, in three groups by who writes while data flows, and a line
 * for incast control.  Sender and VM are served by different CPUs, and a cache line
 * that one of them writes costs the other some 100 ns. */
struct flow {
	/* Seldom written. */
	__u64 last_ns; /* last packet that was decided about under the lock; see flow_touch() */
	__u16 offline; /* how often the flow left ACTIVE, up to 65535 */
	__u16 tag; /* of the key: a record that is reused meanwhile is found out */
	__u16 mss; /* largest segment payload seen, bytes */
	__u16 flags; /* FLOW_F_* */
	__u8 mode; /* enum flow_mode */
	__u8 scale; /* the VM's window scale; 0 while unknown */
	__u8 next_hop[6]; /* the MAC address that the VM sends to */

	/* Written for packets of the VM, and when the host acknowledges. */
	VSNOOP_LOCK;
	struct seq vm_seq; /* VM_SEQ: acknowledged by the VM up to here */
	struct seq right_edge; /* of the receive window that the VM advertised */
	struct seq adv_edge; /* highest right edge that the sender was shown */
	struct seq snd_nxt; /* the VM's SND.NXT */
	__u32 vm_tsval; /* the VM's last TSval */
	__u32 ts_recent; /* no TSval below this is sure to be accepted by the VM */
	struct seq ts_seq; /* an ACK of the VM beyond this knows what raised ts_recent */
	__u64 progress_ns; /* the VM last advanced, or its backlog began */
	__u32 heard_at; /* the VM's last packet, 2^20 ns */
	__u32 suppressed; /* ACKs of the VM that were dropped as superfluous */
	__u32 rewritten; /* packets of the VM whose ACK field was raised */
	__u32 reacked; /* retransmissions answered by the host */
	__u32 retired; /* bytes outstanding when the flow was reset */
	__u32 traffic; /* of the VM's packets: traffic class << 20 | IPv6 flow label */

	/* Written for segments to the VM. */
	struct seq next_seq; /* NEXT_SEQ: acknowledged to the sender up to here */
	struct seq high_seq; /* highest byte handed to the VM, plus one */
	struct seq snd_una; /* highest ACK of the sender */
	struct seq sample_seq; /* byte whose acknowledgement is being timed */
	__u64 sample_ns; /* when sample_seq was handed to the VM */
	__u64 early_bytes;
	__u32 early_acks;
	__u8 ramp; /* segments since the start or the last hole, up to FLOW_RAMP */
	__u8 sample; /* enum flow_sample */
	__u16 hold; /* number of its struct hold, from 1; 0: none */

	struct incast incast; /* see incast.h */
};

/* Is a byte being timed, and was it acknowledged early? */
enum flow_sample {
	FLOW_SAMPLE_NONE = 0,
	FLOW_SAMPLE_PASSED = 1,
	FLOW_SAMPLE_EARLY = 2,
};

/*
 * The hold: what the host keeps of what it has acknowledged (flow/hold.h).
 *
 * A port's memory comes in slabs, which the engine adds when the hooks want memory
 * and takes back when it is not used.  A slab has chunks of bytes and a number of
 * holds.  The chunks of a flow form a chain of consecutive bytes of its stream, from
 * the chunk with VM_SEQ to the one with the last byte kept.  Slabs are shared with the
 * engine, which maps them; "hooks" and "engine" say who writes.  The flow's record
 * holds the truth; what the hooks write here is told to the engine.
 */
#define HOLD_CHUNK 4096 /* bytes */
#define SLAB_CHUNKS 64
#define SLAB_BYTES (SLAB_CHUNKS * HOLD_CHUNK)
#define SLAB_HOLDS 32
#define SLABS 1024 /* of one port at most: 256 MiB */
/* Seconds without an engine, after which what only it could hand over is taken for lost. */
#define HOLD_ABANDONED_S 30
/* As owner of a chunk, or in `used` of a hold: the engine takes the slab away. */
#define HOLD_RESERVED 0xffffffff

struct hold_chunk {
	__u32 owner; /* number of the hold, from 1; 0: free */
	__u32 next; /* chunk with the bytes that follow; valid for all but the last */
};

/* One flow that is kept copies of. */
struct hold {
	struct flow_key key;
	__u32 used; /* 0: free; taken and given back by the hooks */
	__u32 busy; /* somebody adds to the chain or takes from it */

	/* The chain; changed by who has set `busy`. */
	__u64 front; /* SEQ of the first chunk's first byte << 32 | that chunk */
	__u32 last; /* the last chunk */
	__u32 chunks; /* how many */
	__u32 at; /* the chunk with the byte at `at_base`, its first, somewhere in the chain */
	struct seq at_base;
	__u32 ahead_at; /* the same for the latest piece beyond a hole */
	struct seq ahead_base;

	/* Hooks, under the record's lock. */
	struct seq first; /* copies are kept from here, or from VM_SEQ if that is more */
	struct seq tail; /* ... to here */
	struct seq vm_seq; /* as in the record */
	struct seq right_edge;
	struct seq high_seq; /* what the hooks know to have been handed to the VM */
	struct seq snd_una;
	struct seq snd_nxt;
	__u32 vm_tsval;
	__u32 tsval; /* the highest TSval of the sender */
	__u32 tsecr; /* its latest TSecr */
	__u32 ahead_count; /* pieces that are kept beyond a hole */
	struct seq ahead[8]; /* left and right edge of each, the latest first */
	__u32 rcv_win; /* RCV_WIN: what the sender may be shown beyond NEXT_SEQ, bytes */
	__u64 since_ns; /* the oldest byte that waits has done so since then */
	struct seq sender_seq; /* SEQ of the segment that told sender_window, or more */
	__u16 sender_window; /* raw */
	__u16 mss;
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
	__u64 resent_bytes;
	__u32 probes; /* segments without news that ask the VM for an answer */
	__u32 zero2;
};

#define HOLD_TIMESTAMPS 0x01 /* the connection uses them */
#define HOLD_FIN 0x02 /* the sender's FIN follows the last byte kept */
#define HOLD_OVER 0x04 /* the connection was reset: nothing is to be sent any more */
/* The VM may have no connection yet: it is sent nothing but what completes the
 * handshake, data from its VM_SEQ on. */
#define HOLD_UNCONFIRMED 0x08

/* Chunk c is chunk c % SLAB_CHUNKS of slab c / SLAB_CHUNKS; hold n, from 1, is hold
 * (n - 1) % SLAB_HOLDS of slab (n - 1) / SLAB_HOLDS. */
struct hold_slab {
	__u8 bytes[SLAB_BYTES];
	struct hold_chunk chunks[SLAB_CHUNKS];
	struct hold holds[SLAB_HOLDS];
	/* A bit for each hold: something was kept, and the VM may have to acknowledge it.  The
	 * hooks set it if it is not, the engine clears it. */
	__u32 busy;
	__u32 zero;
};

/* A handshake under way, in a table of its own so that a SYN flood cannot
 * push out a working flow. Made by the VM's own SYN or SYN-ACK only. */
enum embryo_stage {
	EMBRYO_VM_SYN = 1, /* the VM opened; the SYN-ACK is awaited */
	EMBRYO_VM_SYN_ANSWERED = 2, /* ... and came; the VM's ACK is awaited */
	EMBRYO_VM_SYN_ACK = 3, /* the VM accepted; the sender's ACK is awaited */
};

struct embryo {
	struct seq vm_iss;
	struct seq rcv_nxt; /* the sender's ISS + 1 (stages 2 and 3) */
	__u32 vm_tsval;
	__u32 window; /* bytes; never scaled in a SYN */
	__u32 shown; /* what the sender is shown of it */
	__u16 flags; /* FLOW_F_* that the record will start with */
	__u8 scale; /* the VM's own shift count */
	__u8 stage;
	__u32 traffic; /* as in the record */
	__u16 syn_len; /* data on the VM's SYN (RFC 7413), bytes */
	__u8 next_hop[6];
	__u64 sent_ns; /* when the VM sent it; 0: it has repeated it */
};

/* TCP header flags (RFC 9293, section 3.1; RFC 9768 for AE). */
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10
#define TCP_URG 0x20
#define TCP_ECE 0x40
#define TCP_CWR 0x80

/* What a packet is beyond its header fields. */
#define SEG_TIMESTAMPS 0x01 /* tsval and tsecr are valid */
#define SEG_SACK 0x02 /* carries SACK blocks; sack_end is the highest right edge */
#define SEG_SACK_PERMITTED 0x04
#define SEG_SCALE 0x08 /* carries a window scale option */
#define SEG_FOREIGN 0x10 /* carries an option, or AE, that is not understood */
#define SEG_SACK_ODD 0x40 /* the SACK blocks are not on a word boundary: none can be taken out */
#define SEG_CE 0x20 /* the IP header says congestion experienced */

/* A parsed TCP segment. All fields in host byte order. */
struct segment {
	struct seq seq;
	struct seq ack;
	__u32 len; /* payload bytes, of a super-packet all of them */
	__u32 tsval;
	__u32 tsecr;
	struct seq sack_end;
	__u16 window; /* raw */
	__u16 unit_len; /* payload bytes of one segment of a super-packet, else len */
	__u8 tcp_flags;
	__u8 scale;
	__u16 bits; /* SEG_* */
	__u8 destination[6]; /* MAC address */
	__u16 zero;
	__u32 traffic; /* traffic class << 20 | IPv6 flow label */
};

/* Fields of an ACK that the host sends, or of a rewritten packet of the VM. */
struct ack_fields {
	struct seq seq;
	struct seq ack;
	__u32 tsval;
	__u32 tsecr;
	__u16 window; /* raw, already scaled down */
	__u16 timestamps; /* 1: the ACK carries the timestamps option */
	__u32 sack; /* number of the hold whose pieces it reports; 0: none */
	__u32 traffic; /* traffic class << 20 | IPv6 flow label */
	__u8 next_hop[6]; /* MAC address of the sender's side */
	__u16 zero;
};

enum to_vm_verdict {
	TO_VM_PASS = 0, /* hand on untouched */
	TO_VM_REACK = 1, /* the host has it: answer with an ACK, hand nothing on */
	TO_VM_RESET = 2, /* answer with RST, hand nothing on */
	TO_VM_KEEP = 3, /* copy from byte out->skip; see out->hand; then flow_kept() */
	TO_VM_DROP = 4, /* the sender will send it again */
	TO_VM_FORWARD = 5, /* hand on with out->ack's seq and tsval */
	TO_VM_NO_FLOW = 6,
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
	KEPT_DROP = 2,
};

enum from_vm_verdict {
	FROM_VM_PASS = 0,
	FROM_VM_DROP = 1, /* superfluous: the sender has a better ACK already */
	FROM_VM_REWRITE = 2, /* replace ack and window, drop stale SACK blocks */
	FROM_VM_REPLACE = 3, /* out->ack goes in its place: it reports what is held */
	FROM_VM_RESET = 4, /* answer the VM with RST, hand nothing on */
	FROM_VM_RESET_BOTH = 5, /* RST to both ends */
	FROM_VM_NO_FLOW = 6,
};

/* What happened, for the counters: a bit mask out of a decision. */
#define EVENT_OFFLINE_SEQ 0x0001
#define EVENT_OFFLINE_NO_BUF 0x0002
#define EVENT_OFFLINE_CE 0x0004
#define EVENT_BYPASS 0x0008
#define EVENT_REFUSED 0x0010 /* the VM reset what only the host had asked it, or held for it */
#define EVENT_SAMPLE 0x0020 /* sample_ns of struct outcome is valid */
#define EVENT_SAMPLE_EARLY 0x0040
#define EVENT_LATE 0x0080 /* the VM was seen not to answer for 1 ms */
#define EVENT_PROMPT 0x0100 /* the VM was seen to answer within 1 ms */
#define EVENT_CLOSED 0x0200 /* the record can be removed now */
#define EVENT_ASIDE 0x0400
#define EVENT_WAKE 0x1000 /* the engine has something to do */
#define EVENT_FREE 0x2000 /* hold.busy was set: free what the VM has acknowledged */
#define EVENT_HOLD_FULL 0x4000 /* no memory for a segment */
/* It tells the VM something beside its data; if the VM gets nothing of it, hold_news() goes
 * there. */
#define EVENT_NEWS 0x20000
#define EVENT_AHEAD 0x10000 /* kept beyond a hole */
/* The segment passes, but its FIN lies beyond the VM's window, and the host has shown the sender
 * more: the FIN is taken out.  Some guests take the data up to their window, and the FIN too. */
#define EVENT_EARLY_FIN 0x40000
#define EVENT_ABANDONED 0x8000 /* reset: the engine that has its bytes is gone */

/* Side results of a decision. */
struct outcome {
	struct ack_fields ack;
	__u64 now; /* when it was decided, ns */
	__u64 sample_ns; /* how long the VM took to acknowledge the timed byte */
	__u64 late_since_ns; /* with EVENT_LATE: since when nothing moved */
	__u32 events; /* EVENT_* */
	__u32 hold; /* number of the flow's hold; 0: none */
	__u16 skip; /* TO_VM_KEEP: leading bytes that are kept already */
	__u16 hand; /* TO_VM_KEEP: enum hand */
};

/* Per port settings; the operator's choices, constant while packets flow
 * except for `run`. */
enum port_run {
	PORT_OBSERVE = 0, /* measure only; no packet is changed */
	PORT_ACTIVE = 1,
	PORT_PAUSED = 2, /* no new early ACKs; those given out are honoured */
};

/* In `run`, beside the operator's choice: the helper holds the port back. The
 * hooks then take it for paused, whatever was chosen. */
#define PORT_HELD 0x80000000

struct policy {
	__u32 run; /* enum port_run, PORT_HELD */
	__u32 thin; /* 1: stand aside for a VM that answers by itself */
	__u32 hold_chunks; /* memory for the hold, at most */
	__u32 ahead; /* how far a sender may run ahead of the VM's own window, bytes */
	__u32 silence_ms; /* the host vouches no longer for a VM that has sent nothing */
	__u32 zero;
};

/* What is constant while a port is attached: the verifier drops what is not used. */
struct port_config {
	__u32 hold; /* 1: early acknowledgement; 0: the port is only observed */
	__u32 lists; /* LIST_* */
};

/* Is there incast control?  Ports without it have other programs, compiled without: what the
 * verifier drops of a program stays in memory. */
#ifndef INCAST_USED
#define INCAST_USED 1
#endif

#define LIST_PORTS 0x01 /* the port list is not empty */
#define LIST_PREFIXES 0x02
#define LIST_PORTS_ALLOW 0x04 /* only listed ports are accelerated */
#define LIST_PREFIXES_ALLOW 0x08

/* Of connections of one port number of the VM. */
struct failures {
	__u32 count; /* within the last minute */
	__u32 total;
	__u64 since_ns; /* of the first that counts */
	__u64 until_ns; /* new connections are left alone until then */
};

#define INCAST_EPOCHS 16

/* What flows owe an uplink: those of one port, or those of all ports behind it. */
struct incast_account {
	__s64 granted; /* what live flows owe: the sum of granted edge - received */
	__s64 silent; /* the same of those that were not active of late, or have finished */
	__s64 ends[INCAST_EPOCHS]; /* of `granted`, what counts until that epoch ends */
	__u32 epoch; /* see INCAST_EPOCH_BITS */
	__s32 open; /* flows that are shaped, idle ones too */
	__s32 waiting; /* flows in line */
	__u32 zero;
};

/* Incast control of one port; written by its hooks, without a lock. */
struct incast_port {
	struct incast_account own;
	__u32 flows; /* that sent data during the last census, or wait */
	__u32 counted; /* so far in this one */
	__u32 census; /* the uplink's, when `flows` was set */
	__u32 wanted; /* the latest census in which the port wanted more than there was */
	__s32 shut; /* flows with a closed window that had nothing to send: INCAST_SHUT, ... */
	__s32 idle; /* ... and INCAST_IDLE */
	__u32 turns; /* how many were taken */
	__u32 wanted_before; /* the latest such census before that one */
};

/* What is known about the VM behind a port: how promptly it answers. */
struct port_state {
	__u64 late_ns; /* when it was last seen late */
	__u64 run_ns; /* start of the present run of observation */
	__u64 late_in_run_ns; /* how long it was late within it */
	__u64 prompt_until_ns; /* it is taken to be prompt until then */
	__u64 ring_full; /* segments that the ring refused */
	__u64 engine_ns; /* the engine was alive; written by it */
	__u32 slabs; /* how many there are; written by the engine */
	__u32 wants_slabs; /* the hooks want more; cleared by the engine */
	__u32 chunks_used;
	__u32 chunk_cursor; /* where the search for a free chunk begins */
	__u32 hold_cursor;
	__u32 zero;
	struct incast_port incast;
};

/* Ports that share programs, at most: each has the slot of this number in their arrays of maps. */
#define PORT_SLOTS 64

/* Of skb->cb, in which the programs are told which port is meant. */
#define CB_ID 3
#define CB_SLOT 4

/* What hooks and user space share of a port. */
struct port {
	struct policy policy; /* written by the command, read by the hooks */
	__u32 slot;
	__u32 id; /* never 0; no other port of this slot has had it lately */
	__u64 unused[4]; /* what the hooks write begins a cache line */
	struct port_state state;
};

#define INCAST_WAYS 64

/*
 * An uplink: the interface through which the senders' packets come, and what incast
 * control shares out among all flows of all ports behind it (incast.h).  Rates are
 * bytes per 2^20 ns.
 */
struct uplink {
	__u32 rate; /* C; 0: no incast control */
	__u32 buffer; /* queue of the last hop, bytes */
	__u64 bytes; /* all that came in, as on the wire; written by the uplink's hook */

	/* Written by the hooks of all ports, without a lock. */
	struct incast_account all;
	__s64 quota; /* bandwidth that may still be given away in this slot */
	__u64 slot_ns; /* start of the slot of 2T */
	__u64 slot_bytes; /* `bytes` then */
	__u64 census_ns;
	__u64 weighted_rtt; /* sum over samples of the slot, each times its bytes */
	__u64 weight;
	__u32 total; /* BW_T */
	__u32 t_ns; /* T */
	__u32 base_rtt_ns; /* of an empty queue */
	__u32 census; /* number of the present one */
	__u32 active; /* ports that data came for during the last census */
	__u32 active_now; /* ... and so far in this one */
	__u32 wanting; /* ports that wanted more than their share of all: likewise */
	__u32 wanting_now;
	__u32 is_granting; /* the second half of the slot */

	/* Interfaces that the uplink's packets may be seen to come in by: itself, what it is
	 * a port of, and what is stacked on these.  Written by user space; ends with a 0. */
	__u32 ways[INCAST_WAYS];
};

/* Why user space reset a connection. */
enum reset_reason {
	RESET_REFUSED = 0, /* the VM has room, answers, and refuses the same bytes again and again */
	RESET_SILENT = 1, /* it ran, and answered nothing for long */
	RESET_ENGINE_GONE = 2, /* no engine can hand over what is held */
	RESET_DETACHED = 3, /* the port was detached with bytes in the hold */
	RESET_TAP_GONE = 4,
	RESET_DESERTED = 5, /* the tap has no reader any more */
	RESET_REASONS = 6,
};

/* About the attachment itself; written by the userland only, and pinned with
 * the rest so that it outlives every process. */
struct port_meta {
	__u32 abi; /* VSNOOP_ABI */
	__u32 ifindex;
	__u64 netns; /* inode of the tap's network namespace */
	__u64 attached_at; /* seconds since the epoch */
	char ifname[16];
	char qdisc[16]; /* the default that noqueue replaced; empty: none was */
	__u32 tx_queue_len; /* of the tap when it was attached */
	__u32 tx_queues;
	__u32 bridge; /* index of the bridge that the tap is a port of; 0: none */
	__u32 uplink; /* index of the interface that incast control looks at; 0: none */
	__u64 times_held; /* how often PORT_HELD was set */
	__u64 resets[RESET_REASONS]; /* connections that user space reset */
	__u64 reset_bytes; /* ... and what the VM had not acknowledged of them */
	__u32 lists; /* LIST_*, as in the configuration */
	__u32 slot; /* as in struct port */
};

/*
 * Diversion (bpf/divert.bpf.c): which way a packet takes that a VM sends to an address.
 */
enum divert_action {
	DIVERT_NEVER = 0, /* an exception from a shorter prefix */
	DIVERT_OR_PASS = 1, /* into the link; the ordinary way while that is down */
	DIVERT_OR_DROP = 2, /* into the link, or nowhere */
};

/* Of a trie: all of `family` is part of every prefix. */
struct divert_key {
	__u32 bits; /* that count, of `family` and `addr` together */
	__u32 family; /* 4 or 6 */
	__u8 addr[16]; /* of IPv4 the first four bytes */
};

struct divert_rule {
	__u32 action; /* enum divert_action */
	__u32 zero;
	__u64 packets; /* into the link; a super-packet is one */
	__u64 bytes;
	__u64 missed; /* packets that came while the link was down */
};

/* Counters of one port, one set per CPU. Documented in docs/json.md. */
#define HISTOGRAM_BUCKETS 40
struct port_stats {
	__u64 to_vm_packets;
	__u64 to_vm_bytes;
	__u64 from_vm_packets;
	__u64 from_vm_bytes;
	__u64 early_acks;
	__u64 early_bytes;
	__u64 reacked;
	__u64 suppressed;
	__u64 rewritten;
	__u64 flows_created;
	__u64 flows_mid_flow;
	__u64 flows_closed;
	__u64 flows_refused; /* the table was full */
	__u64 offline_unexpected_seq;
	__u64 offline_no_buf;
	__u64 offline_ce;
	__u64 aside; /* segments left to a prompt VM */
	__u64 bypassed; /* flows that went to BYPASS */
	__u64 bad_checksum;
	__u64 not_exact; /* hand-over not exact: qdisc, segmentation */
	__u64 left_alone; /* flows of VM ports whose connections failed lately */
	__u64 vm_refused; /* the VM reset what only the host had asked it, or held for it */
	__u64 resets_sent;
	__u64 malformed; /* packets that could not be parsed; passed untouched */
	__u64 kept_bytes; /* copied into the hold */
	__u64 held_segments; /* acknowledged without having been handed over */
	__u64 held_bytes;
	__u64 kept_ahead; /* segments beyond a hole that were kept, and reported by SACK */
	__u64 thinned; /* segments that were kept and handed on, and acknowledged with a later one */
	__u64 without_hold; /* segments of connections for which there was no hold */
	__u64 hold_full; /* segments for which there was no memory */
	__u64 hold_dropped; /* segments that could not be kept, for whatever reason */
	__u64 abandoned; /* flows reset because the engine was gone */
	__u64 masked_ns[HISTOGRAM_BUCKETS]; /* early ACK to the VM's own; bucket b: [2^b, 2^(b+1)) ns */
	__u64 ack_delay_ns[HISTOGRAM_BUCKETS]; /* hand-over to the VM's own ACK */
	__u64 round_trip_ns[HISTOGRAM_BUCKETS]; /* to the other end and back, of handshakes */
};

#endif
