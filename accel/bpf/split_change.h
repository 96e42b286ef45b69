/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Split connections: changes of their state, which the splitter asks for.
 */
#ifndef VSNOOP_BPF_SPLIT_CHANGE_H
#define VSNOOP_BPF_SPLIT_CHANGE_H

#include "split_maps.h"

/* The segments of both ends go to their sockets. */
static __always_inline bool insert(struct split_port *port, const struct split_change *change)
{
	struct split_flow flow = change->flow;
	struct found_by by;

	split_key(&by, &change->key);
	if (bpf_map_update_elem(&split_flows, &by.key, &flow, BPF_NOEXIST))
		return false;
	count(&port->splits);
	return true;
}

/* Splits the connection from now on, if nothing has passed since the sockets were made. */
static __always_inline __u32 begin(struct split_port *port, struct split_change *change,
				   struct split_candidate *c)
{
	__u64 was = (__u64)SPLIT_WANTED << 32 | change->sent.v;

	/* A FIN or RST has passed meanwhile: an end may never send anything again. */
	if (c->flags & SPLIT_F_NEVER || !seq_eq(c->peer_nxt, change->peer_nxt) ||
	    !seq_eq(c->vm_ack, change->peer_nxt))
		return 0;
	/* First: no segment of the VM passes from here on. */
	if (__sync_val_compare_and_swap(&c->sent, was, (__u64)SPLIT_DONE << 32 | change->sent.v) !=
	    was)
		return 0;
	if (insert(port, change)) {
		if (!(*(volatile __u8 *)&c->flags & SPLIT_F_NEVER))
			return 1;
		/* One passed just before: see follow_vm(). */
		remove_split(port, &change->key);
	}
	c->sent = (__u64)SPLIT_REFUSED << 32 | change->sent.v;
	return 0;
}

/* The segments of both ends pass again. */
static __always_inline __u32 end(struct split_port *port, struct split_change *change,
				 struct split_candidate *c)
{
	struct split_flow *f = find_split(&change->key);

	if (!f)
		return 0;
	change->flow = *f;
	if (c) {
		c->peer_nxt = c->vm_ack = change->peer_nxt;
		c->peer_ack = change->sent;
		c->waits_ns = 0;
		c->sent = change->sent.v;
	}
	return remove_split(port, &change->key);
}

/* Notes that both sockets are closed: the kernel answers what still comes, but for a SYN. */
static __always_inline __u32 note_over(const struct split_change *change)
{
	struct split_flow *f = find_split(&change->key);

	if (!f)
		return 0;
	f->is_over = 1;
	return 1;
}

/* Its VM was found elsewhere, or is here after all. */
static __always_inline __u32 note_place(struct split_port *port, const struct split_change *change)
{
	struct split_flow *f = find_split(&change->key);

	if (!f)
		return 0;
	f->moved = change->flow.moved;
	count(&port->moves);
	return 1;
}

/* Changes the state of a connection for the splitter: run by BPF_PROG_TEST_RUN. */
SEC("syscall")
int change_split(struct split_change *change)
{
	struct split_port *port = this_port();
	struct found_by by = { .key = change->key };
	struct split_candidate *c;
	__u64 was;

	change->result = 0;
	c = bpf_map_lookup_elem(&split_candidates, &by.key);
	if (!port)
		return 0;
	if (change->ask == SPLIT_END) {
		change->result = end(port, change, c);
	} else if (change->ask == SPLIT_AGAIN) {
		if (c)
			c->sent = (__u64)SPLIT_DONE << 32 | change->sent.v;
		change->result = insert(port, change);
	} else if (change->ask == SPLIT_OVER) {
		change->result = note_over(change);
	} else if (change->ask == SPLIT_PLACE) {
		change->result = note_place(port, change);
	} else if (c && change->ask == SPLIT_BEGIN) {
		change->result = begin(port, change, c);
	} else if (c) {
		was = c->sent;
		if (was >> 32 == SPLIT_WANTED)
			change->result =
				__sync_val_compare_and_swap(&c->sent, was,
							    (change->ask == SPLIT_REFUSE ?
								     (__u64)SPLIT_REFUSED << 32 :
								     0) |
								    (__u32)was) == was;
	}
	return 0;
}

#endif
