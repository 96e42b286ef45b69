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
 * embryo is evicted loses only its window scale.
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

/* A SYN-ACK of the sender. Returns false where it does not answer the VM's SYN. */
static __always_inline bool embryo_answered(struct embryo *e, const struct segment *s)
{
	__u32 acked = seq_diff(s->ack, e->vm_iss);
	__u16 both;

	/* The sender may acknowledge data on the VM's SYN or not (RFC 7413). */
	if (e->stage == EMBRYO_VM_SYN_ACK || acked < 1 || acked > 1u + e->syn_len)
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

/* Creates a flow from an embryo if this segment of the sender completes the handshake that the VM
 * accepted. It acknowledges the VM's ISS, so it is no blind flood. It need not be the first
 * segment: if the first is lost, the record must still cover what the VM is handed before the
 * retransmission, or the host would acknowledge a filled hole, and take the VM's answers for a loss
 * in the guest. */
static __always_inline bool flow_accepted(struct flow *f, const struct embryo *e,
					  const struct segment *s, __u64 now)
{
	if (e->stage != EMBRYO_VM_SYN_ACK || !(s->tcp_flags & TCP_ACK) ||
	    s->tcp_flags & (TCP_SYN | TCP_RST) || !seq_eq(s->ack, seq_add(e->vm_iss, 1)) ||
	    seq_lt(s->seq, e->rcv_nxt) || seq_gt(s->seq, seq_add(e->rcv_nxt, e->window)))
		return false;
	flow_from_embryo(f, e, now);
	f->flags |= FLOW_F_UNCONFIRMED;
	f->ts_recent = s->tsval;
	if (s->bits & SEG_FOREIGN)
		f->mode = FLOW_BYPASS;
	return true;
}

/* Creates a flow from an embryo on an ACK of the VM: the VM considers the connection open. This
 * includes one that it accepted, if the sender's ACK took another path. */
static __always_inline bool flow_opened(struct flow *f, const struct embryo *e,
					const struct segment *s, __u64 now)
{
	struct seq first = seq_add(e->vm_iss, 1);

	if (e->stage == EMBRYO_VM_SYN || seq_lt(s->seq, first) ||
	    seq_diff(s->seq, first) > (__s32)FLOW_MAX_WINDOW || seq_lt(s->ack, e->rcv_nxt) ||
	    seq_diff(s->ack, e->rcv_nxt) > (__s32)FLOW_MAX_WINDOW)
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

/* Creates a flow in mid-stream from an ACK of the VM. SACK is assumed: a VM without it sends
 * duplicate ACKs without blocks, which then prove no loss. */
static __always_inline bool flow_mid_flow(struct flow *f, const struct segment *s, __u64 now)
{
	if (!(s->tcp_flags & TCP_ACK) || s->tcp_flags & (TCP_SYN | TCP_RST | TCP_FIN))
		return false;
	flow_start(f, s->ack, seq_add(s->ack, s->window), seq_add(s->seq, s->len), now);
	f->snd_una = s->seq;
	f->traffic = s->traffic;
	flow_note_ttl(f, s->ttl);
	copy_mac(f->next_hop, s->destination);
	f->flags = FLOW_F_MID_FLOW | FLOW_F_SACK;
	f->vm_tsval = s->tsval;
	f->ts_recent = s->tsecr;
	if (s->bits & SEG_TIMESTAMPS)
		f->flags |= FLOW_F_TIMESTAMPS;
	flow_start_unproven(f);
	if (s->bits & SEG_FOREIGN) {
		f->flags |= FLOW_F_FOREIGN;
		f->mode = FLOW_BYPASS;
	}
	if (flow_is_forwarded(f))
		f->mode = FLOW_BYPASS;
	return true;
}

/* A SYN or SYN-ACK of the VM with the key of a known flow: is it a retransmission of this flow's
 * own SYN-ACK? Then the record stays, since it may be ahead of the VM. Else it begins a new
 * connection. */
static __always_inline bool flow_is_own_syn(const struct flow *f, const struct segment *s)
{
	struct seq first = seq_add(s->seq, 1);

	if (f->mode == FLOW_RESET || f->flags & FLOW_F_CLOSED)
		return false;
	if (!(s->tcp_flags & TCP_ACK))
		return false;
	return seq_eq(first, f->snd_una) && seq_le(s->ack, f->next_seq) &&
	       seq_ge(s->ack, f->vm_seq);
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
