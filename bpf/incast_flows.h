/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Incast control of a port's flows (flow/incast.h): asked before a decision is made, so that
 * whatever ACK follows shows the window that is right by then.
 *
 * Functions of their own, with a look-up and a lock of their own: the verifier proves each
 * once.  A port without incast control has none of it (INCAST_USED).
 */
#ifndef VSNOOP_BPF_INCAST_FLOWS_H
#define VSNOOP_BPF_INCAST_FLOWS_H

#include "maps.h"

/* Has incast control to be asked?  When it was turned off, until all windows are the VMs' own. */
static __always_inline bool incast_is_used(void)
{
	return INCAST_USED && incast_is_asked_for(&uplink);
}

/* Does anybody of this port wait?  The next pure ACK may be what he waits for. */
static __always_inline bool incast_has_line(const struct port *port)
{
	return INCAST_USED && incast_somebody_waits(&port->state.incast);
}

/* A SYN or SYN-ACK of the sender came in by this interface: it says which way the
 * connection takes before there is a record.  Those that came through the uplink leave
 * nothing here, so that a flood of SYNs from the network takes no memory. */
__noinline int incast_syn(struct port *port, const struct flow_key *key, __u32 ifindex)
{
	__u32 yes = 1;

	if (!INCAST_USED || !port || !key)
		return 0;
	if (incast_is_way(&uplink, ifindex))
		forget(table(beside, port), key);
	else
		store(table(beside, port), key, &yes, BPF_ANY);
	return 0;
}

/* Did the connection's SYN come another way than through the uplink? */
static __always_inline bool incast_began_beside(const struct port *port, const struct flow_key *key)
{
	return INCAST_USED && find(table(beside, port), key);
}

/* Under the lock: may the window be opened?  `vm`: the VM's segment, or null.  What the flow waits for
 * from now on. */
static __always_inline enum incast_waiting open_window(struct port *port, struct flow *f,
						       const struct segment *vm, __u64 now)
{
	enum incast_waiting waits =
		incast_open(f, &uplink, &port->state.incast, incast_reason(f, vm), now);

	incast_note_shown(f, vm, now);
	return waits;
}

/* Of those who wait so. */
static __always_inline void *queue_of(const struct port *port, enum incast_waiting waits)
{
	return waits == INCAST_IN_LINE ? table(line, port) : table(shut, port);
}

static __always_inline long queue_push(const struct port *port, enum incast_waiting waits,
				       const struct flow_key *key)
{
	void *queue = queue_of(port, waits);

	return queue ? bpf_map_push_elem(queue, key, 0) : -1;
}

/* To the end of the line.  Who finds no place there does not wait: its sender asks by itself. */
static __always_inline void stand_in_line(struct port *port, const struct flow_key *key,
					  struct flow *f, enum incast_waiting waits)
{
	if (!queue_push(port, waits, key))
		return;
	bpf_spin_lock(&f->lock);
	incast_leave_line(f, &uplink, &port->state.incast);
	bpf_spin_unlock(&f->lock);
}

/* A segment with data is on its way to the VM, and came in by this interface.  1: it has closed its
 * flow's window. */
__noinline int incast_data(struct port *port, const struct flow_key *key, const struct segment *s,
			   __u32 ifindex)
{
	struct flow *f;
	enum incast_waiting waits;
	bool is_way;
	__u64 now;

	if (!INCAST_USED || !port || !key || !s)
		return 0;
	f = flow_of(port, key);
	if (!f)
		return 0;
	now = bpf_ktime_get_ns();
	is_way = incast_is_way(&uplink, ifindex);
	bpf_spin_lock(&f->lock);
	incast_note_way(f, is_way);
	if (is_way)
		incast_received(f, &uplink, &port->state.incast, s, now);
	waits = open_window(port, f, 0, now);
	bpf_spin_unlock(&f->lock);
	if (waits)
		stand_in_line(port, key, f, waits);
	return !!waits;
}

/* The VM sends something. */
__noinline int incast_answer(struct port *port, const struct flow_key *key, const struct segment *s)
{
	struct flow *f;
	enum incast_waiting waits;
	__u64 now;

	if (!INCAST_USED || !port || !key || !s)
		return 0;
	f = flow_of(port, key);
	if (!f)
		return 0;
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&f->lock);
	waits = open_window(port, f, s, now);
	bpf_spin_unlock(&f->lock);
	if (waits)
		stand_in_line(port, key, f, waits);
	return 0;
}

/* The record is about to go. */
__noinline int incast_flow_ends(struct port *port, const struct flow_key *key)
{
	struct flow *f;

	if (!INCAST_USED || !port || !key)
		return 0;
	f = flow_of(port, key);
	if (!f || !flow_is_shaped(f))
		return 0;
	bpf_spin_lock(&f->lock);
	incast_end(f, &uplink, &port->state.incast);
	bpf_spin_unlock(&f->lock);
	return 0;
}

#endif
