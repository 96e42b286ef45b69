/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Creates and removes records in the port's tables, as flow/setup.h decides.
 */
#ifndef VSNOOP_BPF_RECORDS_H
#define VSNOOP_BPF_RECORDS_H

#include "doorbell.h"
#include "incast_flows.h"

/* Do the operator's lists exclude this flow from acceleration? A port rule applies to either end's
 * port, a prefix rule to the sender's address. */
static __always_inline bool is_listed_out(const struct port *port, const struct flow_key *key)
{
	__u32 *rule, port_number;

	if (config.lists & LIST_PORTS) {
		port_number = bpf_ntohs(key->vm_port);
		rule = find(table(port_list, port), &port_number);
		if (!rule) {
			port_number = bpf_ntohs(key->sender_port);
			rule = find(table(port_list, port), &port_number);
		}
		if (rule ? !*rule : !!(config.lists & LIST_PORTS_ALLOW))
			return true;
	}
	if (config.lists & LIST_PREFIXES) {
		struct prefix prefix = { .bits = 128 };

		copy_address(prefix.addr, key->sender_addr);
		rule = find(table(prefix_list, port), &prefix);
		if (rule ? !*rule : !!(config.lists & LIST_PREFIXES_ALLOW))
			return true;
	}
	return false;
}

/* Did connections of this VM port fail lately, for a reason of the host's own? */
static __always_inline bool has_failed(const struct port *port, const struct flow_key *key)
{
	__u32 port_number = bpf_ntohs(key->vm_port);
	struct failures *v = find(table(failures, port), &port_number);

	return v && failures_stand(v, bpf_ktime_get_ns());
}

static __always_inline bool insert_flow(const struct port *port, const struct flow_key *key,
					struct flow *f, struct port_stats *st)
{
	f->key_hash = flow_key_hash(key);
	if (f->mode != FLOW_BYPASS && is_listed_out(port, key)) {
		f->mode = FLOW_BYPASS;
		f->flags |= FLOW_F_DENIED;
	}
	if (config.hold && f->mode != FLOW_BYPASS && has_failed(port, key)) {
		f->mode = FLOW_BYPASS;
		f->flags |= FLOW_F_FAILED;
		st->bypassed_after_failures++;
	}
	if (flow_is_forwarded(f))
		f->far |= FAR_COUNTED;
	if (incast_began_beside(port, key))
		incast_note_ingress(f, false);
	if (store(table(flows, port), key, f, BPF_NOEXIST)) {
		st->flows_refused++;
		return false;
	}
	st->flows_created++;
	if (f->mode == FLOW_BYPASS)
		st->bypassed++;
	if (flow_is_forwarded(f))
		st->forwarded++;
	return true;
}

/* Counts a round trip: the other end has answered the VM's SYN or SYN-ACK. */
static __always_inline void note_round_trip(const struct port *port, const struct flow_key *key,
					    const struct embryo *e, struct port_stats *st,
					    __u64 now)
{
	__u64 rtt = since_ns(now, e->sent_ns);

	if (!e->sent_ns)
		return;
	st->round_trip_ns[histogram_bucket(rtt)]++;
	if (INCAST_USED && incast_is_on(&uplink) && !incast_began_beside(port, key))
		incast_note_handshake(&uplink, rtt);
}

/* A segment of the sender without a flow: it may complete a handshake. Returns whether there is a
 * flow now. */
__noinline int flow_for_sender(struct port *port, const struct flow_key *key,
			       const struct segment *s, struct port_stats *st)
{
	struct flow f = {};
	struct embryo *e;
	__u64 now;

	if (!port || !key || !s || !st)
		return false;
	e = embryo_of(port, key);
	if (!e)
		return false;
	now = bpf_ktime_get_ns();
	if ((s->tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK)) {
		if (embryo_answered(e, s)) {
			note_round_trip(port, key, e, st, now);
			e->sent_ns = 0;
		}
		return false;
	}
	if (!flow_accepted(&f, e, s, now))
		return false;
	note_round_trip(port, key, e, st, now);
	forget(table(embryos, port), key);
	return insert_flow(port, key, &f, st);
}

/* A segment of the VM without a flow. Returns whether there is a flow now. */
__noinline int flow_for_vm(struct port *port, const struct flow_key *key, const struct segment *s,
			   struct port_stats *st)
{
	__u64 now = bpf_ktime_get_ns();
	struct flow f = {};
	struct embryo *e;

	if (!port || !key || !s || !st)
		return false;
	e = embryo_of(port, key);
	if (!e || !flow_opened(&f, e, s, now)) {
		if (!flow_mid_flow(&f, s, now))
			return false;
		st->flows_mid_flow++;
	}
	/* An embryo that the hooks did not see answered is of this connection, too: a late SYN-ACK
	 * must not take it for another one. */
	if (e)
		forget(table(embryos, port), key);
	return insert_flow(port, key, &f, st);
}

/* Ends the record of a connection in whose place there is another. Returns false, and changes
 * nothing, if the record is not the one of the look-up any more: it has become another flow's,
 * another CPU has ended it, or it has another hold than `number`. `bytes`: how many the host may
 * have acknowledged that the VM has not; then how many these were. The hash becomes that of no key,
 * as in incast_flow_ends(). */
static __always_inline bool end_flow(struct port *port, const struct flow_key *key, struct flow *f,
				     __u32 number, __u32 *bytes)
{
	__u16 key_hash = flow_key_hash(key);
	__u32 outstanding;
	bool is_there;

	bpf_spin_lock(&f->lock);
	outstanding = flow_outstanding(f);
	is_there = f->key_hash == key_hash && f->hold == number && outstanding <= *bytes;
	if (is_there) {
		if (flow_is_shaped(f))
			incast_end(f, &uplink, &port->state.incast);
		f->key_hash = ~key_hash;
	}
	bpf_spin_unlock(&f->lock);
	if (!is_there)
		return false;
	*bytes = outstanding;
	forget(table(flows, port), key);
	/* The held bytes belong to the old stream. */
	give_back(port, number);
	return true;
}

/* A segment that the record does not expect: removes the record, and returns true, if it confirms
 * a connection that the VM's SYN or SYN-ACK has begun since. */
__noinline int flow_is_replaced(struct port *port, const struct flow_key *key,
				const struct segment *s, bool of_vm)
{
	__u32 number, bytes = of_vm ? 0 : ~0u;
	struct port_stats *st;
	struct embryo *e;
	struct flow *f;

	if (!port || !key || !s)
		return false;
	f = flow_of(port, key);
	if (!f)
		return false;
	number = f->hold;
	/* After the record: a CPU that puts another one in its place forgets the embryo first. */
	e = embryo_of(port, key);
	if (!e)
		return false;
	if (!(of_vm ? embryo_is_confirmed_by_vm(e, f, s) : embryo_is_confirmed_by_sender(e, s)))
		return false;
	if (!end_flow(port, key, f, number, &bytes))
		return false;
	if (bytes) {
		st = stats_of(port);
		if (st)
			st->replaced++;
	}
	return true;
}

/* A SYN or SYN-ACK of the VM. Returns the window field that the sender is to be shown. */
__noinline int syn_of_vm(struct port *port, const struct flow_key *key, const struct segment *s)
{
	__u64 now = bpf_ktime_get_ns();
	struct embryo fresh = {}, *e;
	struct flow *f;

	if (!port || !key || !s)
		return 0;
	if (config.hold)
		want_first_slabs(port);
	f = flow_of(port, key);
	if (f) {
		bool own = false, is_over = false, is_not_taken = false;
		__u32 number = 0, bytes = ~0u;
		__u16 key_hash = flow_key_hash(key);

		bpf_spin_lock(&f->lock);
		if (f->key_hash == key_hash) {
			own = flow_is_own_syn(f, s);
			is_not_taken = own && flow_repeats_syn(f, now);
			is_over = flow_is_over(f);
			number = f->hold;
		}
		bpf_spin_unlock(&f->lock);
		if (is_not_taken)
			note_failure(port, key, false);
		if (own)
			return s->window;
		if (is_over)
			end_flow(port, key, f, number, &bytes);
	}
	e = embryo_of(port, key);
	if (e && embryo_is_repeated(e, s))
		return s->window;
	embryo_from_vm(&fresh, s);
	if (e)
		embryo_joins(&fresh, e);
	if (!e || !seq_eq(e->vm_iss, fresh.vm_iss))
		fresh.sent_ns = now;
	if (INCAST_USED && incast_is_on(&uplink) && !(fresh.flags & FLOW_F_FOREIGN) &&
	    fresh.scale <= INCAST_SCALE && !incast_began_beside(port, key)) {
		__u32 first;

		incast_tick(port);
		first = incast_first_window(&uplink, &port->state.incast, s->tcp_flags & TCP_ACK);
		if (fresh.shown > first)
			fresh.shown = first;
	}
	store(table(embryos, port), key, &fresh, BPF_ANY);
	return fresh.shown;
}

#endif
