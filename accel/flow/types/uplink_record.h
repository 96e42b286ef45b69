/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * An uplink: the interface through which the senders' packets come in, and the credit that incast
 * control shares out among all flows of all ports behind it (flow/incast.h).
 */
#ifndef VSNOOP_FLOW_TYPES_UPLINK_RECORD_H
#define VSNOOP_FLOW_TYPES_UPLINK_RECORD_H

#include "incast_accounts.h"

#define INCAST_INGRESS 64

/* Rates are bytes per 2^20 ns. */
struct uplink {
	__u32 rate; /* C; 0: no incast control */
	__u32 buffer; /* queue of the last hop, bytes */
	__u64 bytes; /* bytes that came in, as on the wire */

	/* Written by the hooks of all ports, without a lock. */
	struct incast_account all; /* account of all flows */
	__s64 quota; /* bandwidth left to give away in this slot */
	__u64 slot_ns; /* start of the slot of 2T */
	__u64 slot_bytes; /* `bytes` at slot_ns */
	__u64 census_ns; /* start of the present census */
	__u64 weighted_rtt; /* sum of the slot's samples, each weighted by its bytes */
	__u64 weight; /* sum of these weights, bytes */
	__u32 total; /* BW_T */
	__u32 t_ns; /* T */
	__u32 base_rtt_ns; /* round trip with an empty queue */
	__u32 drain_ns; /* time that a full queue of the last hop takes to empty */
	__u32 census; /* number of the present census */
	__u32 receiving; /* ports that received data during the last census */
	__u32 receiving_now; /* the same, so far in the present census */
	__u32 wanting; /* ports that wanted more than their share: last census */
	__u32 wanting_now; /* the same, so far in the present census */
	__u32 is_granting; /* 1: in the second half of the slot */
	__u32 risen; /* epoch in which base_rtt_ns last rose */
	__u32 flows; /* that received data during the last census, or were asked for some */
	__u32 flows_now; /* the same, so far in the present census */
	__u32 credit; /* bytes that all flows may have in flight, as last computed */
	__u32 beyond; /* bytes more that trains may have */

	/* Interfaces by which packets of the uplink may enter the stack: the uplink, its master,
	 * and what is stacked on these. Written by user space; ends with a 0. */
	__u32 ingress[INCAST_INGRESS];
};

#endif
