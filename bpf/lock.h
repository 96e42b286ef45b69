/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The lock of a flow's record: a word that is 1 while a CPU changes the record.
 *
 * bpf_spin_lock() calls two helpers and disables interrupts, which costs more than all that is done
 * under the lock. The hooks need neither: they run with bottom halves disabled, so that nothing on
 * the same CPU wants the lock of a record that is being changed. User space reads a record until
 * two readings are equal.
 *
 * As under bpf_spin_lock(), no helper is called under the lock: it is held for some 20 ns.
 */
#ifndef VSNOOP_BPF_LOCK_H
#define VSNOOP_BPF_LOCK_H

#include "kernel.h"
#include "flow.h"

/* vsnoop-world defines these: there another CPU acts where a lock is taken, and a helper that is
 * called under a lock is an error. */
#ifndef BEFORE_LOCK
#define BEFORE_LOCK()
#define AFTER_UNLOCK()
#endif

/* Bound of the wait for another CPU, in tries of some 10 ns each. A CPU that the hypervisor stops
 * under the lock comes back sooner. */
#define LOCK_TRIES (1 << 23)

struct lock_wait {
	struct flow *f;
	bool taken;
};

static __always_inline bool try_lock(struct flow *f)
{
	return !__sync_val_compare_and_swap(&f->lock, 0, 1);
}

static long lock_again(__u32 i, struct lock_wait *w)
{
	w->taken = try_lock(w->f);
	return w->taken;
}

static __noinline bool wait_for_lock(struct flow *f)
{
	struct lock_wait wait = { .f = f };

	bpf_loop(LOCK_TRIES, lock_again, &wait, 0);
	return wait.taken;
}

/* Locks a record. False: another CPU has it for too long, and the caller does as if there were no
 * record. */
static __always_inline bool lock_flow(struct flow *f)
{
	BEFORE_LOCK();
	return try_lock(f) || wait_for_lock(f);
}

static __always_inline void unlock_flow(struct flow *f)
{
	/* An exchange: a store could become visible before what was written under the lock. */
	__sync_lock_test_and_set(&f->lock, 0);
	AFTER_UNLOCK();
}

#endif
