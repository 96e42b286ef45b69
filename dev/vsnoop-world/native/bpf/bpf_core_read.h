/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Stands for libbpf's header of this name: there is one kernel, that of kernel.c, and its
 * types are those that the programs declare. */
#ifndef VSNOOP_NATIVE_BPF_CORE_READ_H
#define VSNOOP_NATIVE_BPF_CORE_READ_H

#define BPF_CORE_READ_BITFIELD(object, field) ((object)->field)
#define BPF_CORE_READ(object, field) ((object)->field)
#define bpf_core_type_id_kernel(type) 0
#define bpf_core_field_exists(field) 1
#define bpf_core_type_exists(type) 1

#endif
