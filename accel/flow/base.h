/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fixed-width integers for the three places where flow/ is compiled: the BPF
 * programs (which bring the kernel's types and define VSNOOP_BPF), the Rust
 * crate vsnoop-flow, and simulators.
 */
#ifndef VSNOOP_FLOW_BASE_H
#define VSNOOP_FLOW_BASE_H

#include <linux/types.h>
#include <stdbool.h>

#ifdef VSNOOP_BPF
#include <linux/bpf.h>
#define VSNOOP_LOCK struct bpf_spin_lock lock
#else
#define VSNOOP_LOCK __u32 lock
#endif

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

/* Hides what is known of a variable: the kernel's verifier would walk all that follows once for
 * each value, or range of values, that it knows. */
#define opaque(variable) asm volatile("" : "+r"(variable))

/* The lesser of both, which differ by less than 2^63. Without a branch: the verifier would walk all
 * that follows for each of two ways. */
static __always_inline __s64 lesser(__s64 a, __s64 b)
{
	__s64 is_a = (a - b) >> 63;

	opaque(is_a);
	return b + ((a - b) & is_a);
}

static __always_inline __s64 greater(__s64 a, __s64 b)
{
	return a + b - lesser(a, b);
}

/* Copies by 16-bit words: all MAC addresses here are 2-byte aligned, and in BPF a struct copy of
 * them would be byte by byte. */
static __always_inline void copy_mac(__u8 to[6], const void *from)
{
	const __u16 *w = from;

	((__u16 *)to)[0] = w[0];
	((__u16 *)to)[1] = w[1];
	((__u16 *)to)[2] = w[2];
}

static __always_inline bool same_mac(const __u8 a[6], const __u8 b[6])
{
	const __u16 *v = (const void *)a, *w = (const void *)b;

	return v[0] == w[0] && v[1] == w[1] && v[2] == w[2];
}

#endif
