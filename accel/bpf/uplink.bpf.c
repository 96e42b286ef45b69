// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The hook on an uplink: counts all bytes that come in, as on the wire, whatever their destination
 * (ICTCP's BW_T).
 */
#define VSNOOP_BPF
#include "uplink.h"

char _license[] SEC("license") = "Dual BSD/GPL";

/* Bytes on the wire beside the frame: preamble, check sequence and gap (IEEE 802.3). */
#define WIRE_OVERHEAD 24
/* Headers of each further segment that the device has merged into one packet, bytes. */
#define SEGMENT_HEADERS 66

SEC("tcx/ingress")
int count(struct __sk_buff *skb)
{
	__u32 segments = skb->gso_segs ? skb->gso_segs : 1;

	__sync_fetch_and_add(&uplink.bytes, (__u64)skb->len + segments * WIRE_OVERHEAD +
						    (segments - 1) * SEGMENT_HEADERS);
	return HOOK_NEXT;
}
