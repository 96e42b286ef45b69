/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The parts of a flow's state that both directions use: going offline and online, the highest byte
 * handed to the VM, the timed byte, and the VM's promptness.
 *
 * A flow is "caught up" when NEXT_SEQ is the highest byte handed over. Only then may an in-order
 * segment be acknowledged early; every offline mode ends when the VM's own ACK has caught up.
 */
#ifndef VSNOOP_FLOW_STATE_H
#define VSNOOP_FLOW_STATE_H

#include "far_end.h"
#include "types.h"
#include "window.h"

#define NSEC_PER_MSEC 1000000ull
#define NSEC_PER_SEC 1000000000ull

/* A VM that leaves two segments unanswered for longer than this is late. */
#define FLOW_PROMPT_NS NSEC_PER_MSEC
/* Promptness is judged over this long: more than a time slice of the usual
 * schedulers (3 VMs x 30 ms; a quota's 100 ms period). */
#define FLOW_PROMPT_RUN_NS (250 * NSEC_PER_MSEC)
/* A prompt VM is late for less than 1/FLOW_LATE_SHARE of the time: a saturated host now and then
 * delays even a VM with a core to itself by a few ms. */
#define FLOW_LATE_SHARE 3
/* A VM whose ACK is late by more than this was descheduled, and is not prompt. */
#define FLOW_DESCHEDULED_NS (8 * NSEC_PER_MSEC)
/* last_ns may be up to this old. */
#define FLOW_TOUCH_NS (64 * NSEC_PER_MSEC)
/* The hooks time a byte of a passive flow this often at most. */
#define FLOW_TIMED_NS (4 * NSEC_PER_MSEC)
/* Segments that are acknowledged one by one from the start of a flow, and
 * again after a loss, before the flow may be passive. */
#define FLOW_RAMP 16
#define FLOW_RAMP_MOST 128
/* Bytes beyond VM_SEQ that are believable while the scale is unknown:
 * the largest window there is (RFC 7323, section 2.3). */
#define FLOW_MAX_WINDOW (1u << 30)
/* Ticks that a TSecr of the VM may be ahead of the record; a minute of microseconds. */
#define FLOW_MAX_TS_STEP (1u << 26)
/* A VM takes back what it has acknowledged if its ACK is below VM_SEQ in this number of segments in
 * a row. */
#define FLOW_OLD_ACKS 3
/* Failures of connections of a VM port within this time are counted together. */
#define FLOW_FAILURES_NS (60 * NSEC_PER_SEC)
/* After this number of failures new connections of the port go to BYPASS ... */
#define FLOW_FAILURES 2
/* ... for this time. */
#define FLOW_LEFT_ALONE_NS (300 * NSEC_PER_SEC)
/* New connections of a port whose listener takes no data go to BYPASS for this time: its
 * application is busy for a moment. */
#define FLOW_NOT_TAKEN_NS (10 * NSEC_PER_SEC)

/* Nanoseconds from `then` to `now`; 0 where another CPU read the clock later. */
static __always_inline __u64 since_ns(__u64 now, __u64 then)
{
	return now > then ? now - then : 0;
}

/* Notes the time of a packet. Expiry counts in seconds, so last_ns is written only every
 * FLOW_TOUCH_NS: both directions read its cache line. */
static __always_inline void flow_touch(struct flow *f, __u64 now)
{
	if (since_ns(now, f->last_ns) > FLOW_TOUCH_NS)
		f->last_ns = now;
}

/* Time in units of 2^20 ns (1.05 ms); differences wrap after 52 days. */
static __always_inline __u32 flow_stamp(__u64 now)
{
	return now >> 20;
}

/* Has the VM sent nothing for silence_ms, or takes it back what it has acknowledged? Then the host
 * sends no early ACKs for it, and answers nothing in its place. `h`: the flow's hold, or null. */
static __always_inline bool flow_vm_is_silent(const struct flow *f, const struct hold *h,
					      const struct policy *p, __u64 now)
{
	__s32 stamps = flow_stamp(now) - f->heard_at;

	if (h && h->old_acks >= FLOW_OLD_ACKS)
		return true;
	return stamps > 0 && ((__u64)stamps << 20) > p->silence_ms * NSEC_PER_MSEC;
}

/* 16-bit hash of a key. A caller that has locked a record compares it with flow.key_hash. */
static __always_inline __u16 flow_key_hash(const struct flow_key *key)
{
	const __u16 *from = (const void *)&key->sender_addr[12],
		    *to = (const void *)&key->vm_addr[12];

	return key->sender_port ^ key->vm_port * 31 ^ from[0] ^ from[1] * 7 ^ to[0] ^ to[1] * 3 ^
	       key->vlan_outer ^ key->vlan_inner * 5;
}

/* Fills in next hop, TTL, traffic class and flow label for a packet that the host sends for the VM,
 * as in the VM's own packets. */
static __always_inline void flow_fill_route(const struct flow *f, struct ack_fields *ack)
{
	ack->traffic = f->traffic;
	ack->ttl = f->ttl;
	copy_mac(ack->next_hop, f->next_hop);
}

static __always_inline void flow_clear(struct flow *f, __u16 flags)
{
	if (f->flags & flags)
		f->flags &= ~flags;
}

static __always_inline bool flow_is_bypassed(const struct flow *f)
{
	return f->mode == FLOW_BYPASS;
}

/* Bytes that the host has acknowledged early and the VM has not. */
static __always_inline __u32 flow_outstanding(const struct flow *f)
{
	__s32 bytes = seq_diff(f->next_seq, f->vm_seq);

	return bytes > 0 ? bytes : 0;
}

/* Both ends have sent FIN, and all is acknowledged: a pure ACK may then remove the record. */
static __always_inline bool flow_is_finished(const struct flow *f)
{
	const __u16 both = FLOW_F_FIN_VM | FLOW_F_FIN_SENDER;

	return (f->flags & both) == both && seq_eq(f->snd_una, f->snd_nxt) &&
	       seq_eq(f->vm_seq, f->high_seq) && f->mode != FLOW_HOLDING && !flow_outstanding(f);
}

static __always_inline bool flow_caught_up(const struct flow *f)
{
	return seq_eq(f->next_seq, f->high_seq);
}

static __always_inline void flow_offline(struct flow *f, __u8 mode, __u32 event,
					 struct outcome *out)
{
	if (f->mode == FLOW_BYPASS || f->mode == FLOW_RESET)
		return;
	if (f->mode == FLOW_ACTIVE || f->mode == FLOW_PASSIVE) {
		if (event) {
			f->offline += f->offline != 0xffff;
			out->events |= event;
		}
		f->mode = mode;
	}
	f->ramp = 0;
}

static __always_inline void flow_bypass(struct flow *f, __u16 why, struct outcome *out)
{
	f->flags |= why;
	if (f->mode == FLOW_BYPASS || f->mode == FLOW_RESET)
		return;
	f->mode = FLOW_BYPASS;
	out->events |= EVENT_BYPASS;
}

/* The connection was reset by an end. */
static __always_inline void flow_closed(struct flow *f)
{
	f->flags |= FLOW_F_CLOSED;
	if (f->mode != FLOW_RESET)
		f->mode = FLOW_BYPASS;
}

/* Is this TSecr of the VM later than a known TSval of the sender, and near enough to be one? A VM
 * that echoes what no sender sent harms only its own connection. */
static __always_inline bool ts_is_later(__u32 tsecr, __u32 tsval)
{
	__u32 ahead = tsecr - tsval;

	return ahead > 0 && ahead < FLOW_MAX_TS_STEP;
}

/* Raises ts_recent. A receiver records the TSval of a segment at its left edge, of an old segment
 * too (RFC 7323, section 4.3), and drops later segments with a lower one. The host does not know
 * which segment in the ring will lie at the left edge, so it assumes that any may. */
static __always_inline void flow_note_timestamp(struct flow *f, const struct segment *s)
{
	if (s->bits & SEG_TIMESTAMPS && (__s32)(s->tsval - f->ts_recent) > 0) {
		f->ts_recent = s->tsval;
		f->ts_seq = f->high_seq;
	}
}

/* Times the VM's ACK of the byte before `end`, which was handed over at `handed_ns`, unless another
 * one is timed. */
static __always_inline void flow_time_ack(struct flow *f, struct seq end, bool early,
					  __u64 handed_ns)
{
	if (f->sample)
		return;
	f->sample = early ? FLOW_SAMPLE_EARLY : FLOW_SAMPLE_PASSED;
	f->sample_seq = end;
	f->sample_ns = handed_ns;
}

/* Bytes up to `end` are on their way to the VM. */
static __always_inline void flow_handed_over(struct flow *f, struct seq end, bool early, __u64 now)
{
	if (f->flags & FLOW_F_SCALE_KNOWN)
		end = seq_min(end, seq_max(seq_max(f->right_edge, f->adv_edge), f->high_seq));
	else if (seq_diff(end, f->vm_seq) > (__s32)FLOW_MAX_WINDOW)
		return;
	if (seq_le(end, f->high_seq))
		return;
	if (seq_le(f->high_seq, f->vm_seq))
		f->progress_ns = now;
	f->high_seq = end;
	flow_time_ack(f, end, early, now);
}

/* The VM is late when a backlog of two full segments has stood still for 1 ms: no receiver may
 * leave two unanswered (RFC 9293, section 3.8.6.3). */
static __always_inline bool flow_is_late(const struct flow *f, __u64 now)
{
	return seq_diff(f->high_seq, f->vm_seq) >= 2 * (__s32)f->mss &&
	       since_ns(now, f->progress_ns) > FLOW_PROMPT_NS;
}

static __always_inline void flow_saw_late(const struct flow *f, struct outcome *out)
{
	out->events |= EVENT_LATE;
	out->late_since_ns = f->progress_ns;
}

/* Updates the port's promptness from a decision's outcome. A port's flows are late at the same
 * time; time that one flow has counted is not counted again. */
static __always_inline void port_learn(struct port_state *port, const struct outcome *out,
				       __u64 now)
{
	__u64 since = out->late_since_ns, run = since_ns(now, port->run_ns);

	if (!(out->events & (EVENT_LATE | EVENT_PROMPT)))
		return;
	if (out->events & EVENT_LATE) {
		port->late_in_run_ns +=
			since_ns(now, since > port->late_ns ? since : port->late_ns);
		port->late_ns = now;
		if (since_ns(now, since) > FLOW_DESCHEDULED_NS) {
			port->prompt_until_ns = 0;
			port->late_in_run_ns = 0;
			port->run_ns = now;
			return;
		}
	}
	if (run < FLOW_PROMPT_RUN_NS)
		return;
	/* A run with a long gap in observations proves nothing. */
	if (run < 2 * FLOW_PROMPT_RUN_NS && port->late_in_run_ns < run / FLOW_LATE_SHARE)
		port->prompt_until_ns = now + 2 * FLOW_PROMPT_RUN_NS;
	port->late_in_run_ns = 0;
	port->run_ns = now;
}

static __always_inline bool port_is_prompt(const struct port_state *port, __u64 now)
{
	return now < port->prompt_until_ns;
}

/* Counts a failed connection of a VM port, for a reason that is the host's own. */
static __always_inline void failures_note(struct failures *v, __u64 now)
{
	if (!v->count || since_ns(now, v->since_ns) > FLOW_FAILURES_NS) {
		v->count = 0;
		v->since_ns = now;
	}
	v->total++;
	if (++v->count >= FLOW_FAILURES)
		v->until_ns = now + FLOW_LEFT_ALONE_NS;
}

/* The listener of this VM port takes no data at the moment. */
static __always_inline void failures_not_taken(struct failures *v, __u64 now)
{
	if (v->until_ns < now + FLOW_NOT_TAKEN_NS)
		v->until_ns = now + FLOW_NOT_TAKEN_NS;
}

static __always_inline bool failures_stand(const struct failures *v, __u64 now)
{
	return now < v->until_ns;
}

#endif
