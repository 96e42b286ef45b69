/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Creation of a flow: from the VM's own SYN or SYN-ACK, or in mid-stream from the VM's ACK, but
 * never from packets that only the remote end has sent.
 *
 *   VM accepts:  SYN-ACK of the VM -> embryo;  the sender's ACK of it -> flow
 *   VM opens:    SYN of the VM -> embryo;  SYN-ACK -> answered;
 *                the VM's ACK -> flow
 *   mid-flow:    ACK of the VM -> flow with an unknown window scale
 *
 * Embryos have a table of their own: a SYN flood fills only that table, and a connection whose
 * embryo is evicted is left to the VM.
 *
 * A SYN or SYN-ACK of the VM with the key of a live record proves no new connection: a VM with
 * several listening sockets repeats the SYN-ACK of one while the sender talks to another. It makes
 * an embryo and leaves the record alone, until a segment that the record does not expect confirms
 * its ISN (flow_is_of_another(), embryo_is_confirmed_by_*()).
 */
#ifndef VSNOOP_FLOW_SETUP_H
#define VSNOOP_FLOW_SETUP_H

#include "state.h"

/* MSS until a larger segment is seen (RFC 9293, section 3.7.1). */
#define FLOW_DEFAULT_MSS 536

static __always_inline __u16 flow_option_flags(const struct segment *s)
{
	__u16 flags = 0;

	if (s->bits & SEG_TIMESTAMPS)
		flags |= FLOW_F_TIMESTAMPS;
	if (s->bits & SEG_SACK_PERMITTED)
		flags |= FLOW_F_SACK;
	/* Data on a SYN (TCP Fast Open, RFC 7413): left to the VM. */
	if (s->bits & SEG_FOREIGN || s->len)
		flags |= FLOW_F_FOREIGN;
	return flags;
}

/* Is this a retransmission of a SYN of the VM that was answered already? */
static __always_inline bool embryo_is_repeated(const struct embryo *e, const struct segment *s)
{
	return e->stage == EMBRYO_VM_SYN_ANSWERED && !(s->tcp_flags & TCP_ACK) &&
	       seq_eq(e->vm_iss, s->seq);
}

/* The VM repeats the SYN or SYN-ACK of `old`, perhaps with fewer options or without data. The other
 * end may answer either, so what the first one had still counts. */
static __always_inline void embryo_joins(struct embryo *e, const struct embryo *old)
{
	if (!seq_eq(e->vm_iss, old->vm_iss) || e->stage != old->stage)
		return;
	e->flags |= old->flags & FLOW_F_FOREIGN;
	if (e->stage != EMBRYO_VM_SYN)
		return;
	e->flags |= old->flags & (FLOW_F_TIMESTAMPS | FLOW_F_SACK);
	if (!e->scale)
		e->scale = old->scale;
	if (e->syn_len < old->syn_len)
		e->syn_len = old->syn_len;
}

/* The VM sent a SYN or a SYN-ACK. */
static __always_inline void embryo_from_vm(struct embryo *e, const struct segment *s)
{
	e->vm_iss = s->seq;
	e->rcv_nxt = s->ack;
	e->vm_tsval = s->tsval;
	e->window = e->shown = s->window;
	e->traffic = s->traffic;
	e->ttl = s->ttl;
	e->syn_len = s->len > 0xffff ? 0xffff : s->len;
	copy_mac(e->next_hop, s->destination);
	e->flags = flow_option_flags(s) | FLOW_F_SCALE_KNOWN;
	e->scale = s->bits & SEG_SCALE ? s->scale : 0;
	/* A SYN offers options, and the SYN-ACK takes or leaves them: MPTCP (RFC 8684, section
	 * 3.7), AccECN (RFC 9768, section 3.1.1). Data are not offered. */
	if (!(s->tcp_flags & TCP_ACK) && !s->len)
		e->flags &= ~FLOW_F_FOREIGN;
	if (s->tcp_flags & TCP_ACK) {
		e->stage = EMBRYO_VM_SYN_ACK;
		/* AccECN is accepted with CWR or AE (RFC 9768, table 2). */
		if (s->tcp_flags & TCP_CWR)
			e->flags |= FLOW_F_FOREIGN;
	} else {
		e->stage = EMBRYO_VM_SYN;
		e->flags |= FLOW_F_VM_OPENED;
	}
}

/* Does this SYN-ACK of the sender answer the VM's SYN? It may acknowledge data on the SYN or not
 * (RFC 7413). */
static __always_inline bool embryo_is_answered_by(const struct embryo *e, const struct segment *s)
{
	__u32 acked = seq_diff(s->ack, e->vm_iss);

	return e->stage != EMBRYO_VM_SYN_ACK && acked >= 1 && acked <= 1u + e->syn_len;
}

/* A SYN-ACK of the sender. Returns false where it does not answer the VM's SYN. */
static __always_inline bool embryo_answered(struct embryo *e, const struct segment *s)
{
	__u16 both;

	if (!embryo_is_answered_by(e, s))
		return false;
	e->stage = EMBRYO_VM_SYN_ANSWERED;
	e->rcv_nxt = seq_add(s->seq, 1);
	/* An option is in use only when both ends offered it. */
	both = flow_option_flags(s);
	e->flags &= both | ~(FLOW_F_TIMESTAMPS | FLOW_F_SACK);
	e->flags |= both & FLOW_F_FOREIGN;
	if (s->tcp_flags & TCP_CWR)
		e->flags |= FLOW_F_FOREIGN;
	if (!(s->bits & SEG_SCALE))
		e->scale = 0;
	return true;
}

static __always_inline void flow_start(struct flow *f, struct seq vm_seq, struct seq right_edge,
				       struct seq snd_nxt, __u64 now)
{
	f->next_seq = vm_seq;
	f->vm_seq = vm_seq;
	f->high_seq = vm_seq;
	f->right_edge = right_edge;
	f->adv_edge = right_edge;
	f->ts_seq = vm_seq;
	f->snd_nxt = snd_nxt;
	f->snd_una = snd_nxt;
	f->mode = FLOW_ACTIVE;
	f->mss = FLOW_DEFAULT_MSS;
	f->last_ns = now;
	f->progress_ns = now;
	f->heard_at = flow_stamp(now);
}

/* The VM's ring may have segments from before the record. They may fill or make holes, and carry
 * timestamps: nothing may be acknowledged early until the VM has acknowledged a segment that the
 * record has seen. */
static __always_inline void flow_start_unproven(struct flow *f)
{
	f->flags |= FLOW_F_UNPROVEN;
	f->mode = FLOW_UNEXPECTED_SEQ;
}

static __always_inline void flow_from_embryo(struct flow *f, const struct embryo *e, __u64 now)
{
	flow_start(f, e->rcv_nxt, seq_add(e->rcv_nxt, e->window), seq_add(e->vm_iss, 1), now);
	f->adv_edge = seq_add(e->rcv_nxt, e->shown);
	f->flags = e->flags;
	f->scale = e->scale;
	f->traffic = e->traffic;
	flow_note_ttl(f, e->ttl);
	copy_mac(f->next_hop, e->next_hop);
	f->vm_tsval = e->vm_tsval;
	if (f->flags & FLOW_F_FOREIGN || flow_is_forwarded(f))
		f->mode = FLOW_BYPASS;
}

/* Does this segment of the sender complete the handshake that the VM accepted? It acknowledges the
 * VM's ISS, so it is no blind flood. It need not be the first segment: if the first is lost, the
 * record must still cover what the VM is handed before the retransmission, or the host would
 * acknowledge a filled hole, and take the VM's answers for a loss in the guest. */
static __always_inline bool embryo_is_completed_by(const struct embryo *e, const struct segment *s)
{
	return e->stage == EMBRYO_VM_SYN_ACK && s->tcp_flags & TCP_ACK &&
	       !(s->tcp_flags & (TCP_SYN | TCP_RST)) && seq_eq(s->ack, seq_add(e->vm_iss, 1)) &&
	       seq_ge(s->seq, e->rcv_nxt) && seq_le(s->seq, seq_add(e->rcv_nxt, e->window));
}

/* Creates a flow from an embryo if this segment of the sender completes its handshake. */
static __always_inline bool flow_accepted(struct flow *f, const struct embryo *e,
					  const struct segment *s, __u64 now)
{
	if (!embryo_is_completed_by(e, s))
		return false;
	flow_from_embryo(f, e, now);
	f->flags |= FLOW_F_UNCONFIRMED;
	f->ts_recent = s->tsval;
	if (s->bits & SEG_FOREIGN)
		f->mode = FLOW_BYPASS;
	return true;
}

/* Does the VM consider the connection of this embryo open, as its ACK says? This includes one that
 * it accepted, if the sender's ACK took another path. Its ISN is not confirmed then, and the ACK
 * may be of another connection: only the first byte tells. */
static __always_inline bool embryo_is_opened_by(const struct embryo *e, const struct segment *s)
{
	__s32 sent = seq_diff(s->seq, seq_add(e->vm_iss, 1)), most = 0;

	if (e->stage == EMBRYO_VM_SYN_ANSWERED)
		most = FLOW_MAX_WINDOW;
	return e->stage != EMBRYO_VM_SYN && sent >= 0 && sent <= most &&
	       seq_ge(s->ack, e->rcv_nxt) && seq_diff(s->ack, e->rcv_nxt) <= (__s32)FLOW_MAX_WINDOW;
}

/* Creates a flow from an embryo on an ACK of the VM. */
static __always_inline bool flow_opened(struct flow *f, const struct embryo *e,
					const struct segment *s, __u64 now)
{
	if (!embryo_is_opened_by(e, s))
		return false;
	flow_from_embryo(f, e, now);
	flow_note_ttl(f, s->ttl);
	if (flow_is_forwarded(f))
		f->mode = FLOW_BYPASS;
	f->next_seq = f->vm_seq = f->high_seq = f->ts_seq = s->ack;
	f->ts_recent = s->tsecr;
	if (e->stage == EMBRYO_VM_SYN_ACK && f->mode != FLOW_BYPASS)
		flow_start_unproven(f);
	return true;
}

/* Creates a flow in mid-stream from an ACK of the VM. Its window scale is unknown, and nothing that
 * the hooks see tells it for sure, so the VM does all (BYPASS): each early ACK would have to show a
 * right edge below the VM's own, to be safe for every scale (decision 44). */
static __always_inline bool flow_mid_flow(struct flow *f, const struct segment *s, __u64 now)
{
	if (!(s->tcp_flags & TCP_ACK) || s->tcp_flags & (TCP_SYN | TCP_RST | TCP_FIN))
		return false;
	flow_start(f, s->ack, seq_add(s->ack, s->window), seq_add(s->seq, s->len), now);
	f->snd_una = s->seq;
	f->traffic = s->traffic;
	flow_note_ttl(f, s->ttl);
	copy_mac(f->next_hop, s->destination);
	f->flags = FLOW_F_MID_FLOW;
	f->vm_tsval = s->tsval;
	f->ts_recent = s->tsecr;
	if (s->bits & SEG_TIMESTAMPS)
		f->flags |= FLOW_F_TIMESTAMPS;
	flow_start_unproven(f);
	if (s->bits & SEG_FOREIGN)
		f->flags |= FLOW_F_FOREIGN;
	f->mode = FLOW_BYPASS;
	return true;
}

/* May a connection with this record be split (split.h)? Nothing that the host has acknowledged may
 * be outstanding, and the connection must not be left to its VM. */
static __always_inline bool flow_may_be_split(const struct flow *f)
{
	const __u16 ended = FLOW_F_FIN_SENDER | FLOW_F_FIN_VM | FLOW_F_CLOSED | FLOW_F_UNCONFIRMED;

	return f->mode != FLOW_BYPASS && f->mode != FLOW_RESET && f->mode != FLOW_HOLDING &&
	       !(f->flags & ended) && !flow_outstanding(f) && !flow_is_forwarded(f);
}

/* Where both ends of a connection are when it is joined again: each has acknowledged all of the
 * other. */
struct rejoined {
	struct seq vm_seq; /* VM_SEQ, the sender's SND.NXT */
	struct seq snd_nxt; /* the VM's SND.NXT, acknowledged by the sender */
	struct seq right_edge; /* of the receive window that the VM advertised */
	struct seq adv_edge; /* highest right edge that the sender was shown */
	__u32 vm_tsval; /* the VM's last TSval */
	__u32 ts_recent; /* the sender's last TSval */
};

/* Continues a record whose connection was split. */
static __always_inline void flow_rejoin(struct flow *f, const struct rejoined *r, __u64 now)
{
	f->next_seq = f->vm_seq = f->high_seq = f->ts_seq = r->vm_seq;
	f->snd_nxt = f->snd_una = r->snd_nxt;
	f->right_edge = r->right_edge;
	f->adv_edge = seq_max(r->adv_edge, r->right_edge);
	f->vm_tsval = r->vm_tsval;
	f->ts_recent = r->ts_recent;
	f->vm_lease = f->lease_jiffy = 0;
	f->sample = FLOW_SAMPLE_NONE;
	f->ramp = 0;
	f->last_ns = f->progress_ns = now;
	f->heard_at = flow_stamp(now);
	if (f->mode != FLOW_BYPASS && f->mode != FLOW_RESET)
		f->mode = FLOW_ACTIVE;
}

/* Has the connection of this record ended? Then a SYN or SYN-ACK of the VM begins a new one. */
static __always_inline bool flow_is_over(const struct flow *f)
{
	return f->mode == FLOW_RESET || f->flags & FLOW_F_CLOSED;
}

/* A SYN or SYN-ACK of the VM with the key of a live record: is it a retransmission of this flow's
 * own, of which the sender has acknowledged no data yet? */
static __always_inline bool flow_is_own_syn(const struct flow *f, const struct segment *s)
{
	if (flow_is_over(f) || !seq_eq(seq_add(s->seq, 1), f->snd_una))
		return false;
	return !(s->tcp_flags & TCP_ACK) ||
	       (seq_le(s->ack, f->next_seq) && seq_ge(s->ack, f->vm_seq));
}

/* Is this a segment of the sender that the record does not expect? It may belong to another
 * connection, which an embryo then tells. May be called without the lock. */
static __always_inline bool flow_is_of_another(const struct flow *f, const struct segment *s)
{
	if (!(s->tcp_flags & TCP_ACK) || s->tcp_flags & TCP_RST)
		return false;
	return s->tcp_flags & TCP_SYN || seq_gt(s->ack, f->snd_nxt) || seq_lt(s->ack, f->snd_una) ||
	       seq_gt(s->seq, seq_max(f->right_edge, f->adv_edge)) ||
	       seq_lt(seq_add(s->seq, s->len), seq_add(f->vm_seq, (__u32)-1));
}

/* Is this a segment of the VM that the record does not expect? May be called without the lock. */
static __always_inline bool flow_is_of_another_of_vm(const struct flow *f, const struct segment *s)
{
	return (s->tcp_flags & (TCP_ACK | TCP_SYN | TCP_RST)) == TCP_ACK &&
	       (seq_gt(s->seq, f->snd_nxt) || seq_lt(s->seq, seq_add(f->snd_una, (__u32)-1)));
}

/* Does this segment of the sender, which the record does not expect, confirm the ISN of the VM's
 * latest SYN or SYN-ACK? Then the record's connection is over: the sender has given it up. */
static __always_inline bool embryo_is_confirmed_by_sender(const struct embryo *e,
							  const struct segment *s)
{
	return s->tcp_flags & TCP_SYN ? embryo_is_answered_by(e, s) : embryo_is_completed_by(e, s);
}

/* Does a segment of the VM confirm it? The sender's may have taken another path. The VM alone
 * cannot end a connection of which acknowledged bytes are outstanding. */
static __always_inline bool embryo_is_confirmed_by_vm(const struct embryo *e, const struct flow *f,
						      const struct segment *s)
{
	return !flow_outstanding(f) && embryo_is_opened_by(e, s);
}

/* The VM repeats its SYN-ACK: true if its listener takes no data. A VM that had no CPU time may
 * repeat it once before it reads its ring, but not again after that. */
static __always_inline bool flow_repeats_syn(struct flow *f, __u64 now)
{
	bool again = flow_outstanding(f) && (__s32)(f->heard_at - flow_stamp(f->progress_ns)) > 0;

	f->heard_at = flow_stamp(now);
	return again;
}

#endif
