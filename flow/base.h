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

#endif
