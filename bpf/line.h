/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows in line for credit (flow/incast.h), and their turns.
 *
 * Credit is paid back by data of one flow and may be what another waits for, whose
 * sender has to be told.  No packet of its own comes for that: the next ACK that
 * passes is turned into one for the flow whose turn it is, or brings it along.
 * Where no packet passes any more the helper sends one that goes nowhere else (prog
 * `turn`).
 */
#ifndef VSNOOP_BPF_LINE_H
#define VSNOOP_BPF_LINE_H

#include "decide.h"
#include "reply.h"

/* A flow's turn: what its sender is to be sent. */
struct turn {
	struct flow_key key;
	struct ack_fields ack;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct turn);
} turns SEC(".maps");

static __always_inline bool is_ipv4(const struct flow_key *key)
{
	const __u32 *a = (const void *)key->sender_addr;

	return !a[0] && !a[1] && a[2] == bpf_htonl(0xffff);
}

/* The turn of the flow of t->key, which waits so; its sender is to be sent t->ack. */
static __always_inline enum incast_served serve_flow(struct port *port, struct turn *t,
						     enum incast_waiting waits, __u64 now)
{
	struct flow *f = flow_of(port, &t->key);
	const struct hold *h;
	enum incast_served served;
	__u32 number;

	if (!f)
		return SERVED_GONE;
	number = f->hold;
	h = hold_of(port, number);
	bpf_spin_lock(&f->lock);
	if (f->hold != number)
		h = 0;
	served = incast_serve(f, h, &uplink, waits, &port->state, &port->policy, now, &t->ack);
	bpf_spin_unlock(&f->lock);
	return served;
}

/* A turn for the flow at the head of the line. */
__noinline enum incast_turn_taken ask_head(struct port *port, const struct flow_key *like)
{
	enum incast_served served = SERVED_NOT_YET;
	enum incast_waiting waits;
	struct turn *t;
	__u32 zero = 0;
	void *queue;
	__u64 now;

	if (!INCAST_USED || !port || !like)
		return TURN_NOBODY;
	t = bpf_map_lookup_elem(&turns, &zero);
	now = bpf_ktime_get_ns();
	waits = incast_next(&uplink, &port->state.incast, now);
	if (!t || !waits)
		return TURN_NOBODY;
	queue = queue_of(port, waits);
	if (!queue || bpf_map_pop_elem(queue, &t->key))
		return TURN_NOBODY;
	/* It travels in a packet of the same form. */
	if (is_ipv4(&t->key) == is_ipv4(like) && t->key.vlan_outer == like->vlan_outer &&
	    t->key.vlan_inner == like->vlan_inner)
		served = serve_flow(port, t, waits, now);
	if (served == SERVED_NOT_YET)
		queue_push(port, waits, &t->key);
	return served == SERVED_ACK ? TURN_TAKEN : TURN_LATER;
}

/* So many are asked for one turn: some may wait until others have had theirs. */
#define TURN_TRIES 4

/* Did somebody in line take a turn? */
__noinline bool take_turn(struct port *port, const struct flow_key *like)
{
	enum incast_turn_taken taken = TURN_LATER;
	int i;

	if (!INCAST_USED || !port || !like)
		return false;
	for (i = 0; i < TURN_TRIES && taken == TURN_LATER; i++)
		taken = ask_head(port, like);
	return taken == TURN_TAKEN;
}

/* The packet, a TCP segment of whatever flow, becomes the ACK of take_turn(). */
static __noinline int become_turn(struct __sk_buff *skb, const struct packet *p)
{
	struct turn *t;
	__u32 zero = 0;

	t = bpf_map_lookup_elem(&turns, &zero);
	if (!t)
		return -1;
	return make_reply(skb, p, &t->key, &t->ack, REPLY_TO_SENDER | TCP_ACK);
}

#endif
