// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The two programs on a tap: each passes what a lease covers (fast_path.h), and calls the port's
 * shared program for all other packets (vsnoop.bpf.c).
 *
 * They are loaded for each port, with the port's own maps, and without libbpf: user space puts maps
 * and slot into the instructions (accel/vsnoop-bpf/src/entry.rs), where clang left references to
 * the names below. So there are no functions here, no types (BTF), and no CO-RE.
 */
#define VSNOOP_BPF
#include "tables.h"
#include "fast_path.h"

struct flows_map flows SEC(".maps");
struct stats_map stats SEC(".maps");

/* The shared program of the hook. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} program SEC(".maps");

/* Its address stands for the port's slot. */
extern const char slot[];

static __always_inline int call_shared(struct __sk_buff *skb)
{
	skb->cb[CB_SLOT] = (__u32)(unsigned long)slot;
	bpf_tail_call(skb, &program, 0);
	/* It is gone. */
	return HOOK_NEXT;
}

SEC("tcx/egress")
int to_vm(struct __sk_buff *skb)
{
	return fast_to_vm(skb, &flows, &stats) ? HOOK_NEXT : call_shared(skb);
}

SEC("tcx/ingress")
int from_vm(struct __sk_buff *skb)
{
	return fast_from_vm(skb, &flows, &stats) ? HOOK_NEXT : call_shared(skb);
}
