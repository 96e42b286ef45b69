/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Memory of the hold: chunks in slabs, chained per flow.
 *
 * A CPU sets `claimed` under the lock of the flow's record before it extends a chain or frees
 * chunks, so that one CPU at a time does; the copying itself needs no lock. Only `owner` says
 * whether a chunk is free; it is taken with compare-and-swap. A search begins where the last one
 * ended, or at the chunk freed last, while few are used.
 *
 * The engine reads chains without a claim. This is safe: a chunk is freed only after the VM has
 * acknowledged all of its bytes, `front` moves before that, and a reader that finds `front`
 * unchanged after its walk has read live chunks only.
 *
 * The hooks ask for memory before they need it (want_slabs()). The engine adds slabs, and takes one
 * away after it has claimed all of its chunks and holds (HOLD_RESERVED).
 */
#ifndef VSNOOP_BPF_HOLD_MEMORY_H
#define VSNOOP_BPF_HOLD_MEMORY_H

#include "maps.h"
#include "packet.h"
#include "vm_lease.h"

/* Most chunks that one search looks at. A port without any free chunk is not searched. */
#define HOLD_SEARCH 16384
/* Bound of a loop over a chain, in chunks; no chain is as long. */
#define HOLD_CHAIN (1 << 20)
/* Most chunks freed at one ACK, so that other CPUs wait for `claimed` only briefly. */
#define HOLD_FREE 64
/* Most chunks by which one segment may extend a chain, holes included. */
#define HOLD_REACH (1 << 16)
/* While no more chunks than this are used, those that were freed last are used next: their bytes
 * are in the CPU's cache. With more, a search from there would pass too many used ones. */
#define HOLD_WARM 256
/* Most links followed for a segment beyond a hole: 16 MiB. */
#define HOLD_SEEK 4096

/* Slab `index` of the port in this slot, or null. Numbers of slabs, holds and chunks are per
 * slot. */
static __always_inline struct hold_slab *slab_number(__u32 slot, __u32 index)
{
	__u32 at = slot * SLABS + index;

	return index < SLABS ? only_value(bpf_map_lookup_elem(&slabs, &at)) : 0;
}

static __always_inline struct hold *hold_number(__u32 slot, __u32 number)
{
	struct hold_slab *slab;

	if (!number)
		return 0;
	slab = slab_number(slot, (number - 1) / SLAB_HOLDS);
	if (!slab)
		return 0;
	/* clang must not add to the address before it is compared: Linux 6.12 refuses that. */
	barrier_var(slab);
	return &slab->holds[(number - 1) % SLAB_HOLDS];
}

static __always_inline struct hold *hold_of(const struct port *port, __u32 number)
{
	return hold_number(port->slot, number);
}

static __always_inline struct hold_chunk *chunk_number(__u32 slot, __u32 chunk)
{
	struct hold_slab *slab = slab_number(slot, chunk / SLAB_CHUNKS);

	if (!slab)
		return 0;
	barrier_var(slab);
	return &slab->chunks[chunk % SLAB_CHUNKS];
}

/* Marks the hold for the engine, which looks at it until the VM has acknowledged its copies. */
static __always_inline void mark_busy(const struct port *port, __u32 number)
{
	struct hold_slab *slab = slab_number(port->slot, (number - 1) / SLAB_HOLDS);
	__u32 bit = 1u << ((number - 1) % SLAB_HOLDS);

	if (slab && !(*(volatile __u32 *)&slab->busy & bit))
		__sync_fetch_and_or(&slab->busy, bit);
}

static __always_inline void ring(const struct port *port, __u32 number, __u64 flags)
{
	void *bell = table(doorbell, port);

	if (bell)
		bpf_ringbuf_output(bell, &number, sizeof(number), flags);
}

/* Asks the engine for more memory, unless it has been asked or the quota is reached. */
static __always_inline void want_slabs(struct port *port)
{
	if (port->state.slabs * SLAB_CHUNKS >= port->policy.hold_chunks || port->state.wants_slabs)
		return;
	if (!__sync_lock_test_and_set(&port->state.wants_slabs, 1))
		ring(port, 0, BPF_RB_FORCE_WAKEUP);
}

/* A connection begins, and its data may come within 0.1 ms: asks for memory if there are fewer than
 * HOLD_READY_SLABS slabs free. */
static __always_inline void want_first_slabs(struct port *port)
{
	if (port->state.slabs * SLAB_CHUNKS <
	    port->state.chunks_used + HOLD_READY_SLABS * SLAB_CHUNKS)
		want_slabs(port);
}

/* Counts a failure of the VM's port: a connection that failed for a reason of the host's own
 * (`failed`), or else a listener that takes no data. */
static __noinline void note_failure(const struct port *port, const struct flow_key *key,
				    bool failed)
{
	__u32 port_number = bpf_ntohs(key->vm_port);
	void *map = table(failures, port);
	struct failures fresh = {}, *v;
	__u64 now = bpf_ktime_get_ns();

	v = find(map, &port_number);
	if (!v)
		v = &fresh;
	if (failed)
		failures_note(v, now);
	else
		failures_not_taken(v, now);
	if (v == &fresh)
		store(map, &port_number, v, BPF_ANY);
}

struct chunk_search {
	const struct port *port;
	__u32 owner;
	__u32 at;
	bool found;
};

static long try_chunk(__u32 i, struct chunk_search *w)
{
	struct hold_chunk *c;

	if (++w->at >= hold_chunks_there(&w->port->state, &w->port->policy))
		w->at = 0;
	c = chunk_number(w->port->slot, w->at);
	if (!c)
		return 1;
	if (c->owner || __sync_val_compare_and_swap(&c->owner, 0, w->owner))
		return 0;
	w->found = true;
	return 1;
}

struct chain_walk {
	struct hold *h;
	__u32 base; /* SEQ of the first byte, if the chain is empty */
	struct chunk_search search;
	__u32 wanted;
};

/* bpf_loop() callback: appends a chunk to the chain. */
static long add_chunk(__u32 i, struct chain_walk *w)
{
	struct hold *h = w->h;
	struct hold_chunk *last;

	if (i >= w->wanted)
		return 1;
	w->search.found = false;
	bpf_loop(HOLD_SEARCH, try_chunk, &w->search, 0);
	if (!w->search.found)
		return 1;
	if (h->chunks) {
		last = chunk_number(w->search.port->slot, h->last);
		if (last)
			last->next = w->search.at;
	} else {
		h->front = (__u64)w->base << 32 | w->search.at;
	}
	h->last = w->search.at;
	h->chunks++;
	return 0;
}

struct free_walk {
	struct hold *h;
	__u32 slot;
	__u32 left; /* chunks to free */
};

/* Most chunks that one call of free_run() frees: those of a super-packet. */
#define FREE_RUN 16

/* bpf_loop() callback: frees the chain's first chunks that are neighbours in a slab, as those of
 * one copy mostly are. One atomic instruction for all of them. */
static long free_run(__u32 i, struct free_walk *w)
{
	struct hold *h = w->h;
	__u64 front = h->front;
	__u32 chunk = front, base = front >> 32, first = chunk % SLAB_CHUNKS, most, n, at, next;
	struct hold_slab *slab = slab_number(w->slot, chunk / SLAB_CHUNKS);

	if (!slab || !w->left)
		return 1;
	most = SLAB_CHUNKS - first < w->left ? SLAB_CHUNKS - first : w->left;
	for (n = 0; n < FREE_RUN;) {
		next = slab->chunks[(first + n) % SLAB_CHUNKS].next;
		n++;
		if (n >= most || next != chunk + n)
			break;
	}
	/* The exchange is a full barrier: each `next` is read, and `front` moves, before a chunk is
	 * free, when another CPU may take it. */
	__sync_lock_test_and_set(&h->front, (__u64)(base + n * HOLD_CHUNK) << 32 | next);
	for (at = 0; at < FREE_RUN; at++) {
		if (at >= n)
			break;
		*(volatile __u32 *)&slab->chunks[(first + at) % SLAB_CHUNKS].owner = 0;
	}
	w->left -= n;
	return 0;
}

/* Number of chunks at the front of the chain of which the VM has acknowledged each byte, without
 * the last chunk of the chain. */
static __always_inline __u32 chunks_acknowledged(const struct hold *h)
{
	__s32 bytes = seq_diff(h->vm_seq, seq_of(h->front >> 32));
	__u32 most = h->chunks ? h->chunks - 1 : 0,
	      number = bytes > 0 ? (__u32)bytes / HOLD_CHUNK : 0;

	return number < most ? number : most;
}

/* Frees the first `number` chunks of the chain. The caller has claimed the chain. */
static __always_inline void free_chunks(struct port *port, struct hold *h, __u32 number)
{
	struct free_walk w = { .h = h, .slot = port->slot, .left = number };
	__u64 front = *(volatile __u64 *)&h->front;
	__u32 used, freed;

	bpf_loop(number < HOLD_CHAIN ? number : HOLD_CHAIN, free_run, &w, 0);
	freed = ((__u32)(h->front >> 32) - (__u32)(front >> 32)) / HOLD_CHUNK;
	if (!freed)
		return;
	h->chunks -= freed;
	used = __sync_fetch_and_add(&port->state.chunks_used, -freed);
	if (used <= HOLD_WARM)
		port->state.chunk_cursor = (__u32)front - 1;
}

/* Frees the chunks that the VM has acknowledged, or all, and ends the claim on the chain. */
__noinline int hold_free(struct port *port, __u32 number, bool all)
{
	__u32 most = all ? HOLD_CHAIN : HOLD_FREE, count;
	struct hold *h;

	if (!port)
		return -1;
	h = hold_of(port, number);
	if (!h)
		return -1;
	/* In one register: the stack has no word to spare. */
	barrier_var(h);
	count = h->chunks;
	if (most == HOLD_FREE && (h->range_count || seq_lt(h->vm_seq, h->tail)))
		count = chunks_acknowledged(h);
	free_chunks(port, h, count < most ? count : most);
	__sync_lock_test_and_set(&h->claimed, 0);
	return 0;
}

/* Extends the chain by `wanted` chunks. False if the quota or the memory does not allow it; `last`:
 * it may take the last memory, too. */
static __always_inline bool grow_chain(struct port *port, struct hold *h, __u32 number, __u32 base,
				       __u32 wanted, bool last)
{
	struct chain_walk grow = { .h = h, .base = base, .wanted = wanted };
	__u32 before = h->chunks, there = hold_chunks_there(&port->state, &port->policy), used;

	if (wanted > HOLD_REACH)
		return false;
	used = __sync_fetch_and_add(&port->state.chunks_used, wanted) + wanted;
	/* Early: the windows that senders are shown depend on what is free. */
	if (used > there / 2)
		want_slabs(port);
	if (used > there || (!last && hold_uses_last(used, there))) {
		__sync_fetch_and_add(&port->state.chunks_used, -wanted);
		return false;
	}
	grow.search.port = port;
	grow.search.owner = number;
	grow.search.at = port->state.chunk_cursor;
	bpf_loop(HOLD_REACH, add_chunk, &grow, 0);
	port->state.chunk_cursor = grow.search.at;
	if (h->chunks - before == wanted)
		return true;
	/* Chunks that were found stay in the chain. */
	__sync_fetch_and_add(&port->state.chunks_used, h->chunks - before - wanted);
	return false;
}

struct hold_search {
	const struct port *port;
	__u32 start; /* where the last search ended */
	__u32 number; /* number of the hold found, from 1; 0: none */
};

static long try_hold(__u32 i, struct hold_search *w)
{
	__u32 count = w->port->state.slabs * SLAB_HOLDS, at;
	struct hold *h;

	if (!count)
		return 1;
	/* Computed from `i`, which the verifier does not know: it would follow a counter through
	 * all iterations. */
	at = (w->start + 1 + i) % count;
	h = hold_of(w->port, at + 1);
	if (!h)
		return 1;
	if (h->used || __sync_val_compare_and_swap(&h->used, 0, 1))
		return 0;
	w->number = at + 1;
	return 1;
}

/* Gives the flow a hold. Returns its number, even if another CPU gave it one meanwhile; 0 if the
 * flow needs none or none is free. */
__noinline int hold_take(struct port *port, const struct flow_key *key)
{
	struct hold_search w = { .port = port };
	struct flow *f;
	__u32 number = 0;
	struct hold *h;

	if (!port || !key)
		return 0;
	f = flow_of(port, key);
	/* The engine needs the VM's window. */
	if (!f || f->mode != FLOW_ACTIVE || !(f->flags & FLOW_F_SCALE_KNOWN) ||
	    port->policy.run != PORT_ACCELERATE)
		return 0;
	w.start = port->state.hold_cursor;
	bpf_loop(2 * SLAB_HOLDS, try_hold, &w, 0);
	if (!w.number) {
		want_slabs(port);
		return 0;
	}
	port->state.hold_cursor = w.number - 1;
	h = hold_of(port, w.number);
	f = flow_of(port, key);
	if (!h)
		return 0;
	if (f) {
		h->key = *key;
		h->front = 0;
		h->chunks = 0;
		h->claimed = 0;
		h->rcv_win = 0;
		h->since_ns = h->handed_ns = 0;
		h->duplicate_acks = h->sack_count = h->woken = h->marked = h->vm_acks = 0;
		h->range_count = 0;
		h->vlan_proto = 0;
		h->path_mss = h->sender_ttl = 0;
		h->too_big = h->due_acks = h->late = h->dropped = 0;
		h->due_ns = 0;
		h->handovers = h->resends = h->probes = 0;
		h->resent_bytes = 0;
		bpf_spin_lock(&f->lock);
		if (!f->hold) {
			flow_end_vm_lease(f, 0);
			hold_init(f, h, w.number);
		}
		number = f->hold;
		bpf_spin_unlock(&f->lock);
	}
	if (number != w.number)
		__sync_lock_test_and_set(&h->used, 0);
	return number;
}

/* Frees the chunks that the VM has acknowledged, and with RECLAIM_HOLD a hold that no flow uses any
 * more. */
__noinline enum reclaimed hold_reclaim(struct port *port, __u32 number, enum reclaim why)
{
	__u64 now = bpf_ktime_get_ns();
	struct flow_key key;
	struct flow *f;
	struct hold *h;
	bool claimed = false, mine = false;

	if (!port)
		return RECLAIMED_FREE;
	h = hold_of(port, number);
	if (!h || !h->used)
		return RECLAIMED_FREE;
	key = h->key;
	f = flow_of(port, &key);
	if (f) {
		bpf_spin_lock(&f->lock);
		mine = f->hold == number;
		if (mine && hold_is_idle(f, h, now))
			f->hold = 0;
		if (mine && (f->mode == FLOW_RESET || f->flags & FLOW_F_CLOSED)) {
			h->flags |= HOLD_OVER;
			/* With RECLAIM_RESET user space has yet to read `handed`. */
			if (why != RECLAIM_RESET)
				f->hold = 0;
		}
		mine = f->hold == number;
		if (mine && !h->claimed && seq_ge(f->vm_seq, h->tail) && h->chunks &&
		    !h->range_count) {
			h->vm_seq = f->vm_seq;
			h->reach = h->tail;
			h->claimed = 1;
			claimed = true;
		}
		bpf_spin_unlock(&f->lock);
	}
	/* All chunks: the VM sends no further ACK that would free the rest. */
	if (claimed)
		hold_free(port, number, true);
	if (mine)
		return RECLAIMED_USED;
	if (why != RECLAIM_HOLD)
		return RECLAIMED_OVER;
	hold_free(port, number, true);
	__sync_lock_test_and_set(&h->used, 0);
	return RECLAIMED_FREE;
}

#endif
