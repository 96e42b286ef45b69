/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Calls the decisions of flow/, each under the lock of the flow's record.
 *
 * These are global functions, so that the verifier proves each of them once, for any arguments,
 * instead of once per call path.
 */
#ifndef VSNOOP_BPF_DECIDE_H
#define VSNOOP_BPF_DECIDE_H

#include "doorbell.h"
#include "hold_copy.h"
#include "incast_flows.h"
#include "lease.h"
#include "records.h"

static __always_inline struct decision_context context_of(const struct port *port, __u64 now)
{
	struct decision_context c = { .port = &port->state, .policy = &port->policy, .now = now };

	return c;
}

static __always_inline void count_events(struct port_stats *st, const struct outcome *out)
{
	__u32 events = out->events;

	if (!events)
		return;
	if (events & EVENT_OFFLINE_SEQ)
		st->offline_unexpected_seq++;
	if (events & EVENT_OFFLINE_NO_BUF)
		st->offline_no_buf++;
	if (events & EVENT_OFFLINE_CE)
		st->offline_ce++;
	if (events & EVENT_BYPASS)
		st->bypassed++;
	if (events & (EVENT_REFUSED | EVENT_FORGOTTEN))
		st->vm_refused++;
	if (events & EVENT_CLOSED)
		st->flows_closed++;
	if (events & EVENT_HOLD_FULL)
		st->hold_full++;
	if (events & EVENT_HOLD_BUSY)
		st->hold_busy++;
	if (events & EVENT_NOT_COPIED)
		st->not_copied++;
	if (events & EVENT_ENGINE_GONE)
		st->reset_without_engine++;
	if (events & EVENT_FORWARDED)
		st->forwarded++;
	if (events & EVENT_SAMPLE) {
		__u32 bucket = histogram_bucket(out->sample_ns);

		st->ack_delay_ns[bucket]++;
		if (events & EVENT_SAMPLE_EARLY)
			st->masked_ns[bucket]++;
	}
}

/* Updates the port's promptness and counters from an outcome. */
static __always_inline void note(struct port *port, const struct outcome *out, __u64 now)
{
	struct port_stats *st;

	if (!out->events)
		return;
	port_learn(&port->state, out, now);
	if (!(out->events & ~(EVENT_PROMPT | EVENT_PASSIVE | EVENT_WAKE | EVENT_FREE | EVENT_TELL |
			      EVENT_NOTE | EVENT_SENDER_ACK | EVENT_ACK_WAITS)))
		return;
	st = stats_of(port);
	if (st)
		count_events(st, out);
}

/* Acts on the events of an outcome that do not concern the packet. */
static __always_inline void settle(struct port *port, const struct flow_key *key,
				   const struct outcome *out, __u64 now)
{
	note(port, out, now);
	if (out->events & EVENT_FREE)
		hold_free(port, out->hold, false);
	if (out->events & (EVENT_REFUSED | EVENT_ENGINE_GONE))
		note_failure(port, key, true);
	if (out->events & EVENT_CLOSED) {
		if (INCAST_USED)
			incast_flow_ends(port, key);
		forget(table(flows, port), key);
		give_back(port, out->hold);
	}
}

/* Wakes the engine, tells it, or leaves a note, if the outcome asks for it. */
static __always_inline void wake_engine(struct port *port, const struct outcome *out)
{
	if (out->events & EVENT_WAKE)
		ring_doorbell(port, out->hold);
	else if (out->events & EVENT_TELL)
		tell_engine(port, out->hold);
	else if (out->events & EVENT_NOTE)
		leave_note(port, out->hold);
}

struct hold_wait {
	__u32 slot;
	__u32 number;
};

/* bpf_loop() callback: ends when another CPU has ended its claim on the chain. That CPU copies at
 * most one packet, or frees chunks. */
static long wait_for_hold(__u32 i, const struct hold_wait *w)
{
	struct hold *h = hold_number(w->slot, w->number);

	return !h || !*(volatile __u32 *)&h->claimed;
}

#define HOLD_WAIT 16384
#define HOLD_TRIES 3

/* Decides about a segment to the VM under the record's lock, after incast control has accounted for
 * it. `path`: enum incast_path; `out->hold`: the flow's hold. */
__noinline enum to_vm_verdict decide_locked(struct port *port, const struct flow_key *key,
					    const struct segment *s, struct outcome *out,
					    __u32 path)
{
	enum incast_waiting waits = INCAST_NOT_WAITING;
	struct decision_context c;
	enum to_vm_verdict verdict;
	struct hold_wait wait;
	__u32 tries;
	struct hold *h;
	struct flow *f;
	__u16 key_hash;

	/* Used, so that clang passes it without incast control, too: the verifier wants a value. */
	barrier_var(path);
	if (!port || !key || !s || !out)
		return TO_VM_NO_FLOW;
	f = flow_of(port, key);
	if (!f)
		return TO_VM_NO_FLOW;
	wait.number = f->hold;
	if (config.hold && !wait.number && s->len) {
		wait.number = hold_take(port, key);
		/* Incast control must not account for a record that was removed meanwhile. */
		f = flow_of(port, key);
		if (!f)
			return TO_VM_NO_FLOW;
	}
	out->hold = wait.number;
	wait.slot = port->slot;
	h = hold_of(port, wait.number);
	key_hash = flow_key_hash(key);
	c = context_of(port, 0);
	out->events = 0;
	/* Another CPU may claim the hold between the wait and the lock: try again, HOLD_TRIES
	 * times. */
	for (tries = HOLD_TRIES;; tries--) {
		if (h && *(volatile __u32 *)&h->claimed) {
			bpf_loop(HOLD_WAIT, wait_for_hold, &wait, 0);
			/* The CPU that had claimed it may have removed the record. */
			f = flow_of(port, key);
			if (!f)
				return TO_VM_NO_FLOW;
		}
		out->now = bpf_ktime_get_ns();
		bpf_spin_lock(&f->lock);
		if (!h || !*(volatile __u32 *)&h->claimed || !tries)
			break;
		bpf_spin_unlock(&f->lock);
	}
	c.now = out->now;
	/* The hash differs when the record is another flow's by now, and the hold may, too. */
	verdict = TO_VM_NO_FLOW;
	if (f->key_hash == key_hash) {
		if (INCAST_USED && path)
			waits = incast_data(port, f, s, path == INCAST_BY_UPLINK, c.now);
		if (f->hold == wait.number)
			verdict = hold_to_vm(f, config.hold ? h : 0, s, &c, out);
	}
	bpf_spin_unlock(&f->lock);
	if (INCAST_USED && waits)
		enqueue_flow(port, key, waits);
	settle(port, key, out, out->now);
	wake_engine(port, out);
	return verdict;
}

/* port_state.coarse has the time in its low COARSE_BITS, in units of 2^COARSE_SHIFT ns, and the
 * jiffy above. */
#define COARSE_BITS 40
#define COARSE_SHIFT 20

/* The time when the first packet of this jiffy asked for it, so up to a jiffy and a millisecond
 * behind. The kernel makes one load of bpf_jiffies64(); a clock costs as much as parsing the
 * packet. Jiffy and time are in one word, so that no CPU sees the time of another jiffy. */
static __always_inline __u64 coarse_ns(struct port *port, __u64 jiffy)
{
	__u64 *known = &port->state.coarse, at = *(volatile __u64 *)known;

	if (at >> COARSE_BITS != jiffy << COARSE_BITS >> COARSE_BITS) {
		at = bpf_ktime_get_ns() >> COARSE_SHIFT | jiffy << COARSE_BITS;
		*(volatile __u64 *)known = at;
	}
	return at << (64 - COARSE_BITS) >> (64 - COARSE_BITS) << COARSE_SHIFT;
}

/* Notes the sender's ACK for later frames of the engine. Returns whether the engine carries it to
 * the VM (hold_leaves_ack_to_engine()). */
static __noinline bool note_sender(struct port *port, const struct flow_key *key, struct flow *f,
				   const struct segment *s)
{
	struct hold *h = hold_of(port, f->hold);

	/* The hash differs when the record is another flow's by now: its VM must not get this
	 * ACK. */
	if (!h || f->key_hash != flow_key_hash(key) || !hold_note_sender(f, h, s))
		return false;
	return h->sending && hold_leaves_ack_to_engine(f, h, coarse_ns(port, bpf_jiffies64()));
}

/* Does the fast path read segments of this flow? */
static __always_inline bool fast_path_reads(const struct flow_key *key)
{
	return !key->vlan_outer && is_mapped_ipv4(key->vm_addr);
}

/* Notes that a flow of the port has a lease in this jiffy. Without that the fast path does not look
 * for one. */
static __always_inline void note_lease(const struct port *port, __u64 jiffy)
{
	struct port_stats *st = stats_of(port);

	if (st)
		st->lease_jiffy = jiffy;
}

/* Passes a segment that continues the backlog of a passive flow, and grants the flow a lease for
 * those that follow in this jiffy. The VM is found late by up to a jiffy later. Returns false, and
 * has changed nothing, if the segment takes a full decision. */
static __noinline bool pass_passive(struct port *port, const struct flow_key *key, struct flow *f,
				    const struct segment *s)
{
	__u64 jiffy = bpf_jiffies64();
	struct decision_context c = context_of(port, coarse_ns(port, jiffy));

	if (!flow_continues_passive(f, s, &c))
		return false;
	flow_note_passive(f, s);
	if (flow_may_lease(f) && fast_path_reads(key)) {
		note_lease(port, jiffy);
		flow_grant_lease(f, s, jiffy);
	}
	return true;
}

/* Decides about a segment to the VM. Two frequent cases need no lock: pure ACKs, and data that
 * continue a backlog of a passive flow. */
static __always_inline enum to_vm_verdict decide_to_vm(struct port *port,
						       const struct flow_key *key,
						       const struct segment *s, struct outcome *out,
						       enum incast_path path)
{
	struct flow *f;

	f = flow_of(port, key);
	if (!f)
		return TO_VM_NO_FLOW;
	if (flow_is_of_another(f, s) && flow_is_replaced(port, key, s, false))
		return TO_VM_NO_FLOW;
	/* Incast control accounts for data under the lock. */
	if (INCAST_USED && path)
		return decide_locked(port, key, s, out, path);
	if (flow_is_plain_ack(f, s)) {
		flow_note_ack(f, s);
		if (!f->hold || !note_sender(port, key, f, s))
			return TO_VM_PASS;
		out->hold = f->hold;
		out->events = EVENT_WAKE | EVENT_ACK_WAITS;
		wake_engine(port, out);
		return TO_VM_DROP;
	}
	if (f->mode == FLOW_PASSIVE && pass_passive(port, key, f, s)) {
		out->events = EVENT_PASSIVE;
		return TO_VM_PASS;
	}
	return decide_locked(port, key, s, out, INCAST_NO_PATH);
}

/* Completes TO_VM_KEEP under the record's lock, and ends the claim on the chain. `done`: KEEP_*. If
 * the record is gone, nothing is acknowledged. */
__noinline enum kept_verdict decide_kept(struct port *port, const struct flow_key *key,
					 const struct segment *s, __u32 done, struct outcome *out)
{
	struct decision_context c;
	enum kept_verdict verdict;
	bool is_there = false;
	struct hold *h;
	struct flow *f;
	__u64 now;
	__u16 key_hash;

	if (!port || !key || !s || !out)
		return KEPT_DROP;
	f = flow_of(port, key);
	h = hold_of(port, out->hold);
	if (!h)
		return KEPT_DROP;
	verdict = done & KEEP_TAKEN ? KEPT_DROP : KEPT_PASS;
	now = out->now;
	c = context_of(port, now);
	key_hash = flow_key_hash(key);
	if (f) {
		bpf_spin_lock(&f->lock);
		/* The hash differs when the record is another flow's by now; the hold may, too. */
		is_there = f->key_hash == key_hash && f->hold == out->hold;
		if (is_there)
			verdict = flow_kept(f, h, s, done, &c, out);
		bpf_spin_unlock(&f->lock);
	}
	if (!is_there) {
		out->events = 0;
		__sync_lock_test_and_set(&h->claimed, 0);
		return verdict;
	}
	mark_busy(port, out->hold);
	/* No settle(): flow_kept() sets none of its events. */
	note(port, out, now);
	wake_engine(port, out);
	return verdict;
}

/* Decides about a segment of the VM. `out->now`: when incast control has accounted for it; 0: it
 * has not, and FROM_VM_ACCOUNT may be the answer. The caller wakes the engine, after it has passed
 * on the SACK blocks. */
__noinline enum from_vm_verdict decide_from_vm(struct port *port, const struct flow_key *key,
					       const struct segment *s, struct outcome *out)
{
	struct decision_context c;
	enum from_vm_verdict verdict;
	bool is_leased = false;
	struct flow *f;
	struct hold *h;
	__u64 now, jiffy;
	__u16 key_hash;

	if (!port || !key || !s || !out)
		return FROM_VM_NO_FLOW;
	f = flow_of(port, key);
	if (!f)
		return FROM_VM_NO_FLOW;
	if (flow_is_of_another_of_vm(f, s) && flow_is_replaced(port, key, s, true))
		return FROM_VM_NO_FLOW;
	if (incast_is_used() && !out->now && !incast_ignores(f, &uplink, s))
		return FROM_VM_ACCOUNT;
	out->hold = config.hold ? f->hold : 0;
	h = hold_of(port, out->hold);
	/* The lines that the decision reads, which the sender's CPU has written. */
	touch(f->vm_seq);
	touch(f->mss);
	touch(f->traffic);
	touch(port->state.late_ns);
	touch(port->state.engine_ns);
	if (h) {
		touch(h->claimed);
		touch(h->tail);
		touch(h->range_count);
		touch(h->vm_acks);
		touch(h->handed);
	}
	now = INCAST_USED ? out->now : 0;
	if (!now)
		now = bpf_ktime_get_ns();
	out->now = now;
	/* Incast control must account for each segment. */
	jiffy = fast_path_reads(key) && !incast_is_used() ? bpf_jiffies64() : 0;
	key_hash = flow_key_hash(key);
	c = context_of(port, now);
	bpf_spin_lock(&f->lock);
	/* Pass if the record now belongs to another flow, or if its hold has just changed: the VM's
	 * next ACK updates both. */
	verdict = FROM_VM_PASS;
	if (f->key_hash == key_hash && f->hold == out->hold) {
		verdict = flow_from_vm(f, h, s, &c, out);
		if (jiffy && verdict == FROM_VM_PASS)
			is_leased = flow_grant_vm_lease(f, h, jiffy);
	}
	bpf_spin_unlock(&f->lock);
	if (is_leased)
		note_lease(port, jiffy);
	settle(port, key, out, now);
	return verdict;
}

/* Decides about the VM's report that a segment is larger than the path behind it. Returns whether
 * it is believed; then out->ack.seq is the SEQ that the sender is told. */
__noinline int decide_too_big(struct port *port, const struct flow_key *key,
			      const struct too_big *report, struct outcome *out)
{
	struct port_stats *st;
	bool is_believed = false;
	struct flow *f;
	struct hold *h;

	if (!port || !key || !report || !out)
		return 0;
	f = flow_of(port, key);
	if (!f)
		return 0;
	out->hold = config.hold ? f->hold : 0;
	h = hold_of(port, out->hold);
	bpf_spin_lock(&f->lock);
	if (f->key_hash == flow_key_hash(key) && f->hold == out->hold) {
		flow_end_vm_lease(f, h);
		is_believed = flow_note_too_big(f, h, report, out);
	}
	bpf_spin_unlock(&f->lock);
	if (!is_believed)
		return 0;
	st = stats_of(port);
	if (st)
		st->too_big++;
	wake_engine(port, out);
	return 1;
}

/* Fills in a pure ACK with the sender's latest ACK and window, for a VM that does not get the
 * segment itself. Returns 0 if the flow has gone or has no hold. */
__noinline int decide_sender_ack(struct port *port, const struct flow_key *key,
				 struct ack_fields *ack)
{
	struct flow *f;
	struct hold *h;

	if (!port || !key || !ack)
		return 0;
	f = flow_of(port, key);
	if (!f)
		return 0;
	h = hold_of(port, f->hold);
	if (!h || f->key_hash != flow_key_hash(key))
		return 0;
	hold_fill_sender_ack(f, h, ack);
	return 1;
}

/* Fills in the sender's latest ACK and window for a segment of the engine. Returns 0 if the segment
 * has them already. */
__noinline int decide_engine(struct port *port, const struct flow_key *key, const struct segment *s,
			     struct ack_fields *ack)
{
	struct flow *f;
	struct hold *h;

	if (!port || !key || !s || !ack)
		return 0;
	f = flow_of(port, key);
	if (!f)
		return 0;
	h = hold_of(port, f->hold);
	if (!h || f->key_hash != flow_key_hash(key) ||
	    (seq_ge(s->ack, h->snd_una) && s->window == h->sender_window))
		return 0;
	ack->ack = seq_max(s->ack, h->snd_una);
	ack->window = h->sender_window;
	return 1;
}

#endif
