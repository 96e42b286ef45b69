/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Time (incast.h): slots, epochs and censuses that end, and the room for what is granted at once.
 */
#ifndef VSNOOP_FLOW_INCAST_TIME_H
#define VSNOOP_FLOW_INCAST_TIME_H

#include "incast_credit.h"

/* Ends an account's epochs before `epoch`: their outstanding credit becomes silent. */
static __always_inline void incast_end_epochs(struct incast_account *a, __u32 epoch)
{
	__u32 first = a->epoch, count = epoch - first, i;
	__s64 silent = 0;

	if (!count || count >= 1u << 31 || !__sync_bool_compare_and_swap(&a->epoch, first, epoch))
		return;
	for (i = 0; i < INCAST_EPOCHS && i < count; i++)
		silent += __sync_lock_test_and_set(&a->ends[(first + i) & (INCAST_EPOCHS - 1)], 0);
	__sync_fetch_and_sub(&a->outstanding, silent);
	__sync_fetch_and_add(&a->silent, silent);
	/* Corrects what concurrent updates have lost: without flows the sum is 0. What they have
	 * left in epochs to come is outstanding until these end. */
	if (a->open <= 0)
		__sync_lock_test_and_set(&a->silent, -a->outstanding);
}

/* Ends a census for a port: counts the flows that took part in it. */
static __always_inline void incast_end_census(const struct uplink *u, struct incast_port *port)
{
	__u32 census = port->census, now = u->census, flows;

	if (census == now || !__sync_bool_compare_and_swap(&port->census, census, now))
		return;
	flows = now - census == 1 ? port->counted : 0;
	port->flows = flows + (port->own.queued > 0 ? port->own.queued : 0);
	port->counted = 0;
}

/* Computes the credit again: once for a packet. Where it is used the verifier so knows nothing of
 * it. */
static __always_inline void incast_note_credit(struct uplink *u)
{
	u->beyond = incast_beyond(u);
	u->credit = incast_credit(u);
}

/* Computes what a packet would need a division for. */
static __always_inline void incast_note_drain(struct uplink *u)
{
	__u64 ns = u->rate ? ((__u64)u->buffer << INCAST_TICK_BITS) / u->rate : 0;

	u->drain_ns = ns < NSEC_PER_SEC ? ns : NSEC_PER_SEC;
	incast_note_credit(u);
}

static __always_inline __u64 incast_census_ns(const struct uplink *u)
{
	__u64 ns = INCAST_CENSUS_QUEUES * (__u64)u->drain_ns;

	if (ns > INCAST_LONGEST_CENSUS_NS)
		return INCAST_LONGEST_CENSUS_NS;
	return ns > INCAST_LEAST_CENSUS_NS ? ns : INCAST_LEAST_CENSUS_NS;
}

/* These bytes of payload come after a round trip. */
static __always_inline void incast_take_room(struct incast_port *port, __s64 bytes)
{
	__sync_fetch_and_sub(&port->room, bytes);
}

/* Room (incast.h): a port may be granted its share of a volley at once, and more only as its share
 * of the line has time for it, headers apart. What is not outstanding needs no room any more. */
static __always_inline void incast_make_room(const struct uplink *u, struct incast_port *port,
					     __u64 now)
{
	__u64 since = port->room_ns, elapsed = since_ns(now, since), bytes;
	__s64 before = port->room, room, most = incast_volley_share(u, port), least = most;

	if (elapsed && !__sync_bool_compare_and_swap(&port->room_ns, since, now))
		return;
	if (elapsed > NSEC_PER_SEC)
		elapsed = NSEC_PER_SEC;
	bytes = (elapsed * (u->rate - (u->rate >> 4))) >> INCAST_TICK_BITS;
	room = before + (__s64)(bytes / incast_ports(u, port));
	least -= greater(port->own.outstanding, 0);
	__sync_fetch_and_add(&port->room, lesser(greater(room, least), most) - before);
}

/* Ends slots, epochs and censuses that are over; the first CPU to come after the end does it. A
 * slot is 2T: its first half measures BW_T and sets the quota. */
static __always_inline void incast_advance_time(struct uplink *u, struct incast_port *port,
						__u64 now)
{
	__u64 slot = u->slot_ns, t = u->t_ns > INCAST_MIN_SLOT_NS ? u->t_ns : INCAST_MIN_SLOT_NS;
	__u64 elapsed = since_ns(now, slot), census_ns = incast_census_ns(u), bytes, weight;

	if (elapsed >= t && !u->is_granting) {
		u->is_granting = 1;
		bytes = u->bytes - u->slot_bytes;
		if (elapsed > INCAST_LONGEST_SLOTS * t)
			elapsed = INCAST_LONGEST_SLOTS * t;
		u->total = (bytes << INCAST_TICK_BITS) / elapsed;
		u->quota = INCAST_ALPHA(u->rate) > u->total ? INCAST_ALPHA(u->rate) - u->total : 0;
	}
	if (elapsed >= 2 * t && __sync_bool_compare_and_swap(&u->slot_ns, slot, now)) {
		u->slot_bytes = u->bytes;
		u->is_granting = 0;
		incast_note_drain(u);
		weight = u->weight;
		if (weight) {
			__u64 rtt = u->weighted_rtt / weight;

			u->t_ns = rtt < census_ns ? rtt : census_ns;
			u->weighted_rtt = u->weight = 0;
		}
	}
	incast_note_credit(u);
	incast_end_epochs(&u->all, now >> INCAST_EPOCH_BITS);
	incast_end_epochs(&port->own, u->all.epoch);
	slot = u->census_ns;
	if (since_ns(now, slot) >= census_ns &&
	    __sync_bool_compare_and_swap(&u->census_ns, slot, now)) {
		u->receiving = u->receiving_now;
		u->receiving_now = 0;
		u->wanting = u->wanting_now;
		u->wanting_now = 0;
		u->flows = u->flows_now;
		u->flows_now = 0;
		u->census++;
	}
	incast_end_census(u, port);
	incast_make_room(u, port, now);
}

#endif
