/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Grant queue (incast.h): flows with closed windows wait for credit, first come, first served.
 */
#ifndef VSNOOP_FLOW_INCAST_QUEUE_H
#define VSNOOP_FLOW_INCAST_QUEUE_H

#include "incast_window.h"

/* Trains: where windows only open and close, a flow from the grant queue is granted several
 * segments if its answer is expected to be long enough (as long as the last one), since many small
 * grants cost sender, host and VM more than few large ones. What an answer does not use of its
 * train stays open until the next request, when all answer at the same time: so a train is at most
 * half of what remains of half the share after the credit of silent flows. And it is so short that
 * all flows of the queue have their turn within some 17 ms, long before their senders would probe,
 * unless minimum windows alone take longer. */
#define INCAST_TRAIN_MSS 12u
#define INCAST_TRAIN_PART 2u
#define INCAST_TRAIN_EPOCHS 16u

/* More than any port has outstanding, bytes. */
#define INCAST_ANY (1ll << 40)

/* The longest train now, bytes. */
static __always_inline __u32 incast_train(const struct uplink *u, const struct incast_port *port)
{
	__s64 room = incast_volley_share(u, port) / 2 - incast_silent(u, port);
	__u32 part = room > 0 ? (__u32)room / INCAST_TRAIN_PART : 0,
	      train = INCAST_TRAIN_MSS * INCAST_LEAST_MSS, cycle = INCAST_TRAIN_EPOCHS * u->rate;
	__s32 queued = u->all.queued;

	if (queued > 0 && cycle / queued < train)
		train = cycle / queued;
	return part < train ? part : train;
}

/* The train that this flow from the queue asks for, bytes; 0: none. */
static __always_inline __u32 incast_train_of(const struct flow *f, const struct uplink *u,
					     const struct incast_port *port)
{
	__u32 train, left;

	if (incast_share(u, port) >= INCAST_SLIDES * incast_mss(f))
		return 0;
	train = incast_train(u, port);
	left = incast_answer_left(f);
	return train < left ? train : left;
}

/* Credit for which the queue waits, while some of the port's is outstanding and will return, bytes:
 * half of what the last flow from it asked for, or its first: a trickle of credit would make single
 * segments of all trains. Less than what one port may have ahead of others (incast_left()). */
static __always_inline __u32 incast_train_awaited(const struct uplink *u,
						  const struct incast_port *port)
{
	__u32 half = port->own.train / 2, most = u->buffer >> 4;

	return half < most ? half : most;
}

/* The VM sends a request: what came since the last one was an answer. */
static __always_inline void incast_note_request(struct incast *i)
{
	__u16 at = incast_answered(i), answer = at - i->answer_at;
	__s16 longer = (__s16)(answer - i->answer);

	if (!answer)
		return;
	i->bits &= ~INCAST_VARIES;
	if (i->answer && (longer > 1 || longer < -1))
		i->bits |= INCAST_VARIES;
	i->answer = answer;
	i->answer_at = at;
}

static __always_inline void incast_leave_queue(struct flow *f, struct uplink *u,
					       struct incast_port *port)
{
	struct incast *i = &f->incast;

	if (i->waiting == INCAST_QUEUED) {
		__sync_fetch_and_sub(&u->all.queued, 1);
		__sync_fetch_and_sub(&port->own.queued, 1);
	}
	if (i->waiting == INCAST_FINISHED_ANSWERER)
		__sync_fetch_and_sub(&port->finished_answerers, 1);
	if (i->waiting == INCAST_FINISHED_OTHER)
		__sync_fetch_and_sub(&port->finished_others, 1);
	i->waiting = INCAST_NOT_WAITING;
}

/* Shaping of the flow ends, or its record is removed: returns its credit. */
static __always_inline void incast_end(struct flow *f, struct uplink *u, struct incast_port *port)
{
	struct incast *i = &f->incast;

	incast_add_outstanding(f, u, port, -incast_flow_outstanding(f));
	i->edge = i->received;
	incast_leave_queue(f, u, port);
	if (flow_is_shaped(f)) {
		__sync_fetch_and_sub(&u->all.open, 1);
		__sync_fetch_and_sub(&port->own.open, 1);
	}
	i->bits &= ~INCAST_SHAPED;
}

/* `vm`: the VM's segment; null: a segment of the sender with data. */
static __always_inline enum incast_why incast_reason(const struct flow *f, const struct segment *vm)
{
	if (!vm)
		return INCAST_DATA;
	if (vm->len)
		return INCAST_REQUEST;
	return f->flags & FLOW_F_REPLY_DUE ? INCAST_PROBED : INCAST_NO_REASON;
}

static __always_inline void incast_give(struct flow *f, struct uplink *u, struct incast_port *port,
					__u32 window)
{
	struct incast *i = &f->incast;
	struct seq edge = seq_add(i->received, window + incast_unit(f) - 1);

	i->bits &= ~INCAST_STILL;
	i->bits |= INCAST_GIVEN;
	if (incast_window(f) < (__s32)incast_mss(f))
		i->bits |= INCAST_STILL;
	i->before = f->adv_edge.v;
	incast_take_room(port, seq_diff(edge, i->edge));
	incast_move(f, u, port, i->received, edge);
	incast_leave_queue(f, u, port);
}

/* What a port may have outstanding before flows that have finished get a window for their next
 * data, bytes: all such flows may send at the same time. Those that only ever answer are left half
 * of a volley, because they answer the next requests at the same time as those that are granted it.
 * One that is known to send unasked is not kept waiting. */
static __always_inline __s64 incast_room_of_finished(const struct flow *f, const struct uplink *u,
						     const struct incast_port *port)
{
	__u32 volley = incast_volley_share(u, port);

	if (f->incast.bits & INCAST_SPEAKS || incast_pauses(f))
		return INCAST_ANY;
	return f->incast.bits & INCAST_ANSWERS ? volley / 2 : volley;
}

/* May a flow that has finished get a window? Only while the grant queue is empty. `room`: what the
 * port may have outstanding, bytes. */
static __always_inline bool incast_can_reopen(const struct uplink *u,
					      const struct incast_port *port, __s64 room)
{
	return port->own.queued <= 0 && incast_left(u, port, false) > 0 &&
	       incast_silent(u, port) + port->own.outstanding < room;
}

/* A finished flow waits, as an answerer or not; which of these may change while it does. Returns
 * what it waits for from now on, if it did not wait before. */
static __always_inline enum incast_waiting
incast_wait_finished(struct flow *f, struct incast_port *port, bool answers)
{
	struct incast *i = &f->incast;
	__u32 was = i->waiting, kind = answers ? INCAST_FINISHED_ANSWERER : INCAST_FINISHED_OTHER;

	if (was == INCAST_QUEUED || was == kind)
		return INCAST_NOT_WAITING;
	if (was)
		__sync_fetch_and_sub(answers ? &port->finished_others : &port->finished_answerers,
				     1);
	__sync_fetch_and_add(answers ? &port->finished_answerers : &port->finished_others, 1);
	i->waiting = kind;
	return was ? INCAST_NOT_WAITING : kind;
}

/* Opens the window of a flow whose sender has finished, if it may. Returns what the flow waits for
 * from now on, if it did not wait before. */
static __always_inline enum incast_waiting incast_open_finished(struct flow *f, struct uplink *u,
								struct incast_port *port)
{
	struct incast *i = &f->incast;
	bool answers = i->bits & INCAST_ANSWERS && !(i->bits & INCAST_SPEAKS) && !incast_pauses(f);

	if (incast_window(f) >= (__s32)incast_mss(f)) {
		incast_leave_queue(f, u, port);
	} else if (incast_can_reopen(u, port, incast_room_of_finished(f, u, port))) {
		incast_give(f, u, port, incast_finished_window(f, u, port));
	} else {
		return incast_wait_finished(f, port, answers);
	}
	return INCAST_NOT_WAITING;
}

/* Does the VM ask the sender for more: with a request, or by answering its probe? */
static __always_inline bool incast_vm_asks(enum incast_why why)
{
	return why == INCAST_REQUEST || why == INCAST_PROBED;
}

/* Updates the bits that say whether the sender has finished, and whether it answers or sends
 * unasked. After a request it sends what it has open. */
static __always_inline void incast_note_reason(struct flow *f, struct uplink *u,
					       struct incast_port *port, enum incast_why why)
{
	struct incast *i = &f->incast;

	if (i->bits & INCAST_FINISHED) {
		if (why == INCAST_REQUEST)
			i->bits |= INCAST_ANSWERS;
		if (why == INCAST_PROBED)
			i->bits |= INCAST_SPEAKS;
	}
	if (incast_vm_asks(why))
		i->bits &= ~INCAST_FINISHED;
	if (why == INCAST_REQUEST) {
		if (!(i->bits & INCAST_ASKED))
			incast_take_room(port, incast_flow_outstanding(f));
		i->bits |= INCAST_ASKED;
		incast_note_request(i);
		incast_count(i, u, port);
	}
}

/* Grants the flow a window of `want` bytes, or what there is credit for. `open`: its window now,
 * bytes. Returns whether it was granted more than it has.
 *
 * Silent flows may send next: half of a volley at most is kept for them. Data open a window only
 * where it slides (incast_open_live()), and then as they come: that needs no room. */
static __always_inline bool incast_grant(struct flow *f, struct uplink *u, struct incast_port *port,
					 enum incast_why why, __u32 want, __s32 open)
{
	bool is_train = why == INCAST_DEQUEUED && port->own.train;
	__s64 left = incast_left(u, port, is_train),
	      kept = incast_kept(u, port, incast_volley_share(u, port) / 2), spare;
	__u32 most = want;

	/* Fewer values live at a time: the frames of the stack are full. */
	opaque(kept);
	if (why != INCAST_DATA)
		left = lesser(left, port->room);
	spare = left - kept;
	if ((__s64)want - open > left || incast_has_much(u, port))
		incast_want(u, port);
	if (incast_vm_asks(why))
		left = spare;
	if ((__s64)want - open > spare)
		most = incast_whole(f, u, port, open + spare > 0 ? open + spare : 0);
	if (want > most)
		want = most;
	if ((__s32)want <= open)
		return false;
	/* The head of the queue gets at least a segment when any credit is left. */
	if (left < (__s64)want - open && (why != INCAST_DEQUEUED || left <= 0))
		return false;
	incast_give(f, u, port, want);
	return true;
}

/* A flow with a closed window gets nothing: it waits in the grant queue. */
static __always_inline enum incast_waiting incast_enqueue(struct flow *f, struct uplink *u,
							  struct incast_port *port)
{
	incast_leave_queue(f, u, port);
	/* An empty queue waits for the train of its first flow. */
	if (port->own.queued <= 0)
		port->own.train = incast_train_of(f, u, port);
	f->incast.waiting = INCAST_QUEUED;
	__sync_fetch_and_add(&u->all.queued, 1);
	__sync_fetch_and_add(&port->own.queued, 1);
	incast_want(u, port);
	return INCAST_QUEUED;
}

/* Opens the window of a flow whose sender has not finished. `want`: bytes that it asks for;
 * `least`: the minimum window. Returns as incast_open(). */
static __always_inline enum incast_waiting incast_open_live(struct flow *f, struct uplink *u,
							    struct incast_port *port,
							    enum incast_why why, __u32 want,
							    __u32 least)
{
	struct incast *i = &f->incast;
	__s32 open = incast_window(f);
	bool is_open = open >= (__s32)incast_mss(f);

	/* Rounding may have opened the window. */
	if (is_open)
		incast_leave_queue(f, u, port);
	if ((__s32)want <= open)
		return INCAST_NOT_WAITING;
	/* The sender has waited for a timeout: a window that stayed closed until then was a
	 * mistake. */
	if (why == INCAST_PROBED && (__s32)least > open) {
		incast_give(f, u, port, least);
		return INCAST_NOT_WAITING;
	}
	/* With a small share the window opens only after the sender has used all of it: the sender
	 * then sends the next grant as one train. */
	if (is_open && incast_share(u, port) < INCAST_SLIDES * incast_mss(f))
		return INCAST_NOT_WAITING;
	/* Data do not open a closed window: their ACK may be the VM's, and late. */
	if (why == INCAST_DEQUEUED || (port->own.queued <= 0 && (incast_vm_asks(why) || is_open))) {
		if (incast_grant(f, u, port, why, want, open))
			return INCAST_NOT_WAITING;
	}
	/* A new flow's first window is enough to show that there is an answer. */
	if (incast_vm_asks(why) && open >= (__s32)(INCAST_SMALLEST / 2) && !(i->bits & INCAST_WIDE))
		return INCAST_NOT_WAITING;
	if (is_open || i->waiting == INCAST_QUEUED)
		return INCAST_NOT_WAITING;
	return incast_enqueue(f, u, port);
}

/* An ACK is about to go to the sender: opens its window further, if it may. Returns what the flow
 * waits for from now on, if that is new: the grant queue, or the queue of finished flows. */
static __always_inline enum incast_waiting
incast_open(struct flow *f, struct uplink *u, struct incast_port *port, enum incast_why why)
{
	__u32 least = 0, want = 0;

	opaque(why);
	/* Costs several divisions. */
	if (why != INCAST_NO_REASON) {
		least = incast_least(f, u, port);
		want = incast_whole(f, u, port, f->incast.window);
		if (why == INCAST_DEQUEUED)
			port->own.train = incast_train_of(f, u, port);
		/* Fewer values live at a time: the frames of the stack are full. */
		opaque(want);
		if (why == INCAST_DEQUEUED && port->own.train)
			want = incast_whole(f, u, port, port->own.train);
		opaque(want);
		if (why == INCAST_DEQUEUED && f->incast.bits & INCAST_FINISHED && !incast_pauses(f))
			want = incast_finished_window(f, u, port);
	}
	opaque(least);
	opaque(want);
	if (!incast_shapes(f, u)) {
		if (flow_is_shaped(f))
			incast_end(f, u, port);
		return INCAST_NOT_WAITING;
	}
	if (!flow_is_shaped(f))
		incast_begin(f, u, port);
	if (why == INCAST_NO_REASON)
		return INCAST_NOT_WAITING;
	incast_note_rounding(f, u, port);
	incast_note_reason(f, u, port, why);
	if (why == INCAST_DATA && f->incast.bits & INCAST_FINISHED)
		return incast_open_finished(f, u, port);
	incast_touch(f, u, port);
	return incast_open_live(f, u, port, why, want, least);
}

/* Before the VM's segment `vm` passes: counts data that the VM acknowledges, and that were not
 * counted when they came, because the hooks did not expect the VM to accept them (their ACK was
 * older than SND.UNA, say). Otherwise their credit would stay outstanding, and a sender that has
 * used up its window so would wait for ever. Returns whether there were any. */
static __always_inline bool incast_catch_up(struct flow *f, struct uplink *u,
					    struct incast_port *port, const struct segment *vm)
{
	struct incast *i = &f->incast;
	struct seq most = seq_max(f->right_edge, seq_max(f->adv_edge, i->edge));

	if (!flow_is_shaped(f) || f->flags & FLOW_F_FIN_SENDER || !(vm->tcp_flags & TCP_ACK) ||
	    !seq_gt(vm->ack, i->received) || seq_gt(vm->ack, most))
		return false;
	incast_note_data(f);
	incast_move(f, u, port, vm->ack, seq_max(i->edge, vm->ack));
	return true;
}

/* incast_open() for the ACK of the VM's segment `vm`; null: because of the sender's data. */
static __always_inline enum incast_waiting incast_open_for(struct flow *f, struct uplink *u,
							   struct incast_port *port,
							   const struct segment *vm)
{
	enum incast_why why = incast_reason(f, vm);

	if (vm && incast_catch_up(f, u, port, vm) && why == INCAST_NO_REASON)
		why = INCAST_DATA;
	return incast_open(f, u, port, why);
}

/* Would incast_open_for() and incast_note_shown() change nothing for the ACK of the VM's segment
 * `vm`? So it is for most pure ACKs. May be called without the lock: what another CPU changes
 * meanwhile is found by the next ACK. */
static __always_inline bool incast_ignores(const struct flow *f, const struct uplink *u,
					   const struct segment *vm)
{
	const struct incast *i = &f->incast;

	if (!flow_is_shaped(f) || !incast_shapes(f, u) ||
	    incast_reason(f, vm) != INCAST_NO_REASON || seq_gt(vm->ack, i->received))
		return false;
	if (i->waiting)
		return !i->asked_at;
	return i->asked_at || !incast_may_measure(f, vm);
}

static __always_inline bool incast_has_waiting_flow(const struct incast_port *port)
{
	return port->own.queued > 0 || port->finished_answerers > 0 || port->finished_others > 0;
}

/* Which queue of this port is served next, if there is credit for its head, beside some of what
 * silent flows have open? Called before a flow is dequeued: a flow that is dequeued too early goes
 * to the tail, and could starve. With the uplink turned off all waiting flows are dequeued. */
static __always_inline enum incast_waiting incast_next(struct uplink *u, struct incast_port *port,
						       __u64 now)
{
	__s64 left, kept;

	if (!incast_is_on(u))
		return port->own.queued > 0	     ? INCAST_QUEUED :
		       incast_has_waiting_flow(port) ? INCAST_FINISHED_ANSWERER :
						       INCAST_NOT_WAITING;
	incast_advance_time(u, port, now);
	if (port->own.queued > 0) {
		incast_want(u, port);
		left = lesser(incast_left(u, port, port->own.train), port->room);
		/* Half of what is left at most, or the head could wait as long as others send. */
		kept = left > 0 ? incast_kept(u, port, left / 2) : 0;
		opaque(kept);
		left -= kept;
		if (port->own.outstanding > 0)
			left -= incast_train_awaited(u, port);
		return left > 0 ? INCAST_QUEUED : INCAST_NOT_WAITING;
	}
	if (incast_can_reopen(u, port,
			      port->finished_others > 0 ? INCAST_ANY :
							  incast_volley_share(u, port) / 2) &&
	    port->finished_answerers + port->finished_others > 0)
		return INCAST_FINISHED_ANSWERER;
	return INCAST_NOT_WAITING;
}

/* Does the sender not know its window yet, after a grant? */
static __always_inline bool incast_must_show(const struct flow *f)
{
	if (flow_is_bypassed(f) || f->mode == FLOW_RESET)
		return false;
	return !flow_is_shaped(f) || seq_lt(f->adv_edge, f->incast.edge);
}

/* Fills in the ACK that shows the sender its new window. Its window was closed, so data beyond it
 * can only answer this ACK: begins to measure a round trip. */
static __always_inline void incast_show(struct flow *f, struct hold *h,
					const struct port_state *port, const struct policy *p,
					__u64 now, struct ack_fields *ack)
{
	struct incast *i = &f->incast;

	i->asked = f->adv_edge.v;
	i->asked_at = incast_stamp(now);
	i->bits &= ~INCAST_BY_TSVAL;
	ack->seq = f->snd_nxt;
	ack->ack = seq_max(f->vm_seq, f->next_seq);
	ack->window = flow_advertise(f, h, ack->ack, port, p);
	ack->timestamps = !!(f->flags & FLOW_F_TIMESTAMPS);
	ack->tsval = f->vm_tsval;
	ack->tsecr = i->ts_recent;
	ack->sack = 0;
	flow_fill_route(f, ack);
	if (h)
		h->unanswered = 0;
}

/* Offers a grant to a flow that waits for `waits`. After SERVED_ACK its sender must be shown the
 * window (incast_show()). */
static __always_inline enum incast_served
incast_serve(struct flow *f, struct uplink *u, enum incast_waiting waits, struct incast_port *port)
{
	struct incast *i = &f->incast;

	if (!i->waiting || (i->waiting == INCAST_QUEUED) != (waits == INCAST_QUEUED))
		return SERVED_GONE;
	if (waits != INCAST_QUEUED && incast_shapes(f, u))
		incast_open_finished(f, u, port);
	else
		incast_open(f, u, port, INCAST_DEQUEUED);
	if (i->waiting)
		return SERVED_NOT_YET;
	if (flow_is_bypassed(f) || f->mode == FLOW_RESET)
		return SERVED_GONE;
	port->grants++;
	return SERVED_ACK;
}

#endif
