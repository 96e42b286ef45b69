/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rewrites ACK and window of a packet of the VM in place, with an incremental checksum (RFC 1624),
 * and removes SACK blocks below the new ACK, which the sender would read as D-SACK (RFC 2883).
 * Rewrites SEQ of a sender's segment to a VM whose data are held, too.
 */
#ifndef VSNOOP_BPF_REWRITE_H
#define VSNOOP_BPF_REWRITE_H

#include "reply.h"
#include "tcp_header.h"

/* Replaces SACK blocks whose left edge is not above `ack` by NOPs. */
static __always_inline int drop_stale_sack(struct __sk_buff *skb, const struct packet *p,
					   struct seq ack)
{
	/* Includes the two bytes before the option, to stay word-aligned: senders put two NOPs
	 * there and the blocks on a word boundary. */
	__u32 at = p->sack + 2, len = p->sack_len - 2, kept = 0, i;
	__u8 old[36], new[36];

	if (!p->sack || p->sack < sizeof(struct tcphdr) + 2 || at % 4 || len > 32 || len < 8)
		return 0;
	if (bpf_skb_load_bytes(skb, p->l4 + at - 4, old, 4))
		return -1;
	__builtin_memset(new, 1, sizeof(new));
	__builtin_memcpy(new, old, 4);
	for (i = 0; i < 4; i++) {
		__u32 left, *from = (void *)(old + 4 + 8 * i);

		if (8 * i >= len) {
			from[0] = from[1] = bpf_htonl(FOUR_NOPS);
			continue;
		}
		if (bpf_skb_load_bytes(skb, p->l4 + at + 8 * i, from, 8))
			return -1;
		left = bpf_ntohl(from[0]);
		if (seq_gt(seq_of(left), ack)) {
			__u32 *to = (void *)(new + 4 + 8 * (kept & 3));

			to[0] = from[0];
			to[1] = from[1];
			kept++;
		}
	}
	if (8 * kept == len)
		return 0;
	if (kept) {
		new[3] = 2 + 8 * kept;
	} else {
		new[2] = 1;
		new[3] = 1;
	}
	for (i = 0; i < 9; i++)
		if (4 * i < len + 4 &&
		    replace_in_tcp(skb, p, at - 4 + 4 * i, old + 4 * i, new + 4 * i, 4))
			return -1;
	return 0;
}

__noinline int rewrite_ack(struct __sk_buff *skb, const struct packet *p, const struct segment *s,
			   const struct ack_fields *a)
{
	/* ack, data offset and flags, window: two words. */
	__be32 old[2], new[2];

	if (!p || !s || !a)
		return -1;
	if (bpf_skb_load_bytes(skb, p->l4 + TCP_OFFSET_ACK, old, sizeof(old)))
		return -1;
	new[0] = bpf_htonl(a->ack.v);
	new[1] = (old[1] & bpf_htonl(TCP_NOT_WINDOW)) | bpf_htonl(a->window);
	if (replace_in_tcp(skb, p, TCP_OFFSET_ACK, old, new, sizeof(new)))
		return -1;
	return s->bits & SEG_SACK && !seq_eq(a->ack, s->ack) ? drop_stale_sack(skb, p, a->ack) : 0;
}

/* Replaces the window of a segment of the VM. */
static __noinline int rewrite_window(struct __sk_buff *skb, const struct packet *p, __u16 window)
{
	__be32 old, new;

	if (bpf_skb_load_bytes(skb, p->l4 + TCP_OFFSET_ACK + 4, &old, sizeof(old)))
		return -1;
	new = (old & bpf_htonl(TCP_NOT_WINDOW)) | bpf_htonl(window);
	return replace_in_tcp(skb, p, TCP_OFFSET_ACK + 4, &old, &new, sizeof(new));
}

/* Removes the FIN of a segment. */
static __noinline int drop_fin(struct __sk_buff *skb, const struct packet *p)
{
	__be32 old, new;

	if (bpf_skb_load_bytes(skb, p->l4 + TCP_OFFSET_ACK + 4, &old, sizeof(old)))
		return -1;
	new = old & ~bpf_htonl(TCP_FIN << 16);
	return replace_in_tcp(skb, p, TCP_OFFSET_ACK + 4, &old, &new, sizeof(new));
}

/* Replaces SEQ of a segment of the sender, and TSval if it has one. */
__noinline int rewrite_seq(struct __sk_buff *skb, const struct packet *p, const struct segment *s,
			   const struct ack_fields *a)
{
	__be32 old, new;

	if (!p || !s || !a)
		return -1;
	old = bpf_htonl(s->seq.v);
	new = bpf_htonl(a->seq.v);
	if (replace_in_tcp(skb, p, TCP_OFFSET_SEQ, &old, &new, sizeof(new)))
		return -1;
	if (!p->timestamps)
		return 0;
	old = bpf_htonl(s->tsval);
	new = bpf_htonl(a->tsval);
	return replace_in_tcp(skb, p, p->timestamps, &old, &new, sizeof(new));
}

#endif
