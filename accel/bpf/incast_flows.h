/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Incast control of a port's flows (flow/incast.h): called before a decision, so that the ACK that
 * follows shows the new window.
 *
 * Each is a global function with its own look-up and lock, which the verifier proves once. Programs
 * for ports without incast control have none of this (INCAST_USED).
 */
#ifndef VSNOOP_BPF_INCAST_FLOWS_H
#define VSNOOP_BPF_INCAST_FLOWS_H

#include "maps.h"

/* Must the hooks call incast control? After it was turned off they must until no flow is shaped. */
static __always_inline bool incast_is_used(void)
{
	return INCAST_USED && incast_is_asked_for(&uplink);
}

/* Does a flow of this port wait? Then data to the VM, or its next pure ACK, may bring its grant. */
static __always_inline bool incast_has_waiting(const struct port *port)
{
	return INCAST_USED && incast_has_waiting_flow(&port->state.incast);
}

/* Ends what is over, before incast control accounts for a packet (incast_advance_time()). The
 * functions that account hold the lock of a record, and may not call it. Returns the time. */
__noinline __u64 incast_tick(struct port *port)
{
	__u64 now = bpf_ktime_get_ns();

	if (INCAST_USED && port)
		incast_advance_time(&uplink, &port->state.incast, now);
	return now;
}

/* Records the path of a connection from the sender's SYN or SYN-ACK, before there is a record.
 * `ifindex`: the interface by which it came in. SYNs through the uplink leave no entry, so that a
 * SYN flood from the network takes no memory. */
__noinline int incast_syn(struct port *port, const struct flow_key *key, __u32 ifindex)
{
	__u32 yes = 1;

	if (!INCAST_USED || !port || !key)
		return 0;
	if (incast_is_ingress(&uplink, ifindex))
		forget(table(beside, port), key);
	else
		store(table(beside, port), key, &yes, BPF_ANY);
	return 0;
}

/* Did the sender's SYN or SYN-ACK not come through the uplink? */
static __always_inline bool incast_began_beside(const struct port *port, const struct flow_key *key)
{
	return INCAST_USED && find(table(beside, port), key);
}

/* Opens the flow's window if it may; the caller holds the lock. `vm`: the VM's segment, or null.
 * Returns what the flow waits for from now on. */
static __always_inline enum incast_waiting open_window(struct port *port, struct flow *f,
						       const struct segment *vm, __u64 now)
{
	enum incast_waiting waits = incast_open_for(f, &uplink, &port->state.incast, vm);

	incast_note_shown(f, vm, now);
	/* The verifier is to know nothing of what was found out here: it would walk the decision
	 * that follows once for each case. */
	barrier_var(waits);
	barrier();
	return waits;
}

/* Is the record, which the caller has locked, still that of `key`? It may have become another
 * flow's since the look-up. */
static __always_inline bool is_record_of(const struct flow *f, const struct flow_key *key)
{
	return f->key_hash == flow_key_hash(key);
}

/* The port's queue of flows that wait for `waits`. */
static __always_inline void *queue_of(const struct port *port, enum incast_waiting waits)
{
	return waits == INCAST_QUEUED ? table(grant_queue, port) : table(finished_queue, port);
}

static __always_inline long queue_push(const struct port *port, enum incast_waiting waits,
				       const struct flow_key *key)
{
	void *queue = queue_of(port, waits);

	return queue ? bpf_map_push_elem(queue, key, 0) : -1;
}

/* Appends the flow to its queue. If the queue is full the flow does not wait: its sender will
 * probe. */
__noinline int enqueue_flow(struct port *port, const struct flow_key *key, __u32 waits)
{
	struct flow *f;

	if (!INCAST_USED || !port || !key || !queue_push(port, waits, key))
		return 0;
	f = flow_of(port, key);
	if (!f)
		return 0;
	bpf_spin_lock(&f->lock);
	if (is_record_of(f, key))
		incast_leave_queue(f, &uplink, &port->state.incast);
	bpf_spin_unlock(&f->lock);
	return 0;
}

/* The way of a segment to the VM, as far as incast control has to know it. */
enum incast_path {
	INCAST_NO_PATH = 0, /* it has no data, or incast control is not in use */
	INCAST_BY_OTHER = 1, /* not through the uplink */
	INCAST_BY_UPLINK = 2,
};

/* `ifindex`: the interface by which it came in. */
static __always_inline enum incast_path incast_path_of(const struct segment *s, __u32 ifindex)
{
	if (!incast_is_used() || !s->len)
		return INCAST_NO_PATH;
	return incast_is_ingress(&uplink, ifindex) ? INCAST_BY_UPLINK : INCAST_BY_OTHER;
}

/* Accounts for a segment with data to the VM; the caller holds the lock. `by_uplink`: it came in
 * through the uplink. Returns what the flow waits for from now on. */
static __always_inline enum incast_waiting
incast_data(struct port *port, struct flow *f, const struct segment *s, bool by_uplink, __u64 now)
{
	incast_note_ingress(f, by_uplink);
	if (by_uplink)
		incast_received(f, &uplink, &port->state.incast, s, now);
	return open_window(port, f, 0, now);
}

/* Accounts for a segment of the VM that incast_ignores() does not, before the decision about it and
 * with a lock of its own: in one function with the decision it would take the verifier twice the
 * instructions. Returns the time; 0 if there is no record. */
__noinline __u64 incast_answer(struct port *port, const struct flow_key *key,
			       const struct segment *s)
{
	struct flow *f;
	enum incast_waiting waits;
	__u32 differs;
	__u64 now;

	if (!INCAST_USED || !port || !key || !s)
		return 0;
	f = flow_of(port, key);
	if (!f)
		return 0;
	now = incast_tick(port);
	bpf_spin_lock(&f->lock);
	differs = f->key_hash ^ flow_key_hash(key);
	/* Hides the comparison from clang: with what it makes of is_record_of() here, the verifier
	 * walks 13 % more instructions of from_vm(). */
	opaque(differs);
	if (differs) {
		bpf_spin_unlock(&f->lock);
		return now;
	}
	waits = open_window(port, f, s, now);
	bpf_spin_unlock(&f->lock);
	if (waits)
		enqueue_flow(port, key, waits);
	return now;
}

/* Ends incast control of a flow whose record is about to be removed. Its hash becomes that of no
 * key, so that a CPU that has found the record before, and waits for its lock, leaves it alone. */
__noinline int incast_flow_ends(struct port *port, const struct flow_key *key)
{
	struct flow *f;

	if (!INCAST_USED || !port || !key)
		return 0;
	f = flow_of(port, key);
	if (!f)
		return 0;
	bpf_spin_lock(&f->lock);
	if (is_record_of(f, key)) {
		if (flow_is_shaped(f))
			incast_end(f, &uplink, &port->state.incast);
		f->key_hash = ~f->key_hash;
	}
	bpf_spin_unlock(&f->lock);
	return 0;
}

#endif
