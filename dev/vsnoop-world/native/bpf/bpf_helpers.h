/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Stands for libbpf's header of this name: the helpers are functions of kernel.c. */
#ifndef VSNOOP_NATIVE_BPF_HELPERS_H
#define VSNOOP_NATIVE_BPF_HELPERS_H

#include <linux/bpf.h>
#include <stdbool.h>

#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define __array(name, val) typeof(val) *name[]

/* Sections are for libbpf; build.rs reads them from the object made for BPF. */
#define SEC(name) __attribute__((used))
#define __ksym
#define __weak __attribute__((weak))
#define __hidden
#undef __noinline
#define __noinline __attribute__((noinline))
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define barrier_var(var) asm volatile("" : "+r"(var))
#define barrier() asm volatile("" ::: "memory")
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

void *bpf_map_lookup_elem(const void *map, const void *key);
long bpf_map_update_elem(const void *map, const void *key, const void *value, __u64 flags);
long bpf_map_delete_elem(const void *map, const void *key);
long bpf_map_push_elem(const void *map, const void *value, __u64 flags);
long bpf_map_pop_elem(const void *map, void *value);
long bpf_map_peek_elem(const void *map, void *value);
long bpf_ringbuf_output(const void *ring, const void *data, __u64 size, __u64 flags);
void *bpf_ringbuf_reserve(const void *ring, __u64 size, __u64 flags);
void bpf_ringbuf_submit(void *bytes, __u64 flags);
void bpf_ringbuf_discard(void *bytes, __u64 flags);
__u64 bpf_ringbuf_query(const void *ring, __u64 flags);

void bpf_spin_lock(struct bpf_spin_lock *lock);
void bpf_spin_unlock(struct bpf_spin_lock *lock);

__u64 bpf_ktime_get_ns(void);
__u64 bpf_jiffies64(void);
__u32 bpf_get_prandom_u32(void);
__u32 bpf_get_smp_processor_id(void);

long bpf_skb_load_bytes(const struct __sk_buff *skb, __u32 at, void *to, __u32 len);
long bpf_skb_store_bytes(struct __sk_buff *skb, __u32 at, const void *from, __u32 len, __u64 flags);
long bpf_skb_pull_data(struct __sk_buff *skb, __u32 len);
long bpf_skb_vlan_pop(struct __sk_buff *skb);
long bpf_skb_change_tail(struct __sk_buff *skb, __u32 len, __u64 flags);
__s64 bpf_csum_diff(const __be32 *from, __u32 from_len, const __be32 *to, __u32 to_len, __u32 seed);
long bpf_l3_csum_replace(struct __sk_buff *skb, __u32 at, __u64 from, __u64 to, __u64 flags);
long bpf_l4_csum_replace(struct __sk_buff *skb, __u32 at, __u64 from, __u64 to, __u64 flags);
long bpf_clone_redirect(struct __sk_buff *skb, __u32 ifindex, __u64 flags);
long bpf_redirect(__u32 ifindex, __u64 flags);

/* The callback gets an index and a context, each in a register. */
long world_loop_begins(__u32 n);
#define bpf_loop(n, callback, context, flags)                                                      \
	({                                                                                         \
		__u32 loop_n = (n), loop_i = 0;                                                    \
		long loop_done = world_loop_begins(loop_n);                                        \
		if (!loop_done)                                                                    \
			while (loop_i < loop_n)                                                    \
				if (callback(loop_i++, context))                                   \
					break;                                                     \
		loop_done ? loop_done : loop_i;                                                    \
	})

#endif
