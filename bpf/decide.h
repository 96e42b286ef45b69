/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The decisions of flow/, each under the lock of its record.
 *
 * They are global functions, so that the verifier proves each of them once and
 * by itself, for any arguments, instead of once for each way of getting there.
 */
#ifndef VSNOOP_BPF_DECIDE_H
#define VSNOOP_BPF_DECIDE_H

#include "maps.h"

#define NO_FLOW -1

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
	if (events & EVENT_LOSS)
		st->guest_loss++;
	if (events & EVENT_CLOSED)
		st->flows_closed++;
	if (events & EVENT_WINDOW_CAPPED)
		st->window_capped++;
	if (events & EVENT_SAMPLE) {
		__u32 high = out->sample_ns >> 32, bucket;

		/* floor(log2()) without a loop */
		__u32 v = high ? high : (__u32)out->sample_ns;

		bucket = high ? 32 : 0;
		if (v >> 16) { v >>= 16; bucket += 16; }
		if (v >> 8) { v >>= 8; bucket += 8; }
		if (v >> 4) { v >>= 4; bucket += 4; }
		if (v >> 2) { v >>= 2; bucket += 2; }
		bucket += v >> 1;
		if (bucket >= HISTOGRAM_BUCKETS)
			bucket = HISTOGRAM_BUCKETS - 1;
		st->ack_delay_ns[bucket]++;
		if (events & EVENT_SAMPLE_EARLY)
			st->masked_ns[bucket]++;
	}
}

/* What a decision leaves to be done apart from the packet itself. */
static __always_inline void settle(const struct flow_key *key, struct outcome *out, __u64 now)
{
	struct port_stats *st;
	__u32 zero = 0;

	if (!out->events)
		return;
	port_learn(&port, out, now);
	if (!(out->events & ~(EVENT_PROMPT | EVENT_ASIDE)))
		return;
	st = bpf_map_lookup_elem(&stats, &zero);
	if (st)
		count_events(st, out);
	if (out->events & EVENT_CLOSED)
		bpf_map_delete_elem(&flows, key);
}

__noinline int decide_to_vm(const struct flow_key *key, const struct segment *s,
			    struct outcome *out)
{
	struct flow *f;
	int verdict;
	__u64 now;

	if (!key || !s || !out)
		return NO_FLOW;
	f = bpf_map_lookup_elem(&flows, key);
	if (!f)
		return NO_FLOW;
	/* The frequent cases need no lock and little time. */
	if (flow_is_plain_ack(f, s)) {
		flow_note_ack(f, s);
		return TO_VM_PASS;
	}
	/* A clock that is some ms behind finds the VM late that much later; it is
	 * found late all the same, and costs a fourth. */
	if (f->mode == FLOW_ASIDE &&
	    flow_continues_aside(f, s, &port, &policy, bpf_ktime_get_coarse_ns())) {
		flow_note_aside(f, s);
		out->events = EVENT_ASIDE;
		return TO_VM_PASS;
	}
	out->now = now = bpf_ktime_get_ns();
	if (flow_is_early(f, s, &port, &policy, now))
		return TO_VM_DELIVER;
	bpf_spin_lock(&f->lock);
	verdict = flow_to_vm(f, s, &port, &policy, now, out);
	bpf_spin_unlock(&f->lock);
	settle(key, out, now);
	return verdict;
}

/* 1: send out->ack. The record is looked up anew: it may have gone meanwhile,
 * and its memory may hold another flow by now. */
__noinline int decide_delivered(const struct flow_key *key, const struct segment *s, bool taken,
				struct outcome *out)
{
	struct flow *f;
	bool answer;
	__u64 now;

	if (!key || !s || !out)
		return 0;
	f = bpf_map_lookup_elem(&flows, key);
	if (!f)
		return 0;
	now = out->now;
	bpf_spin_lock(&f->lock);
	answer = flow_delivered(f, s, taken, &policy, now, out);
	bpf_spin_unlock(&f->lock);
	settle(key, out, now);
	return answer;
}

__noinline int decide_from_vm(const struct flow_key *key, const struct segment *s,
			      struct outcome *out)
{
	struct flow *f;
	int verdict;
	__u64 now;

	if (!key || !s || !out)
		return NO_FLOW;
	f = bpf_map_lookup_elem(&flows, key);
	if (!f)
		return NO_FLOW;
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&f->lock);
	verdict = flow_from_vm(f, s, &policy, now, out);
	bpf_spin_unlock(&f->lock);
	settle(key, out, now);
	return verdict;
}

#endif
