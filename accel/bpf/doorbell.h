/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Doorbell: how the hooks tell the engine of a hold, at once or at its next tick.
 */
#ifndef VSNOOP_BPF_DOORBELL_H
#define VSNOOP_BPF_DOORBELL_H

#include "hold_memory.h"

/* Wakes the engine for this hold. */
static __always_inline void ring_doorbell(const struct port *port, __u32 number)
{
	struct hold *h = hold_of(port, number);

	/* Forced, because by default the kernel wakes the reader only if it has read all earlier
	 * records. */
	if (h && __sync_lock_test_and_set(&h->woken, WOKEN_NOW) != WOKEN_NOW)
		ring(port, number, BPF_RB_FORCE_WAKEUP);
}

/* Marks that the engine was told this hold's number. Returns whether it had been told before, by
 * more than a note. */
static __always_inline bool mark_told(struct hold *h)
{
	/* An exchange is a full barrier even if it changes nothing. */
	__u32 woken = __sync_lock_test_and_set(&h->woken, WOKEN_LATER);

	return woken && woken != WOKEN_NOTED;
}

/* Leaves the number of this hold to an engine that reads the doorbell soon; wakes another. */
static __noinline long tell_engine(struct port *port, __u32 number)
{
	struct hold *h;

	if (!*(volatile __u32 *)&port->state.engine_looks) {
		ring_doorbell(port, number);
		return 0;
	}
	h = hold_of(port, number);
	if (!h || mark_told(h))
		return 0;
	ring(port, number, BPF_RB_NO_WAKEUP);
	/* A full barrier. The engine says that it looks no longer, and reads the doorbell after
	 * that. */
	if (!__sync_fetch_and_add(&port->state.engine_looks, 0))
		ring_doorbell(port, number);
	return 0;
}

/* Leaves the number of this hold to the engine, which reads it at its next tick at the latest: at
 * once if half of the doorbell is full, in which other records must find room. */
static __noinline long leave_note(struct port *port, __u32 number)
{
	struct hold *h = hold_of(port, number);
	void *bell = table(doorbell, port);
	__u64 flags = BPF_RB_NO_WAKEUP;

	if (!h || !bell || __sync_val_compare_and_swap(&h->woken, 0, WOKEN_NOTED))
		return 0;
	if (bpf_ringbuf_query(bell, BPF_RB_AVAIL_DATA) >= DOORBELL_BYTES / 2)
		flags = BPF_RB_FORCE_WAKEUP;
	bpf_ringbuf_output(bell, &number, sizeof(number), flags);
	return 0;
}

/* Four records of the doorbell with their headers, for an eighth of the holds of one slab. */
#define HOLD_ENDED_BYTES (4 * 16)

/* The flow of this hold has ended: leaves a record for the engine, which reclaims the hold. The
 * record does not wake the engine, which would take CPU time from the next connection's handshake:
 * its next tick reads it. More than HOLD_ENDED_BYTES of such records, or more than a chunk in the
 * hold, do wake it. */
static __always_inline void give_back(const struct port *port, __u32 number)
{
	struct hold *h = config.hold ? hold_of(port, number) : 0;
	void *bell = table(doorbell, port);
	__u64 flags = BPF_RB_FORCE_WAKEUP;

	if (!h || !bell)
		return;
	h->flags |= HOLD_OVER;
	if (mark_told(h))
		return;
	if (h->chunks <= 1 && bpf_ringbuf_query(bell, BPF_RB_AVAIL_DATA) < HOLD_ENDED_BYTES)
		flags = BPF_RB_NO_WAKEUP;
	bpf_ringbuf_output(bell, &number, sizeof(number), flags);
}

#endif
