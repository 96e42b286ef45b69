/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Counters of one port, one set per CPU.  Documented in docs/reference/metrics.md and, the
 * histograms, in docs/reference/json.md.
 */
#ifndef VSNOOP_FLOW_TYPES_STATS_H
#define VSNOOP_FLOW_TYPES_STATS_H

#include "../base.h"

#define HISTOGRAM_BUCKETS 40

struct port_stats {
	__u64 to_vm_packets; /* packets that the host sent to the VM */
	__u64 to_vm_bytes; /* frames, with headers */
	__u64 passive; /* segments left to a prompt VM */
	__u64 lease_jiffy; /* no counter: the last jiffy in which this CPU granted a lease */
	__u64 from_vm_packets; /* packets that the VM sent */
	__u64 from_vm_bytes; /* frames, with headers */
	__u64 early_acks; /* sent by the host */
	__u64 early_bytes; /* acknowledged by them, payload */
	__u64 reacked; /* retransmissions and probes answered by the host */
	__u64 suppressed; /* superfluous ACKs of the VM that were dropped */
	__u64 rewritten; /* packets of the VM whose ACK or window was changed */
	__u64 flows_created; /* records created */
	__u64 flows_mid_flow; /* records created without a handshake */
	__u64 flows_closed; /* records whose connection ended */
	__u64 flows_refused; /* the table was full */
	__u64 offline_unexpected_seq; /* flows left to the VM for a hole */
	__u64 offline_no_buf; /* flows left to the VM because a segment was not kept */
	__u64 offline_ce; /* flows left to the VM for congestion (RFC 3168) */
	__u64 bypassed; /* flows that went to BYPASS */
	__u64 bad_checksum; /* segments with a wrong checksum; passed untouched */
	__u64 not_exact; /* segments whose hand-over cannot be exact: qdisc, segmentation */
	__u64 bypassed_after_failures; /* flows left to the VM: its port's connections failed */
	__u64 vm_refused; /* RSTs of the VM for which the host's actions may be the reason */
	__u64 resets_sent; /* RSTs made by the hooks */
	__u64 malformed; /* packets that could not be parsed; passed untouched */
	__u64 kept_bytes; /* copied into the hold */
	__u64 held_segments; /* segments acknowledged before their hand-over */
	__u64 held_bytes;
	__u64 kept_out_of_order; /* segments kept beyond a hole, and reported by SACK */
	__u64 stretch_acked; /* segments kept, and acknowledged with a later one */
	__u64 without_hold; /* segments whose connection found no free hold */
	__u64 hold_full; /* segments that found no free chunk */
	__u64 hold_busy; /* segments that found the chain claimed by another CPU */
	__u64 not_copied; /* segments not copied for another reason than memory */
	__u64 hold_dropped; /* segments that could not be kept, for any reason */
	__u64 reset_without_engine; /* flows reset because the engine was gone */
	__u64 replaced; /* flows with bytes outstanding whose ends began a new connection */
	__u64 forwarded; /* flows that the VM forwards, and that are left to it */
	__u64 too_big; /* reports of a smaller path MTU that were honoured */
	/* Histograms; bucket b: [2^b, 2^(b+1)) ns. */
	__u64 masked_ns[HISTOGRAM_BUCKETS]; /* from the early ACK to the VM's own */
	__u64 ack_delay_ns[HISTOGRAM_BUCKETS]; /* from hand-over to the VM's own ACK */
	__u64 round_trip_ns[HISTOGRAM_BUCKETS]; /* round trip to the other end, from handshakes */
};

#endif
