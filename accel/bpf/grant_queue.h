/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The grant queue: flows that wait for credit (flow/incast.h), and their grants.
 *
 * Data of one flow return credit for which another flow may wait. The sender of that flow must get
 * an ACK, but there is no packet of its flow at this moment: the next ACK of any flow of the port
 * becomes the ACK of the grant if it is superfluous, or else a clone of it does. Where no packet
 * passes, the helper runs the program `grant` with a packet of its own.
 */
#ifndef VSNOOP_BPF_GRANT_QUEUE_H
#define VSNOOP_BPF_GRANT_QUEUE_H

#include "decide.h"
#include "reply.h"

/* A grant: a flow, and the ACK that shows its sender the new window. */
struct grant {
	struct flow_key key;
	struct ack_fields ack;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct grant);
} grants SEC(".maps");

static __always_inline bool is_ipv4(const struct flow_key *key)
{
	const __u32 *a = (const void *)key->sender_addr;

	return !a[0] && !a[1] && a[2] == bpf_htonl(0xffff);
}

/* Offers a grant to a flow that waits for `waits`. After SERVED_ACK the flow has a wider window,
 * and its sender must be told (show_grant()). */
__noinline enum incast_served serve_flow(struct port *port, const struct flow_key *key, __u32 waits)
{
	enum incast_served served = SERVED_GONE;
	struct flow *f;

	if (!INCAST_USED || !port || !key)
		return SERVED_GONE;
	f = flow_of(port, key);
	if (!f)
		return SERVED_GONE;
	bpf_spin_lock(&f->lock);
	if (is_record_of(f, key))
		served = incast_serve(f, &uplink, waits, &port->state.incast);
	bpf_spin_unlock(&f->lock);
	return served;
}

/* Fills in the ACK that shows the sender of grant->key its window. Returns SERVED_ACK, or
 * SERVED_GONE if the flow has gone, or another CPU has shown the window since serve_flow(). */
__noinline enum incast_served show_grant(struct port *port, struct grant *grant)
{
	enum incast_served served = SERVED_GONE;
	struct hold *h;
	struct flow *f;
	__u32 number;
	__u64 now;

	if (!INCAST_USED || !port || !grant)
		return SERVED_GONE;
	f = flow_of(port, &grant->key);
	if (!f)
		return SERVED_GONE;
	number = f->hold;
	h = hold_of(port, number);
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&f->lock);
	if (f->hold != number)
		h = 0;
	if (is_record_of(f, &grant->key) && incast_must_show(f)) {
		incast_show(f, h, &port->state, &port->policy, now, &grant->ack);
		served = SERVED_ACK;
	}
	bpf_spin_unlock(&f->lock);
	return served;
}

/* Which queue of the port is served next (incast_next()). */
__noinline enum incast_waiting next_waiting(struct port *port)
{
	if (!INCAST_USED || !port)
		return INCAST_NOT_WAITING;
	return incast_next(&uplink, &port->state.incast, bpf_ktime_get_ns());
}

/* Offers a grant to the flow at the head of the queue. `like`: key of the packet that will become
 * the ACK. */
__noinline enum incast_grant_result try_grant(struct port *port, const struct flow_key *like)
{
	enum incast_served served = SERVED_NOT_YET;
	enum incast_waiting waits;
	struct grant *grant;
	__u32 zero = 0;
	void *queue;

	if (!INCAST_USED || !port || !like)
		return GRANT_NONE;
	grant = bpf_map_lookup_elem(&grants, &zero);
	waits = next_waiting(port);
	if (!grant || !waits)
		return GRANT_NONE;
	queue = queue_of(port, waits);
	if (!queue || bpf_map_pop_elem(queue, &grant->key))
		return GRANT_NONE;
	/* The packet must have the IP version and VLAN tags of the granted flow. */
	if (is_ipv4(&grant->key) == is_ipv4(like) && grant->key.vlan_outer == like->vlan_outer &&
	    grant->key.vlan_inner == like->vlan_inner)
		served = serve_flow(port, &grant->key, waits);
	if (served == SERVED_NOT_YET)
		enqueue_flow(port, &grant->key, waits);
	if (served == SERVED_ACK)
		served = show_grant(port, grant);
	return served == SERVED_ACK ? GRANT_SENT : GRANT_RETRY;
}

/* Most flows that one grant is offered to in turn: some cannot take it yet. */
#define GRANT_TRIES 4

/* Grants a window to the next waiting flow. Returns whether its ACK is in `grants`. */
__noinline bool grant_next(struct port *port, const struct flow_key *like)
{
	enum incast_grant_result result = GRANT_RETRY;
	int i;

	if (!INCAST_USED || !port || !like)
		return false;
	for (i = 0; i < GRANT_TRIES && result == GRANT_RETRY; i++)
		result = try_grant(port, like);
	return result == GRANT_SENT;
}

/* Turns the packet, a TCP segment of any flow, into the ACK of grant_next(). Returns 0 on
 * success. */
static __noinline int write_grant(struct __sk_buff *skb, const struct packet *p)
{
	struct grant *grant;
	__u32 zero = 0;

	grant = bpf_map_lookup_elem(&grants, &zero);
	if (!grant)
		return -1;
	return make_reply(skb, p, &grant->key, &grant->ack, REPLY_TO_SENDER | TCP_ACK);
}

#endif
