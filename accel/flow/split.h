/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which connections are worth a split (types/split_records.h), and when.
 *
 * A connection becomes a candidate by its handshake, the only place of its window scales, MSS and
 * options. While the VM is late, the hooks follow the numbers of its candidates. A VM that has a
 * first flight on its way waits for ACKs then, and the peer's will meet it without a CPU: the
 * splitter is asked. It has copies of what is in flight (SPLIT_COPY), makes both sockets, and the
 * connection is split if neither end has sent anything new meanwhile.
 */
#ifndef VSNOOP_FLOW_SPLIT_H
#define VSNOOP_FLOW_SPLIT_H

#include "types.h"

/* A VM that answers a SYN, or an ACK for which it has more to send, after more than this is
 * late ... */
#define SPLIT_LATE_NS 2000000ull
/* ... unless after this much: then it had nothing to send. */
#define SPLIT_IDLE_NS 1000000000ull
/* It counts as late for this long afterwards. */
#define SPLIT_LATE_FOR_NS 10000000000ull
/* The splitter is asked this often about a candidate in an epoch. */
#define SPLIT_ASKS 16

static __always_inline bool split_is_late(const struct split_port *port, __u64 now)
{
	return now < port->late_until_ns;
}

/* The VM took from `since` until `now` to answer. */
static __always_inline void split_note_answer(struct split_port *port, __u64 since, __u64 now)
{
	__u64 ns = now - since;

	if (!since || now < since || ns < SPLIT_LATE_NS || ns > SPLIT_IDLE_NS)
		return;
	port->late_seen++;
	if (!split_is_late(port, now))
		port->epoch++;
	port->late_until_ns = now + SPLIT_LATE_FOR_NS;
}

/* Options that both ends offer, or neither uses. */
#define SPLIT_OPTIONS (SPLIT_F_TIMESTAMPS | SPLIT_F_SACK | SPLIT_F_SCALES)

static __always_inline __u8 split_offers(const struct segment *s)
{
	return (s->bits & SEG_TIMESTAMPS ? SPLIT_F_TIMESTAMPS : 0) |
	       (s->bits & SEG_SACK_PERMITTED ? SPLIT_F_SACK : 0) |
	       (s->bits & SEG_SCALE ? SPLIT_F_SCALES : 0);
}

/* Is the SYN-ACK another than the one before: of another socket of the same end, with an ISN of its
 * own? Which of them the other end has taken is not known. One that is the same is no matter. */
static __always_inline bool split_is_other_syn(const struct split_candidate *c,
					       const struct segment *s, __u16 mss, bool by_vm)
{
	if (!(c->flags & (by_vm ? SPLIT_F_VM_SYN : SPLIT_F_PEER_SYN)))
		return false;
	return (c->flags & SPLIT_OPTIONS & ~split_offers(s)) ||
	       mss != (by_vm ? c->vm_mss : c->peer_mss) ||
	       s->scale != (by_vm ? c->vm_scale : c->peer_scale);
}

/* A SYN begins a candidate, a SYN-ACK completes it. `mss`: the option's value; `by_vm`: who sent
 * it. */
static __always_inline void split_note_syn(struct split_candidate *c, const struct segment *s,
					   __u16 mss, bool by_vm, __u64 now)
{
	__u8 offers = split_offers(s), other = by_vm ? SPLIT_F_PEER_SYN : SPLIT_F_VM_SYN;

	if (!(s->tcp_flags & TCP_ACK)) {
		__builtin_memset(c, 0, sizeof(*c));
		c->flags = offers | (s->len ? SPLIT_F_NEVER : 0);
	} else {
		if (split_is_other_syn(c, s, mss, by_vm))
			c->flags |= SPLIT_F_NEVER;
		/* An option that was offered counts if it is taken. Restored sockets cannot have
		 * ECN (RFC 3168), AccECN or MPTCP. */
		c->flags &= offers | ~SPLIT_OPTIONS;
		if (!(c->flags & other) || s->tcp_flags & (TCP_ECE | TCP_CWR) || s->len ||
		    s->bits & SEG_FOREIGN)
			c->flags |= SPLIT_F_NEVER;
	}
	c->waits_ns = by_vm ? 0 : now;
	if (by_vm) {
		c->flags |= SPLIT_F_VM_SYN;
		c->vm_scale = s->scale;
		c->vm_mss = mss;
		c->vm_tsval = s->tsval;
	} else {
		c->flags |= SPLIT_F_PEER_SYN;
		c->peer_scale = s->scale;
		c->peer_mss = mss;
		c->peer_tsval = s->tsval;
	}
}

/* Begins an epoch of the port for the candidate: its notes of an earlier epoch may have gaps. */
static __always_inline void split_enter_epoch(struct split_candidate *c, __u32 epoch)
{
	if (c->epoch == epoch)
		return;
	c->epoch = epoch;
	c->flags &= ~(SPLIT_F_PEER | SPLIT_F_VM);
	c->asked = 0;
	c->waits_ns = 0;
	if (c->sent >> 32 != SPLIT_DONE)
		c->sent = (__u32)c->sent;
}

/* Flags and options after which a connection ends, or needs its VM. */
static __always_inline bool split_is_special(const struct segment *s)
{
	return s->tcp_flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_URG) ||
	       !(s->tcp_flags & TCP_ACK) || s->bits & (SEG_FOREIGN | SEG_CE);
}

/* MSS of what the VM sends, without options that each segment has. */
static __always_inline __u32 split_mss(const struct split_candidate *c)
{
	__u32 mss = c->peer_mss < c->vm_mss ? c->peer_mss : c->vm_mss;

	return c->flags & SPLIT_F_TIMESTAMPS ? mss - 12 : mss;
}

static __always_inline __s32 split_in_flight(const struct split_candidate *c)
{
	return seq_diff(seq_of(c->sent), c->peer_ack);
}

/* Follows a segment of the peer, which passes. */
static __always_inline void split_note_peer(struct split_candidate *c, const struct segment *s,
					    __u32 epoch, __u64 now)
{
	struct seq end = seq_add(s->seq, s->len);

	split_enter_epoch(c, epoch);
	if (split_is_special(s)) {
		c->flags |= SPLIT_F_NEVER;
		return;
	}
	if (!(c->flags & SPLIT_F_PEER)) {
		c->peer_nxt = end;
		c->peer_ack = s->ack;
		c->flags |= SPLIT_F_PEER;
	}
	if (seq_gt(s->ack, c->peer_ack)) {
		if (!c->waits_ns &&
		    split_in_flight(c) >= (__s32)(SPLIT_SEGMENTS * split_mss(c) / 2))
			c->waits_ns = now;
		c->peer_ack = s->ack;
	}
	c->peer_nxt = seq_max(c->peer_nxt, end);
	c->peer_window = s->window;
	if (s->bits & SEG_TIMESTAMPS)
		c->peer_tsval = s->tsval;
	c->peer_traffic = s->traffic;
	c->peer_ttl = s->ttl;
}

/* Follows what a segment of the VM says besides its data. Before split_note_sent(). */
static __always_inline void split_note_vm(struct split_candidate *c, const struct segment *s)
{
	c->vm_ack = c->flags & SPLIT_F_VM ? seq_max(c->vm_ack, s->ack) : s->ack;
	c->vm_window = s->window;
	if (s->bits & SEG_TIMESTAMPS)
		c->vm_tsval = s->tsval;
	c->vm_traffic = s->traffic;
	c->vm_ttl = s->ttl;
	copy_mac(c->next_hop, s->destination);
}

/* Moves SND.NXT of the VM. Returns false if the segment must not pass: the connection is split, or
 * becomes so at this moment. */
static __always_inline bool split_note_sent(struct split_candidate *c, const struct segment *s)
{
	struct seq end = seq_add(s->seq, s->len);
	__u64 was, now;
	int tries;

	for (tries = 0; tries < 4; tries++) {
		was = *(volatile __u64 *)&c->sent;
		if (was >> 32 == SPLIT_DONE)
			return false;
		if (c->flags & SPLIT_F_VM && !seq_gt(end, seq_of(was)))
			return true;
		now = was >> 32 << 32 | end.v;
		if (__sync_val_compare_and_swap(&c->sent, was, now) == was) {
			c->flags |= SPLIT_F_VM;
			return true;
		}
	}
	return false;
}

/* A SYN of an end whose connection is over: its ports are used again. */
static __always_inline bool split_is_used_again(const struct split_flow *f, const struct segment *s)
{
	return f->is_over && (s->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* May the connection ever be split, and is everything known for that? */
static __always_inline bool split_is_fit(const struct split_candidate *c)
{
	const __u8 needed = SPLIT_F_PEER_SYN | SPLIT_F_VM_SYN | SPLIT_F_PEER;

	return (c->flags & (needed | SPLIT_F_NEVER)) == needed;
}

/* Is the splitter to be asked, with this segment of the VM? Only where the VM has acknowledged all
 * of the peer. */
static __always_inline bool split_is_worth_it(struct split_candidate *c)
{
	__u32 mss = split_mss(c);
	__u64 was = c->sent;

	if (was >> 32 != SPLIT_PASSES || !split_is_fit(c) || c->asked >= SPLIT_ASKS ||
	    !seq_eq(c->vm_ack, c->peer_nxt) ||
	    split_in_flight(c) < (__s32)(SPLIT_SEGMENTS * mss - mss / 2))
		return false;
	c->asked++;
	return __sync_val_compare_and_swap(&c->sent, was, (__u64)SPLIT_WANTED << 32 | (__u32)was) ==
	       was;
}

#endif
