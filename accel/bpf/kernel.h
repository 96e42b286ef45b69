/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few kernel types that the hooks read, relocated at load time (CO-RE), so that the build needs
 * no vmlinux.h of a particular kernel.
 */
#ifndef VSNOOP_BPF_KERNEL_H
#define VSNOOP_BPF_KERNEL_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct Qdisc {
	void *enqueue;
	unsigned int flags;
};

typedef __u64 netdev_features_t;

struct net_device {
	netdev_features_t features;
	struct Qdisc *qdisc;
	unsigned int gso_max_size;
	unsigned int gso_ipv4_max_size;
	__u16 gso_max_segs;
};

struct skb_shared_info {
	unsigned short gso_segs;
	unsigned int gso_type;
};

struct sk_buff {
	struct net_device *dev;
	__u8 ip_summed : 2;
	unsigned int len;
	unsigned int end;
	unsigned char *head;
};

#pragma clang attribute pop

/* include/linux/skbuff.h */
#define CHECKSUM_UNNECESSARY 1
#define CHECKSUM_COMPLETE 2
#define CHECKSUM_PARTIAL 3

/* include/net/sch_generic.h */
#define TCQ_F_MQROOT 8

/* include/linux/netdev_features.h: feature bit of a GSO type is its own bit
 * shifted by this. */
#define NETIF_F_GSO_SHIFT 16

/* Return values of a hook, as in enum tcx_action_base (linux/bpf.h since 6.6, newer than the
 * headers of some distributions with such kernels). */
#define HOOK_NEXT -1
#define HOOK_DROP 2

extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;
extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym;

#endif
