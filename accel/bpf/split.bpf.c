// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Split connections (flow/split.h): the programs that send the segments of both ends to sockets of
 * the host, and the sockets' segments to both ends.
 *
 *   VM -> tap: split_from_vm ----+                  +-> peer's side, as if the VM had sent it
 *                                +-> veth, sockets -+   (split_from_socket: tap ingress)
 *   peer -> tap: split_to_vm ----+                  +-> the VM, as if the peer had (tap egress)
 *
 * They run before the port's other programs (vsnoop.bpf.c), which never see what is split. Sockets
 * are in a network namespace of their own, behind a veth pair; a packet that comes from there and
 * belongs to no split connection is dropped, so that this namespace answers nothing by itself.
 *
 * The segments keep SEQ, ACK, window and options of the sockets, which have the connection's own
 * numbers. From the ends come MAC addresses, TTL, traffic class, flow label, and TSval: a socket's
 * clock is its own, and after the join the ends would refuse older timestamps (PAWS). So the
 * sockets' TSval does not come back to them, and their TSecr is 0, which the kernel does not read.
 */
#define VSNOOP_BPF
#include "checksum.h"
#include "marks.h"
#include "split_change.h"
#include "split_copy.h"
#include "split_unread.h"
#include "tcp_header.h"

char _license[] SEC("license") = "Dual BSD/GPL";

/* Replaces a word of the TCP header. */
static __always_inline int replace_tcp_word(struct __sk_buff *skb, const struct packet *p, __u32 at,
					    __u32 value)
{
	__be32 old, new = bpf_htonl(value);

	if (bpf_skb_load_bytes(skb, p->l4 + at, &old, sizeof(old)))
		return -1;
	return replace_in_tcp(skb, p, at, &old, &new, sizeof(new));
}

/* TSecr of a segment of the peer, for the socket. */
static __always_inline __u32 first_tsecr(struct split_flow *f, const struct segment *s)
{
	__u32 tsecr = f->first_tsecr;
	bool is_lossy = s->bits & SEG_SACK;

	if (!tsecr || (!is_lossy && seq_le(s->ack, f->first_ack)))
		return 0;
	f->first_tsecr = 0;
	if (is_lossy || seq_gt(s->ack, f->first_end) || f->last_ns > f->first_until_ns)
		return 0;
	return tsecr;
}

/* Is it the clock of an end of this connection? A SYN-ACK may be of another socket of the end. */
static __always_inline bool has_clock(const struct arrival *a)
{
	return a->p.timestamps && !(a->s.tcp_flags & (TCP_SYN | TCP_RST));
}

/* Notes what the sockets' segments take from an end, and puts aside what only it understands. */
static __always_inline int note_end(struct __sk_buff *skb, const struct arrival *a,
				    struct split_flow *f, bool by_vm)
{
	const struct segment *s = &a->s;
	__u32 tsecr = 0;

	f->last_ns = bpf_ktime_get_ns();
	if (by_vm) {
		if (f->moved == SPLIT_MOVED)
			f->moved = SPLIT_AT_TAP;
		f->vm_traffic = s->traffic;
		f->vm_ttl = s->ttl;
		copy_mac(f->next_hop, s->destination);
		copy_mac(f->mac_by_vm, a->key.vm_mac);
		if (has_clock(a) && (__s32)(s->tsval - f->vm_tsval) > 0)
			f->vm_tsval = s->tsval;
	} else {
		f->peer_traffic = s->traffic;
		f->peer_ttl = s->ttl;
		copy_mac(f->mac_to_vm, a->key.vm_mac);
		if (has_clock(a) && (__s32)(s->tsval - f->peer_tsval) > 0)
			f->peer_tsval = s->tsval;
		tsecr = first_tsecr(f, s);
	}
	if (!a->p.timestamps)
		return 0;
	return replace_tcp_word(skb, &a->p, a->p.timestamps + 4, tsecr);
}

/* Sends a segment of an end to its socket. Not inline: both programs have it. */
static __noinline int to_socket(struct __sk_buff *skb, struct split_port *port,
				const struct arrival *a, struct split_flow *f, bool by_vm)
{
	__u8 mac[6] __attribute__((aligned(2)));

	if (note_end(skb, a, f, by_vm))
		return HOOK_DROP;
	if (skb->vlan_present && bpf_skb_vlan_pop(skb))
		return HOOK_DROP;
	copy_mac(mac, socket_mac);
	if (bpf_skb_store_bytes(skb, 0, mac, sizeof(mac), 0))
		return HOOK_DROP;
	count(&port->to_sockets);
	skb->mark = 0;
	return bpf_redirect(port->socket_ifindex, 0);
}

/* An ICMP message about a segment of a split connection: path MTU (RFC 1191, RFC 8201). The kernel
 * believes it if it quotes what is in flight. */
static __always_inline bool quotes_split(struct __sk_buff *skb, __u32 l3, bool to_vm)
{
	struct found_by by = {}, quoted = {};

	if (skb->protocol == bpf_htons(ETH_P_IP) ? !read_quote4(skb, l3, &quoted.key) :
						   !read_quote6(skb, l3, &quoted.key))
		return false;
	if (to_vm)
		by = quoted;
	else
		turned_key(&by, &quoted.key);
	return bpf_map_lookup_elem(&split_flows, &by.key);
}

static __noinline int pass_first_fragment(struct __sk_buff *skb, struct split_port *port,
					  const struct arrival *a, bool to_vm)
{
	struct split_flow *f = find_split(&a->key);

	return f ? to_socket(skb, port, a, f, !to_vm) : HOOK_NEXT;
}

/* A packet without ports may be for a socket all the same: a copy goes there, and the packet to its
 * end. An end keeps later fragments in vain, because the first one has gone to the socket. */
static __noinline int pass_unread(struct __sk_buff *skb, struct split_port *port, __u32 l3,
				  bool to_vm)
{
	__u8 mac[6] __attribute__((aligned(2))), old[6] __attribute__((aligned(2)));

	if (l3 != ETH_HLEN || !(is_later_fragment(skb, l3) || quotes_split(skb, l3, to_vm)))
		return HOOK_NEXT;
	copy_mac(mac, socket_mac);
	if (bpf_skb_load_bytes(skb, 0, old, sizeof(old)) ||
	    bpf_skb_store_bytes(skb, 0, mac, sizeof(mac), 0))
		return HOOK_NEXT;
	bpf_clone_redirect(skb, port->socket_ifindex, 0);
	return bpf_skb_store_bytes(skb, 0, old, sizeof(old), 0) ? HOOK_DROP : HOOK_NEXT;
}

/* Handles a packet that parse_packet() has not read as a segment. A first fragment goes to its
 * socket; later fragments and ICMP messages go to their end, and a copy to the socket. */
static __noinline int on_unread(struct __sk_buff *skb, struct split_port *port, struct arrival *a,
				bool to_vm)
{
	return read_first_fragment(skb, to_vm, &a->p, &a->key, &a->s) ?
		       pass_first_fragment(skb, port, a, to_vm) :
		       pass_unread(skb, port, a->p.l3, to_vm);
}

/* MSS of a SYN: its first option, as all stacks have it. */
static __always_inline __u16 mss_of(struct __sk_buff *skb, const struct packet *p)
{
	__be16 option[2];

	if (p->tcp_len < sizeof(struct tcphdr) + sizeof(option) ||
	    bpf_skb_load_bytes(skb, p->l4 + sizeof(struct tcphdr), option, sizeof(option)) ||
	    option[0] != bpf_htons(TCP_MSS_HEAD))
		return FLOW_DEFAULT_MSS;
	return bpf_ntohs(option[1]);
}

/* A SYN or SYN-ACK. */
static __noinline int note_syn(struct __sk_buff *skb, struct split_port *port,
			       const struct arrival *a, bool by_vm)
{
	struct split_candidate fresh = {}, *c;
	__u64 now = bpf_ktime_get_ns();

	c = bpf_map_lookup_elem(&split_candidates, &a->key);
	if (a->s.tcp_flags & TCP_ACK) {
		if (!c)
			return HOOK_NEXT;
		if (by_vm)
			split_note_answer(port, c->waits_ns, now);
		split_note_syn(c, &a->s, mss_of(skb, &a->p), by_vm, now);
		return HOOK_NEXT;
	}
	/* A live connection keeps its numbers until its ends have agreed on others. */
	if (c && c->sent >> 32 == SPLIT_DONE)
		return HOOK_NEXT;
	split_note_syn(&fresh, &a->s, mss_of(skb, &a->p), by_vm, now);
	/* Tags would have to be put back into the sockets' segments. */
	if (a->key.vlan_outer || a->p.l3 != ETH_HLEN)
		fresh.flags |= SPLIT_F_NEVER;
	bpf_map_update_elem(&split_candidates, &a->key, &fresh, BPF_ANY);
	return HOOK_NEXT;
}

/* A segment of the VM while it is late. Returns the hook's result. */
static __noinline int follow_vm(struct __sk_buff *skb, struct split_port *port,
				const struct arrival *a)
{
	struct split_candidate *c = bpf_map_lookup_elem(&split_candidates, &a->key);
	__u64 now = bpf_ktime_get_ns();
	struct split_flow *f;

	if (!c)
		return HOOK_NEXT;
	split_enter_epoch(c, port->epoch);
	if (split_is_special(&a->s)) {
		c->flags |= SPLIT_F_NEVER;
		/* A full barrier: begin() sees the flag, or its entry is found now. A RST does not
		 * come again, and must not pass beside the sockets. */
		__sync_fetch_and_add(&c->sent, 0);
		f = find_split(&a->key);
		return f ? to_socket(skb, port, a, f, true) : HOOK_NEXT;
	}
	split_note_vm(c, &a->s);
	/* It is split between the look at the connections and this one. */
	if (!split_note_sent(c, &a->s))
		return HOOK_DROP;
	if (!a->s.len)
		return HOOK_NEXT;
	split_note_answer(port, c->waits_ns, now);
	c->waits_ns = 0;
	if (!split_is_fit(c) || c->sent >> 32 == SPLIT_REFUSED)
		return HOOK_NEXT;
	copy_segment(skb, port, a, now);
	if (split_is_worth_it(c))
		want(port, &a->key, now);
	return HOOK_NEXT;
}

static __noinline int follow_peer(struct split_port *port, const struct arrival *a)
{
	struct split_candidate *c = bpf_map_lookup_elem(&split_candidates, &a->key);

	if (c)
		split_note_peer(c, &a->s, port->epoch, bpf_ktime_get_ns());
	return HOOK_NEXT;
}

/* Forgets a connection that is over. Not inline: both programs have it. */
static __noinline int forget_split(struct split_port *port, const struct arrival *a)
{
	struct split_candidate *c = bpf_map_lookup_elem(&split_candidates, &a->key);

	remove_split(port, &a->key);
	if (c)
		c->sent = 0;
	return 0;
}

/* Mark of a socket's segment that leaves towards the peer. */
#define SOCKET_MARK (MARK_REPLY | 1)

/* A socket's segment has come in by the tap. Only here it counts as sent: a tap that is down, or
 * deleted, takes none, and the SEQ of a RST for the peer depends on it. */
static __noinline int note_sent(struct __sk_buff *skb, struct arrival *a)
{
	struct split_flow *f;
	__u32 fin;

	if (parse_packet(skb, false, &a->p, &a->key, &a->s) != PARSED_TCP)
		return HOOK_NEXT;
	f = find_split(&a->key);
	if (!f)
		return HOOK_NEXT;
	fin = a->s.tcp_flags & TCP_FIN ? 1 : 0;
	f->sent_end = seq_max(f->sent_end, seq_add(a->s.seq, a->s.len + fin));
	/* The VM had sent it: a retransmission, whose ACK would be timed from the first time on
	 * (Karn's algorithm, RFC 6298, section 3). */
	if (a->s.len && seq_lt(a->s.seq, f->first_end))
		f->first_tsecr = 0;
	return HOOK_NEXT;
}

/* Does this segment matter, though its connection is not split? */
static __always_inline bool is_followed(const struct split_port *port, const struct segment *s)
{
	return port->is_on == 1 &&
	       (s->tcp_flags & TCP_SYN || split_is_late(port, bpf_ktime_get_ns()));
}

/* Handles a packet at either hook on the tap: segments of split connections go to their sockets. */
static __always_inline int on_tap(struct __sk_buff *skb, bool to_vm)
{
	struct split_port *port = this_port();
	struct split_flow *f = 0;
	struct arrival a = {};

	if (!port || !(port->is_on || port->splits))
		return HOOK_NEXT;
	if (!to_vm && skb->mark == SOCKET_MARK)
		return note_sent(skb, &a);
	/* Segments of sockets, of the engine, and of other hooks. */
	if (skb->mark & MARK_MASK)
		return HOOK_NEXT;
	if (parse_packet(skb, to_vm, &a.p, &a.key, &a.s) != PARSED_TCP)
		return port->splits ? on_unread(skb, port, &a, to_vm) : HOOK_NEXT;
	/* A segment that is left to the VM needs no checksum. */
	if (!(port->splits || is_followed(port, &a.s)) ||
	    !checksum_is_good(skb, &a.p, &a.key, &a.s))
		return HOOK_NEXT;
	if (port->splits)
		f = find_split(&a.key);
	if (f) {
		if (!split_is_used_again(f, &a.s))
			return to_socket(skb, port, &a, f, !to_vm);
		forget_split(port, &a);
	}
	if (!is_followed(port, &a.s))
		return HOOK_NEXT;
	if (a.s.tcp_flags & TCP_SYN)
		return note_syn(skb, port, &a, !to_vm);
	return to_vm ? follow_peer(port, &a) : follow_vm(skb, port, &a);
}

SEC("tcx/egress")
int split_to_vm(struct __sk_buff *skb)
{
	return on_tap(skb, true);
}

SEC("tcx/ingress")
int split_from_vm(struct __sk_buff *skb)
{
	return on_tap(skb, false);
}

/* Gives an IPv4 header TTL and traffic class of an end. */
static __always_inline int dress_ipv4(struct __sk_buff *skb, __u32 l3, __u8 ttl, __u32 traffic)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
		return -1;
	ip.tos = traffic >> 20;
	ip.ttl = ttl;
	ip.check = 0;
	ip.check = ~fold(sum_words(&ip, 5));
	return bpf_skb_store_bytes(skb, l3, &ip, sizeof(ip), 0);
}

static __always_inline int dress_ipv6(struct __sk_buff *skb, __u32 l3, __u8 ttl, __u32 traffic)
{
	__be32 first = bpf_htonl(IPV6_VERSION | traffic);

	if (bpf_skb_store_bytes(skb, l3, &first, sizeof(first), 0))
		return -1;
	return bpf_skb_store_bytes(skb, l3 + __builtin_offsetof(struct ipv6hdr, hop_limit), &ttl,
				   sizeof(ttl), 0);
}

/* Gives a socket's segment the looks of the end for which it speaks. */
static __noinline int dress(struct __sk_buff *skb, const struct arrival *a,
			    const struct split_flow *f, bool to_vm)
{
	__u8 macs[2 * ETH_ALEN] __attribute__((aligned(4)));
	__u8 ttl = to_vm ? f->peer_ttl : f->vm_ttl;
	__u32 traffic = to_vm ? f->peer_traffic : f->vm_traffic;

	if (a->p.ipv6 ? dress_ipv6(skb, a->p.l3, ttl, traffic) :
			dress_ipv4(skb, a->p.l3, ttl, traffic))
		return -1;
	if (f->timestamps && a->p.timestamps &&
	    replace_tcp_word(skb, &a->p, a->p.timestamps, to_vm ? f->peer_tsval : f->vm_tsval))
		return -1;
	copy_mac(macs, to_vm ? f->mac_to_vm : f->next_hop);
	copy_mac(macs + ETH_ALEN, to_vm ? f->next_hop : f->mac_by_vm);
	return bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0);
}

/* A RST that answers a SYN: the kernel has no socket any more, and the splitter has not said so
 * yet. The SYN comes again. A socket's own RST has a SEQ. */
static __always_inline bool refuses_a_syn(const struct segment *s)
{
	return s->tcp_flags & TCP_RST && s->tcp_flags & TCP_ACK && !s->seq.v;
}

/* Shows no room: an end that sends without a pause would never be at rest, and its connection never
 * be joined. The kernel takes what comes all the same. */
static __always_inline int show_no_window(struct __sk_buff *skb, const struct packet *p)
{
	const __u32 at = 4 * TCP_WORD_OFFSET;
	__be32 old;

	if (bpf_skb_load_bytes(skb, p->l4 + at, &old, sizeof(old)))
		return -1;
	return replace_tcp_word(skb, p, at, bpf_ntohl(old) & TCP_NOT_WINDOW);
}

SEC("tcx/ingress")
int split_from_socket(struct __sk_buff *skb)
{
	struct split_port *port = this_port();
	struct arrival a = {};
	struct split_flow *f;
	struct found_by by;
	bool to_vm;

	if (!port || parse_packet(skb, true, &a.p, &a.key, &a.s) != PARSED_TCP)
		return HOOK_DROP;
	split_key(&by, &a.key);
	f = bpf_map_lookup_elem(&split_flows, &by.key);
	to_vm = f;
	if (!f) {
		turned_key(&by, &a.key);
		f = bpf_map_lookup_elem(&split_flows, &by.key);
	}
	if (!f) {
		count(&port->strays);
		return HOOK_DROP;
	}
	if ((!to_vm && f->moved == SPLIT_MOVED) || refuses_a_syn(&a.s) ||
	    dress(skb, &a, f, to_vm) || (port->is_on == SPLIT_DRAINS && show_no_window(skb, &a.p)))
		return HOOK_DROP;
	count(&port->from_sockets);
	skb->mark = to_vm ? MARK_HANDED : SOCKET_MARK;
	return bpf_redirect(port->tap_ifindex, to_vm ? 0 : BPF_F_INGRESS);
}
