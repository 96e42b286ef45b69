/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Stands for libbpf's header of this name. Little-endian machines only, as the tests are. */
#ifndef VSNOOP_NATIVE_BPF_ENDIAN_H
#define VSNOOP_NATIVE_BPF_ENDIAN_H

#define bpf_htons(x) ((__be16)__builtin_bswap16(x))
#define bpf_ntohs(x) ((__u16)__builtin_bswap16(x))
#define bpf_htonl(x) ((__be32)__builtin_bswap32(x))
#define bpf_ntohl(x) ((__u32)__builtin_bswap32(x))

#endif
