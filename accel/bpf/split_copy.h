/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Split connections: copies of what a late VM sends, and requests, for the splitter.
 */
#ifndef VSNOOP_BPF_SPLIT_COPY_H
#define VSNOOP_BPF_SPLIT_COPY_H

#include "split_maps.h"

/* Fills in all but the bytes. */
static __always_inline void fill_record(struct split_record *r, const struct flow_key *key,
					enum split_kind kind, struct seq seq, __u32 len, __u64 ns)
{
	__builtin_memcpy(&r->key, key, sizeof(r->key));
	r->kind = kind;
	r->seq = seq;
	r->len = len;
	r->zero = 0;
	r->ns = ns;
}

struct copy {
	struct __sk_buff *skb;
	const struct flow_key *key;
	struct split_port *port;
	__u64 ns;
	__u32 from; /* offset in the packet */
	__u32 seq;
	__u32 left;
};

/* bpf_loop() callback: copies the next bytes into a record of the ring. */
static long copy_part(__u32 i, struct copy *w)
{
	__u32 n = w->left < SPLIT_COPY_BYTES ? w->left : SPLIT_COPY_BYTES;
	struct split_record *r;
	bool is_half_full;

	if (n > SPLIT_COPY_BYTES)
		return 1;
	barrier_var(n);
	if (n == 0)
		return 1;
	r = bpf_ringbuf_reserve(&split_ring, sizeof(*r), 0);
	if (!r) {
		count(&w->port->no_room);
		return 1;
	}
	fill_record(r, w->key, SPLIT_COPY, seq_of(w->seq), n, w->ns);
	if (bpf_skb_load_bytes(w->skb, w->from, r->bytes, n)) {
		bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);
		return 1;
	}
	/* The splitter throws away copies that nobody wants in batches. */
	is_half_full = bpf_ringbuf_query(&split_ring, BPF_RB_AVAIL_DATA) > 1 << 19;
	bpf_ringbuf_submit(r, is_half_full ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
	count(&w->port->copies);
	w->from += n;
	w->seq += n;
	w->left -= n;
	return 0;
}

static __always_inline void copy_segment(struct __sk_buff *skb, struct split_port *port,
					 const struct arrival *a, __u64 now)
{
	struct copy w = { .skb = skb, .key = &a->key, .port = port, .ns = now };

	w.from = a->p.l4 + a->p.tcp_len;
	w.seq = a->s.seq.v;
	w.left = a->s.len;
	bpf_loop(65536 / SPLIT_COPY_BYTES, copy_part, &w, 0);
}

/* Asks the splitter. */
static __always_inline void want(struct split_port *port, const struct flow_key *key, __u64 now)
{
	/* Without bytes. */
	struct split_record *r =
		bpf_ringbuf_reserve(&split_ring, __builtin_offsetof(struct split_record, bytes), 0);

	if (!r)
		return;
	fill_record(r, key, SPLIT_WANTS, seq_of(0), 0, now);
	bpf_ringbuf_submit(r, BPF_RB_FORCE_WAKEUP);
	count(&port->wanted);
}

#endif
