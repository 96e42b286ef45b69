/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flow records come and go: the tables' side of flow/setup.h.
 */
#ifndef VSNOOP_BPF_SETUP_H
#define VSNOOP_BPF_SETUP_H

#include "hold.h"
#include "incast_flows.h"

/* Do the operator's lists let this flow be accelerated?  A port rule applies
 * to either end's port, a prefix rule to the sender's address. */
static __always_inline bool is_listed_out(const struct flow_key *key)
{
	__u32 *rule, port_number;

	if (policy.lists & LIST_PORTS) {
		port_number = bpf_ntohs(key->vm_port);
		rule = bpf_map_lookup_elem(&port_list, &port_number);
		if (!rule) {
			port_number = bpf_ntohs(key->sender_port);
			rule = bpf_map_lookup_elem(&port_list, &port_number);
		}
		if (rule ? !*rule : !!(policy.lists & LIST_PORTS_ALLOW))
			return true;
	}
	if (policy.lists & LIST_PREFIXES) {
		struct prefix prefix = { .bits = 128 };

		copy_address(prefix.addr, key->sender_addr);
		rule = bpf_map_lookup_elem(&prefix_list, &prefix);
		if (rule ? !*rule : !!(policy.lists & LIST_PREFIXES_ALLOW))
			return true;
	}
	return false;
}

static __always_inline bool insert_flow(const struct flow_key *key, struct flow *f,
					struct port_stats *st)
{
	if (f->mode != FLOW_BYPASS && is_listed_out(key)) {
		f->mode = FLOW_BYPASS;
		f->flags |= FLOW_F_DENIED;
	}
	if (incast_began_beside(key))
		incast_note_way(f, false);
	if (bpf_map_update_elem(&flows, key, f, BPF_NOEXIST)) {
		st->flows_refused++;
		return false;
	}
	st->flows_created++;
	if (f->mode == FLOW_BYPASS)
		st->bypassed++;
	return true;
}

/* The sender's MAC address (or its router's), for resets that no packet
 * triggers. */
static __always_inline void remember_sender(struct __sk_buff *skb, struct flow *f, bool to_vm)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (data + 12 > end)
		return;
	__builtin_memcpy(f->sender_mac, to_vm ? data + 6 : data, 6);
}

/* A segment of the sender without a flow: it may complete a handshake. True:
 * there is a flow now. */
static __noinline bool flow_for_sender(struct __sk_buff *skb, const struct flow_key *key,
					    const struct segment *s, struct port_stats *st)
{
	struct embryo *e = bpf_map_lookup_elem(&embryos, key);
	struct flow f = {};

	if (!e)
		return false;
	if ((s->tcp_flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK)) {
		embryo_answered(e, s);
		return false;
	}
	if (!flow_accepted(&f, e, s, bpf_ktime_get_ns()))
		return false;
	remember_sender(skb, &f, true);
	bpf_map_delete_elem(&embryos, key);
	return insert_flow(key, &f, st);
}

/* A segment of the VM without a flow. */
static __noinline bool flow_for_vm(struct __sk_buff *skb, const struct flow_key *key,
					const struct segment *s, struct port_stats *st)
{
	struct embryo *e = bpf_map_lookup_elem(&embryos, key);
	__u64 now = bpf_ktime_get_ns();
	struct flow f = {};

	if (e && flow_opened(&f, e, s, now))
		bpf_map_delete_elem(&embryos, key);
	else if (flow_mid_flow(&f, s, now))
		st->flows_mid_flow++;
	else
		return false;
	remember_sender(skb, &f, false);
	return insert_flow(key, &f, st);
}

/* SYN or SYN-ACK of the VM.  Returns the window that the sender is to be shown. */
static __noinline __u32 syn_of_vm(const struct flow_key *key, const struct segment *s)
{
	struct flow *f = bpf_map_lookup_elem(&flows, key);
	struct embryo fresh = {}, *e;
	bool own = false;

	if (f) {
		__u32 number = f->hold;
		struct hold *h = hold_number(number);

		bpf_spin_lock(&f->lock);
		own = flow_is_own_syn(f, s);
		/* What is held is of the old stream. */
		if (!own && h && f->hold == number)
			h->flags |= HOLD_OVER;
		if (config.incast && !own && f->incast.shaped)
			incast_end(f, &uplink, &port.incast);
		bpf_spin_unlock(&f->lock);
		if (own)
			return s->window;
		bpf_map_delete_elem(&flows, key);
	}
	e = bpf_map_lookup_elem(&embryos, key);
	if (e && embryo_is_repeated(e, s))
		return s->window;
	embryo_from_vm(&fresh, s);
	if (config.incast && incast_is_on(&uplink) && !(fresh.flags & FLOW_F_FOREIGN) &&
	    !incast_began_beside(key)) {
		__u32 first = incast_first_window(&uplink, &port.incast,
						  INCAST_LEAST_MSS);

		if (fresh.shown > first)
			fresh.shown = first;
	}
	bpf_map_update_elem(&embryos, key, &fresh, BPF_ANY);
	return fresh.shown;
}

#endif
