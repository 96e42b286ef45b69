/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* For the object whose types build.rs reads: keeps the sections apart. */
#include <bpf/bpf_helpers.h>
#undef SEC
#define SEC(name) __attribute__((section(name), used))
