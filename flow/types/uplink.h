/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * An uplink: the interface through which the senders' packets come, and what incast
 * control shares out among all flows of all ports behind it (flow/incast.h).
 */
#ifndef VSNOOP_FLOW_TYPES_UPLINK_H
#define VSNOOP_FLOW_TYPES_UPLINK_H

#include "incast.h"

#define INCAST_WAYS 64

/* Rates are bytes per 2^20 ns. */
struct uplink {
	__u32 rate; /* C; 0: no incast control */
	__u32 buffer; /* queue of the last hop, bytes */
	__u64 bytes; /* all that came in, as on the wire; written by the uplink's hook */

	/* Written by the hooks of all ports, without a lock. */
	struct incast_account all; /* outstanding credit of all flows */
	__s64 quota; /* bandwidth that may still be given away in this slot */
	__u64 slot_ns; /* start of the slot of 2T */
	__u64 slot_bytes; /* `bytes` then */
	__u64 census_ns; /* start of the present census */
	__u64 weighted_rtt; /* sum over samples of the slot, each times its bytes */
	__u64 weight; /* bytes of these samples */
	__u32 total; /* BW_T */
	__u32 t_ns; /* T */
	__u32 base_rtt_ns; /* of an empty queue */
	__u32 census; /* number of the present one */
	__u32 active; /* ports that data came for during the last census */
	__u32 active_now; /* ... and so far in this one */
	__u32 wanting; /* ports that wanted more than their share of all: likewise */
	__u32 wanting_now; /* ... and so far in this one */
	__u32 is_granting; /* the second half of the slot */

	/* Interfaces that the uplink's packets may be seen to come in by: itself, what it is
	 * a port of, and what is stacked on these.  Written by user space; ends with a 0. */
	__u32 ways[INCAST_WAYS];
};

#endif
