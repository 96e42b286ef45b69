// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Diversion: packets of a VM to chosen prefixes enter a link through the tap of the link's process,
 * instead of going to the stack.
 *
 * The hook runs on the ingress of the VM's tap, after from_vm, which must see all packets of the
 * VM. The packet stays as it is: super-packets whole, checksums partial. Packets that cannot be
 * routed any further (link-local, multicast, neighbour discovery, hop limit used up) pass to the
 * stack, and so do those with a VLAN tag. A diverted packet meets no firewall of this host, so its
 * sources are checked here: with any but the VM's it is treated as while the link is down.
 *
 * The link may go down at any time, and its process may die. `divert_up` is 0 while the link is
 * down. Nothing here is pinned, so the hook ends with the process. The link's tap may be deleted
 * before that: its index is in a map from which the kernel removes it with the device.
 */
#include "divert.h"

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stdbool.h>

/* Return values of a hook: enum tcx_action_base of linux/bpf.h, which is newer than the headers of
 * some distributions. */
#define HOOK_NEXT -1
#define HOOK_DROP 2

char _license[] SEC("license") = "Dual BSD/GPL";

/* Set by the link's process. */
__u32 divert_up;

/* The link's tap. The map is only read: it has index 0 when the device is gone. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} link_tap SEC(".maps");

/* Keys are struct divert_key, values struct divert_rule. */
struct divert_rules {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct divert_key));
	__uint(value_size, sizeof(struct divert_rule));
};

/* The rules in force. User space replaces the inner map as a whole, so that every packet meets one
 * complete set. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct divert_rules);
} in_force SEC(".maps");

/* 0/8, 127/8, 169.254/16, and 224/3: addresses that are not unicast, or must not be routed. */
static __always_inline bool is_local_v4(__be32 addr)
{
	__u32 a = bpf_ntohl(addr);

	return a >> 24 == 0 || a >> 24 == 127 || a >> 16 == 0xa9fe || a >> 29 == 7;
}

/* ::/64 with :: and ::1, fe80::/10, ff00::/8. */
static __always_inline bool is_local_v6(const struct in6_addr *addr)
{
	const __be32 *w = addr->in6_u.u6_addr32;

	return (w[0] == 0 && w[1] == 0) ||
	       (w[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
	       (w[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

enum found { FOUND_ADDRESS, FOUND_NOTHING, FOUND_SHORT };

/* `bits` of a key that has a whole address. */
#define DIVERT_KEY_BITS (8 * (__u32)(sizeof(struct divert_key) - sizeof(__u32)))

/* ICMPv6 messages of neighbour discovery: router solicitation to redirect (RFC 4861, section 4). */
#define DISCOVERY_FIRST 133
#define DISCOVERY_LAST 137

/* The keys of a packet's destination and of both its sources. */
struct packet_keys {
	struct divert_key to;
	struct divert_key from;
	struct divert_key mac;
};

/* Finds the packet's addresses, if it can be routed. */
static __always_inline enum found find(struct __sk_buff *skb, struct packet_keys *keys)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return FOUND_SHORT;
	if (eth->h_dest[0] & 1) /* broadcast and multicast */
		return FOUND_NOTHING;
	keys->mac.kind = DIVERT_FROM_MAC;
	__builtin_memcpy(keys->mac.addr, eth->h_source, ETH_ALEN);
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end)
			return FOUND_SHORT;
		if (*(__u8 *)ip >> 4 != 4 || ip->ttl <= 1 || is_local_v4(ip->saddr) ||
		    is_local_v4(ip->daddr))
			return FOUND_NOTHING;
		keys->to.kind = DIVERT_TO_V4;
		__builtin_memcpy(keys->to.addr, &ip->daddr, 4);
		keys->from.kind = DIVERT_FROM_V4;
		__builtin_memcpy(keys->from.addr, &ip->saddr, 4);
		return FOUND_ADDRESS;
	}
	if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);
		__u8 *type = (void *)(ip + 1);

		if ((void *)(ip + 1) > end)
			return FOUND_SHORT;
		if (*(__u8 *)ip >> 4 != 6 || ip->hop_limit <= 1 || is_local_v6(&ip->saddr) ||
		    is_local_v6(&ip->daddr))
			return FOUND_NOTHING;
		if (ip->nexthdr == IPPROTO_ICMPV6) {
			if ((void *)(type + 1) > end)
				return FOUND_SHORT;
			/* Hosts send it between global addresses, too. */
			if (*type >= DISCOVERY_FIRST && *type <= DISCOVERY_LAST)
				return FOUND_NOTHING;
		}
		keys->to.kind = DIVERT_TO_V6;
		__builtin_memcpy(keys->to.addr, &ip->daddr, 16);
		keys->from.kind = DIVERT_FROM_V6;
		__builtin_memcpy(keys->from.addr, &ip->saddr, 16);
		return FOUND_ADDRESS;
	}
	return FOUND_NOTHING;
}

static __always_inline int not_diverted(const struct divert_rule *rule)
{
	return rule->action == DIVERT_OR_DROP ? HOOK_DROP : HOOK_NEXT;
}

SEC("tcx/ingress")
int divert(struct __sk_buff *skb)
{
	struct packet_keys keys = {
		.to.bits = DIVERT_KEY_BITS,
		.from.bits = DIVERT_KEY_BITS,
		.mac.bits = DIVERT_KEY_BITS,
	};
	struct divert_rule *rule;
	__u32 zero = 0, *tap;
	enum found found;
	void *rules;

	if (skb->vlan_present)
		return HOOK_NEXT;
	found = find(skb, &keys);
	if (found == FOUND_SHORT) {
		__u32 want = sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + 1;

		if (bpf_skb_pull_data(skb, want < skb->len ? want : skb->len))
			return HOOK_NEXT;
		found = find(skb, &keys);
	}
	if (found != FOUND_ADDRESS)
		return HOOK_NEXT;
	rules = bpf_map_lookup_elem(&in_force, &zero);
	if (!rules)
		return HOOK_NEXT;
	rule = bpf_map_lookup_elem(rules, &keys.to);
	if (!rule || rule->action == DIVERT_NEVER)
		return HOOK_NEXT;
	if (!bpf_map_lookup_elem(rules, &keys.from) || !bpf_map_lookup_elem(rules, &keys.mac)) {
		__sync_fetch_and_add(&rule->forged, 1);
		return not_diverted(rule);
	}
	tap = bpf_map_lookup_elem(&link_tap, &zero);
	if (!divert_up || !tap || !*tap) {
		__sync_fetch_and_add(&rule->missed, 1);
		return not_diverted(rule);
	}
	__sync_fetch_and_add(&rule->packets, 1);
	__sync_fetch_and_add(&rule->bytes, skb->len);
	return bpf_redirect(*tap, 0);
}
