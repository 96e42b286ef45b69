// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The programs of accel/bpf/, unchanged, and the part of a kernel that they call.
 *
 * Their maps and global variables are read from the object that clang makes of the same source for
 * BPF (build.rs writes programs.h from it), so that none is listed here. Packets are here; maps,
 * time and devices are in src/.
 *
 * Errors that the verifier would refuse kill the process: a helper called under a spin lock, a lock
 * that is not released, packet data read beyond data_end, undefined behaviour.
 */
#include <bpf/bpf_helpers.h>
#include <string.h>

#include "programs.bpf.c"

#include "kernel.h"
#include "programs.h"
#include <stdlib.h>

struct world_skb {
	struct __sk_buff ctx; /* first: what programs get a pointer to */
	struct sk_buff kern;
	struct net_device dev;
	struct Qdisc qdisc;
	struct skb_shared_info shared;
	struct world_frame *frame;
};

static __thread int locked;

/* Called by every helper but the locks: no helper may be called under a lock. */
static void enter(const char *helper)
{
	if (locked)
		world_bug("a helper is called under a spin lock");
	world_gap(helper);
}

static struct world_skb *skb_of(const struct __sk_buff *ctx)
{
	return (struct world_skb *)ctx;
}

/* Invalidates the program's packet pointers. */
static void refresh(struct world_skb *s)
{
	struct world_frame *f = s->frame;

	if (f->linear > f->len)
		f->linear = f->len;
	s->ctx.len = s->kern.len = f->len;
	s->ctx.data = (__u32)(unsigned long)f->bytes;
	s->ctx.data_end = s->ctx.data + f->linear;
}

void *bpf_cast_to_kern_ctx(void *ctx)
{
	return &skb_of(ctx)->kern;
}

void *bpf_rdonly_cast(const void *object, __u32 type)
{
	(void)type;
	return (void *)object;
}

void *bpf_map_lookup_elem(const void *map, const void *key)
{
	enter("map_lookup_elem");
	return world_lookup(map, key);
}

long bpf_map_update_elem(const void *map, const void *key, const void *value, __u64 flags)
{
	enter("map_update_elem");
	return world_update(map, key, value, flags);
}

long bpf_map_delete_elem(const void *map, const void *key)
{
	enter("map_delete_elem");
	return world_delete(map, key);
}

long bpf_map_push_elem(const void *map, const void *value, __u64 flags)
{
	enter("map_push_elem");
	return world_push(map, value, flags);
}

long bpf_map_pop_elem(const void *map, void *value)
{
	enter("map_pop_elem");
	return world_pop(map, value, true);
}

long bpf_map_peek_elem(const void *map, void *value)
{
	enter("map_peek_elem");
	return world_pop(map, value, false);
}

long bpf_ringbuf_output(const void *ring, const void *data, __u64 size, __u64 flags)
{
	enter("ringbuf_output");
	return world_ring(ring, data, size, flags);
}

/* A record that is not complete yet. */
struct record {
	const void *ring;
	__u64 size;
	__u8 bytes[] __attribute__((aligned(8)));
};

static struct record *record_of(void *bytes)
{
	return (struct record *)((__u8 *)bytes - __builtin_offsetof(struct record, bytes));
}

void *bpf_ringbuf_reserve(const void *ring, __u64 size, __u64 flags)
{
	struct record *r;

	enter("ringbuf_reserve");
	if (flags || !world_ring_reserve(ring, size))
		return 0;
	r = malloc(sizeof(*r) + size);
	if (!r)
		world_bug("no memory for a record");
	r->ring = ring;
	r->size = size;
	/* A record may be shorter than its type, which the compiler need not know. */
	barrier_var(r);
	return r->bytes;
}

void bpf_ringbuf_submit(void *bytes, __u64 flags)
{
	struct record *r = record_of(bytes);

	enter("ringbuf_submit");
	world_ring_submit(r->ring, r->bytes, r->size, flags);
	free(r);
}

void bpf_ringbuf_discard(void *bytes, __u64 flags)
{
	enter("ringbuf_discard");
	free(record_of(bytes));
}

__u64 bpf_ringbuf_query(const void *ring, __u64 flags)
{
	enter("ringbuf_query");
	if (flags != BPF_RB_AVAIL_DATA)
		world_bug("this query of a ring buffer has no model");
	return world_ring_bytes(ring);
}

void bpf_spin_lock(struct bpf_spin_lock *lock)
{
	enter("spin_lock");
	world_lock(lock);
	locked++;
}

void bpf_spin_unlock(struct bpf_spin_lock *lock)
{
	if (!locked)
		world_bug("a spin lock is released that is not held");
	locked--;
	world_unlock(lock);
}

__u64 bpf_ktime_get_ns(void)
{
	enter("ktime_get_ns");
	return world_now();
}

/* Of 4 ms. */
__u64 bpf_jiffies64(void)
{
	enter("jiffies64");
	return world_now() / 4000000;
}

__u32 bpf_get_prandom_u32(void)
{
	enter("get_prandom_u32");
	return world_random();
}

__u32 bpf_get_smp_processor_id(void)
{
	enter("get_smp_processor_id");
	return world_cpu();
}

long world_loop_begins(__u32 n)
{
	enter("loop");
	return n > 1 << 23 ? -7 : 0;
}

long bpf_skb_load_bytes(const struct __sk_buff *ctx, __u32 at, void *to, __u32 len)
{
	struct world_frame *f = skb_of(ctx)->frame;

	enter("skb_load_bytes");
	if (at > f->len || len > f->len - at) {
		memset(to, 0, len);
		return -14;
	}
	memcpy(to, f->bytes + at, len);
	return 0;
}

static __u32 sum_of(const void *bytes, __u32 len, __u32 seed)
{
	const __u8 *b = bytes;
	__u64 sum = seed;
	__u32 i;

	for (i = 0; i + 1 < len; i += 2)
		sum += b[i] | b[i + 1] << 8;
	if (len % 2)
		sum += b[len - 1];
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (__u32)((sum & 0xffffffff) + (sum >> 32));
}

/* skb_postpull_rcsum(), skb_postpush_rcsum(): subtracts bytes from skb->csum, or adds them. */
static void account(struct world_frame *f, __u32 at, __u32 len, bool leaves)
{
	__u32 start = at < 14 ? 14 : at, end = at + len;
	__u16 sum;
	__u64 total;

	if (f->ip_summed != CHECKSUM_COMPLETE || start >= end)
		return;
	sum = fold(sum_of(f->bytes + start, end - start, 0));
	if ((start - 14) % 2)
		sum = __builtin_bswap16(sum);
	if (leaves)
		sum = ~sum;
	total = (__u64)f->csum + sum;
	f->csum = (__u32)(total & 0xffffffff) + (__u32)(total >> 32);
}

long bpf_skb_store_bytes(struct __sk_buff *ctx, __u32 at, const void *from, __u32 len, __u64 flags)
{
	struct world_skb *s = skb_of(ctx);
	struct world_frame *f = s->frame;

	enter("skb_store_bytes");
	if (flags & ~(__u64)(BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH))
		return -22;
	if (at > f->len || len > f->len - at)
		return -14;
	if (flags & BPF_F_RECOMPUTE_CSUM)
		account(f, at, len, true);
	memcpy(f->bytes + at, from, len);
	if (flags & BPF_F_RECOMPUTE_CSUM)
		account(f, at, len, false);
	if (f->linear < at + len)
		f->linear = at + len;
	refresh(s);
	return 0;
}

long bpf_skb_pull_data(struct __sk_buff *ctx, __u32 len)
{
	struct world_skb *s = skb_of(ctx);

	enter("skb_pull_data");
	if (len > s->frame->len)
		return -12;
	if (s->frame->linear < len)
		s->frame->linear = len;
	refresh(s);
	return 0;
}

/* Only of a tag that is in the skb, and no other tag in the frame. */
long bpf_skb_vlan_pop(struct __sk_buff *ctx)
{
	struct world_skb *s = skb_of(ctx);

	enter("skb_vlan_pop");
	if (!s->frame->vlan_present)
		return -22;
	s->frame->vlan_present = s->frame->vlan_tci = s->frame->vlan_proto = 0;
	s->ctx.vlan_present = s->ctx.vlan_tci = s->ctx.vlan_proto = 0;
	return 0;
}

/* End of TCP's checksum field, from csum_start. */
#define CSUM_END 18

long bpf_skb_change_tail(struct __sk_buff *ctx, __u32 len, __u64 flags)
{
	struct world_skb *s = skb_of(ctx);
	struct world_frame *f = s->frame;
	__u32 least = f->ip_summed == CHECKSUM_PARTIAL ? f->csum_start + CSUM_END : 14;

	enter("skb_change_tail");
	if (flags || len < least || len > f->room)
		return -22;
	if (len < f->len)
		account(f, len, f->len - len, true);
	else
		memset(f->bytes + f->len, 0, len - f->len);
	f->len = len;
	f->gso_size = f->gso_segs = f->gso_type = 0;
	s->ctx.gso_size = s->ctx.gso_segs = 0;
	memset(&s->shared, 0, sizeof(s->shared));
	refresh(s);
	return 0;
}

__s64 bpf_csum_diff(const __be32 *from, __u32 from_len, const __be32 *to, __u32 to_len, __u32 seed)
{
	__u64 sum = seed;
	__u32 i;

	enter("csum_diff");
	if (from_len % 4 || to_len % 4 || from_len + to_len > 512)
		return -22;
	for (i = 0; i < from_len / 4; i++)
		sum += (__u32)~from[i];
	sum += sum_of(to, to_len, 0);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (__u32)((sum & 0xffffffff) + (sum >> 32));
}

/* Adds a difference to a checksum field. */
static int mend(struct world_skb *s, __u32 at, __u32 diff)
{
	struct world_frame *f = s->frame;
	__u16 check;

	if (at > f->len || f->len - at < 2)
		return -14;
	memcpy(&check, f->bytes + at, 2);
	check = ~fold((__u64)(__u16)~check + diff);
	memcpy(f->bytes + at, &check, 2);
	if (f->linear < at + 2)
		f->linear = at + 2;
	refresh(s);
	return 0;
}

/* inet_proto_csum_replace_by_diff(): with CHECKSUM_PARTIAL the field has the pseudo-header's
 * sum. */
long bpf_l4_csum_replace(struct __sk_buff *ctx, __u32 at, __u64 from, __u64 to, __u64 flags)
{
	struct world_skb *s = skb_of(ctx);

	enter("l4_csum_replace");
	if (flags & BPF_F_HDR_FIELD_MASK) {
		/* By two or four bytes. */
		to = (__u64)(__u32)~from + (__u32)to;
		to = (to & 0xffffffff) + (to >> 32);
	} else if (from) {
		return -22;
	}
	if (s->frame->ip_summed == CHECKSUM_PARTIAL && !(flags & BPF_F_PSEUDO_HDR))
		return 0;
	return mend(s, at, to);
}

long bpf_l3_csum_replace(struct __sk_buff *ctx, __u32 at, __u64 from, __u64 to, __u64 flags)
{
	enter("l3_csum_replace");
	if (flags & BPF_F_HDR_FIELD_MASK) {
		to = (__u64)(__u32)~from + (__u32)to;
		to = (to & 0xffffffff) + (to >> 32);
	} else if (from) {
		return -22;
	}
	return mend(skb_of(ctx), at, to);
}

static void take_context(struct world_skb *s)
{
	s->frame->mark = s->ctx.mark;
	memcpy(s->frame->cb, s->ctx.cb, sizeof(s->frame->cb));
}

long bpf_clone_redirect(struct __sk_buff *ctx, __u32 ifindex, __u64 flags)
{
	struct world_skb *s = skb_of(ctx);

	enter("clone_redirect");
	take_context(s);
	return world_transmit(s->frame, ifindex, flags);
}

static __thread __u32 redirect_ifindex, redirect_flags;

long bpf_redirect(__u32 ifindex, __u64 flags)
{
	enter("redirect");
	redirect_ifindex = ifindex;
	redirect_flags = flags;
	return 7; /* TC_ACT_REDIRECT */
}

/* As the programs on the tap (entry.bpf.c) do. */
static int entry(struct __sk_buff *ctx, bool is_to_vm)
{
	__u32 slot = ctx->cb[CB_SLOT];
	void *own_flows = bpf_map_lookup_elem(&flows, &slot);
	void *own_stats = bpf_map_lookup_elem(&stats, &slot);

	if (own_flows && own_stats &&
	    (is_to_vm ? fast_to_vm(ctx, own_flows, own_stats) :
			fast_from_vm(ctx, own_flows, own_stats)))
		return HOOK_NEXT;
	return is_to_vm ? to_vm(ctx) : from_vm(ctx);
}

static int call(enum world_program program, struct __sk_buff *ctx)
{
	switch (program) {
	case WORLD_TO_VM:
		return entry(ctx, true);
	case WORLD_FROM_VM:
		return entry(ctx, false);
	case WORLD_INJECT:
		return inject(ctx);
	case WORLD_GRANT:
		return grant(ctx);
	case WORLD_RECLAIM:
		return reclaim(ctx);
	case WORLD_UPLINK:
		return count(ctx);
	case WORLD_SPLIT_TO_VM:
		return split_to_vm(ctx);
	case WORLD_SPLIT_FROM_VM:
		return split_from_vm(ctx);
	case WORLD_SPLIT_FROM_SOCKET:
		return split_from_socket(ctx);
	case WORLD_CHANGE_SPLIT:
		/* Its context is the bytes. */
		return change_split((struct split_change *)skb_of(ctx)->frame->bytes);
	}
	world_bug("there is no such program");
}

static int run(enum world_program program, struct world_frame *f, const struct world_device *d)
{
	struct world_skb s = {
		.ctx = {
			.mark = f->mark,
			.protocol = f->protocol,
			.vlan_present = f->vlan_present,
			.vlan_tci = f->vlan_tci,
			.vlan_proto = f->vlan_proto,
			.ingress_ifindex = f->ingress_ifindex,
			.ifindex = f->ifindex,
			.gso_segs = f->gso_segs,
			.gso_size = f->gso_size,
		},
		.frame = f,
	};
	int result, depth = locked;

	memcpy(s.ctx.cb, f->cb, sizeof(f->cb));
	s.dev.qdisc = &s.qdisc;
	s.dev.features = d->features;
	s.dev.gso_max_size = d->gso_max_size;
	s.dev.gso_ipv4_max_size = d->gso_ipv4_max_size;
	s.dev.gso_max_segs = d->gso_max_segs;
	s.qdisc.enqueue = d->has_qdisc ? &s : 0;
	s.qdisc.flags = d->is_multiqueue ? TCQ_F_MQROOT : 0;
	s.shared.gso_segs = f->gso_segs;
	s.shared.gso_type = f->gso_type;
	s.kern.dev = &s.dev;
	s.kern.ip_summed = f->ip_summed;
	/* The shared info is at head + end. */
	s.kern.head = (unsigned char *)&s;
	s.kern.end = (unsigned char *)&s.shared - (unsigned char *)&s;
	refresh(&s);
	redirect_ifindex = 0;
	result = call(program, &s.ctx);
	if (locked != depth)
		world_bug("a program ends with a spin lock held");
	take_context(&s);
	f->redirect_ifindex = redirect_ifindex;
	f->redirect_flags = redirect_flags;
	return result;
}

const struct world_programs world_programs = {
	.run = run,
	.maps = world_maps,
	.globals = world_globals,
	.map_count = sizeof(world_maps) / sizeof(*world_maps),
	.global_count = sizeof(world_globals) / sizeof(*world_globals),
};
