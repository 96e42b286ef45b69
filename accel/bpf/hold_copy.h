/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Copies segments into the chains of their flows, and SACK blocks of the VM into its hold.
 */
#ifndef VSNOOP_BPF_HOLD_COPY_H
#define VSNOOP_BPF_HOLD_COPY_H

#include "hold_memory.h"

/* The way along a chain to the first chunk that is written, and the copy from there. */
struct copy_walk {
	struct __sk_buff *skb;
	__u32 slot;
	__u32 from; /* offset in the packet */
	__u32 left;
	__u32 chunk;
	__u32 steps; /* links to follow first */
	__u32 at; /* offset in the chunk */
};

/* bpf_loop() callback: follows a link. */
static long seek_chunk(__u32 i, struct copy_walk *w)
{
	struct hold_chunk *c;

	if (i >= w->steps)
		return 1;
	c = chunk_number(w->slot, w->chunk);
	if (!c)
		return 1;
	w->chunk = c->next;
	return 0;
}

/* The verifier sees no copy beyond the end of a slab, because more than HOLD_CHUNK bytes of other
 * fields follow its last chunk. */
_Static_assert(sizeof(struct hold_slab) - SLAB_BYTES >= HOLD_CHUNK, "a slab ends too soon");
_Static_assert(__builtin_offsetof(struct hold_slab, bytes) == 0 &&
		       __builtin_offsetof(struct hold_slab, chunks) == SLAB_BYTES,
	       "copy_chunk() takes the offset of a chunk for one in the slab");
_Static_assert((HOLD_CHUNK & (HOLD_CHUNK - 1)) == 0, "copy_chunk() masks offsets in a chunk");

static long copy_chunk(__u32 i, struct copy_walk *w)
{
	__u32 room = HOLD_CHUNK - w->at, n = w->left < room ? w->left : room;
	struct hold_slab *slab = slab_number(w->slot, w->chunk / SLAB_CHUNKS);
	__u32 to = w->chunk % SLAB_CHUNKS * HOLD_CHUNK + (w->at & (HOLD_CHUNK - 1));

	if (!slab || n > HOLD_CHUNK || to >= SLAB_BYTES)
		return 1;
	barrier_var(n);
	if (n == 0)
		return 1;
	if (bpf_skb_load_bytes(w->skb, w->from, slab->bytes + to, n))
		return 1;
	w->from += n;
	w->left -= n;
	w->at = 0;
	if (!w->left)
		return 1;
	w->chunk = slab->chunks[w->chunk % SLAB_CHUNKS].next;
	return 0;
}

/* Notes the protocol of the VLAN tag, 802.1Q or 802.1ad, for the engine's frames. */
static __always_inline void note_vlan_tag(struct __sk_buff *skb, struct hold *h)
{
	if (skb->vlan_present && skb->vlan_tci & VLAN_VID)
		h->vlan_proto = skb->vlan_proto;
	else
		bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &h->vlan_proto, sizeof(h->vlan_proto));
}

/* Copies the segment's new data, which begin at offset `data` + out->skip of the packet, to their
 * place in the stream. Returns KEEP_COPIED, perhaps with KEEP_LAST, flow_kept() then decides
 * whether they count; or the reason why they were not copied. */
__noinline int hold_copy(struct __sk_buff *skb, struct port *port, const struct segment *s,
			 const struct outcome *out, __u32 data)
{
	struct copy_walk copy = { .skb = skb };
	struct hold *h;
	__u32 seq, len;
	bool fresh, in_order, from_front, from_range, waits;
	__u32 base, from_base, reach, wanted, there;

	if (!port || !s || !out)
		return KEEP_NO_HOLD;
	h = hold_of(port, out->hold);
	seq = s->seq.v + out->skip;
	len = s->len - out->skip;
	if (!h || !len || len > 65536)
		return KEEP_NO_HOLD;
	copy.slot = port->slot;
	copy.from = data + out->skip;
	copy.left = len;
	if (h->key.vlan_outer && !h->vlan_proto)
		note_vlan_tag(skb, h);
	if (seq_eq(h->first, h->tail) && !h->range_count)
		free_chunks(port, h, h->chunks);
	in_order = seq == h->tail.v;
	fresh = !h->chunks;
	base = fresh ? h->tail.v : h->front >> 32;
	/* The VM may have advanced on its own meanwhile. */
	if (seq_lt(seq_of(seq), seq_of(base)))
		return KEEP_FREED;
	/* Start at the last copy in order, unless its chunk was freed or lies beyond. */
	from_front = fresh || seq_lt(h->at_base, seq_of(base)) || seq_gt(h->at_base, seq_of(seq));
	from_base = from_front ? base : h->at_base.v;
	/* Or at the latest out-of-order copy, if that is closer. If its chunk was freed, range_base
	 * is set to just before the chain. */
	if (fresh || seq_lt(h->range_base, seq_of(base)))
		h->range_base = seq_of(base - 1);
	from_range = seq_gt(h->range_base, seq_of(from_base)) && seq_le(h->range_base, seq_of(seq));
	if (from_range)
		from_base = h->range_base.v;
	copy.steps = (seq - from_base) / HOLD_CHUNK;
	/* In-order data are found at once; a hostile sender could order ranges so that each search
	 * is long. */
	if (copy.steps > HOLD_SEEK && !in_order)
		return KEEP_TOO_FAR;
	reach = seq - base + len;
	wanted = (reach + HOLD_CHUNK - 1) / HOLD_CHUNK;
	waits = in_order && out->hand == HAND_NOTHING;
	if (wanted > h->chunks && !grow_chain(port, h, out->hold, base, wanted - h->chunks, waits))
		return KEEP_NO_MEMORY;
	if (copy.steps >= h->chunks)
		return KEEP_TOO_FAR;
	if (from_front) {
		h->at = h->front;
		h->at_base = seq_of(base);
	}
	copy.chunk = from_range ? h->range_at : h->at;
	bpf_loop(HOLD_CHAIN, seek_chunk, &copy, 0);
	copy.at = (seq - from_base) % HOLD_CHUNK;
	from_base += copy.steps * HOLD_CHUNK;
	if (in_order) {
		h->at = copy.chunk;
		h->at_base = seq_of(from_base);
	} else {
		h->range_at = copy.chunk;
		h->range_base = seq_of(from_base);
	}
	bpf_loop(HOLD_REACH, copy_chunk, &copy, 0);
	/* A full barrier: the bytes are visible to the engine before `tail` is. */
	__sync_fetch_and_add(&h->woken, 0);
	if (copy.left)
		return KEEP_UNREADABLE;
	there = hold_chunks_there(&port->state, &port->policy);
	return KEEP_COPIED | (hold_uses_last(port->state.chunks_used, there) ? KEEP_LAST : 0);
}

/* A SACK option has room for no more (RFC 2018, section 3). */
#define SACK_BLOCKS_MOST 4
_Static_assert(sizeof(((struct hold *)0)->sack) == SACK_BLOCKS_MOST * 2 * sizeof(__be32),
	       "hand_sack_on() writes a left and a right edge for each block");

/* Copies the SACK blocks of an ACK of the VM to the hold, for the engine. */
static __noinline void hand_sack_on(struct __sk_buff *skb, const struct packet *p,
				    const struct port *port, __u32 number)
{
	__u32 blocks = (p->sack_len - 2u) / 8, i;
	struct hold *h = hold_of(port, number);
	__be32 edges[2];

	if (!h)
		return;
	h->sack_count = 0;
	for (i = 0; i < SACK_BLOCKS_MOST; i++) {
		if (i >= blocks || bpf_skb_load_bytes(skb, p->l4 + p->sack + 2 + sizeof(edges) * i,
						      edges, sizeof(edges)))
			return;
		h->sack[2 * i] = seq_of(bpf_ntohl(edges[0]));
		h->sack[2 * i + 1] = seq_of(bpf_ntohl(edges[1]));
		h->sack_count = i + 1;
	}
}

#endif
