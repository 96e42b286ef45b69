/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Conditions under which the result of a hand-over is exact.
 *
 * bpf_clone_redirect() to a tap returns 0 only if the tap's ring has taken the packet, provided
 * that the queue discipline is noqueue (any other may accept the packet now and drop it later), and
 * that the stack does not split the packet (the result would be that of the last part alone). Both
 * are checked for every segment, because either can change at any time without notice.
 */
#ifndef VSNOOP_BPF_HANDOVER_H
#define VSNOOP_BPF_HANDOVER_H

#include "checksum.h"
#include "maps.h"

#define SKB_GSO_DODGY (1 << 1) /* linux/skbuff.h */

static __always_inline bool handover_is_exact(struct __sk_buff *skb)
{
	struct sk_buff *k = bpf_cast_to_kern_ctx(skb);
	struct net_device *dev = k->dev;
	struct Qdisc *qdisc = dev->qdisc;
	struct skb_shared_info *shared;
	__u8 ip_summed;
	__u64 needed;

	if (!qdisc || qdisc->enqueue || qdisc->flags & TCQ_F_MQROOT)
		return false;
	if (!skb->gso_size)
		return true;
	/* netif_needs_gso(): the stack splits a packet with any other state of its checksum. */
	ip_summed = BPF_CORE_READ_BITFIELD(k, ip_summed);
	if (ip_summed != CHECKSUM_PARTIAL && ip_summed != CHECKSUM_UNNECESSARY)
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP) && skb->len >= dev->gso_ipv4_max_size)
		return false;
	shared = bpf_rdonly_cast(k->head + k->end, bpf_core_type_id_kernel(struct skb_shared_info));
	/* A super-packet of another VM is marked as untrusted; the stack validates it and sends it
	 * whole (tcp_gso_segment()). */
	needed = (__u64)(shared->gso_type & ~SKB_GSO_DODGY) << NETIF_F_GSO_SHIFT;
	return (dev->features & needed) == needed && skb->len < dev->gso_max_size &&
	       shared->gso_segs <= dev->gso_max_segs;
}

#endif
