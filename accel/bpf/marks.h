/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * skb->mark of vsnoop's own packets, under a mask because others use marks too.
 */
#ifndef VSNOOP_BPF_MARKS_H
#define VSNOOP_BPF_MARKS_H

#define MARK_MASK 0xfff00000
/* Goes to the VM, already decided. */
#define MARK_HANDED 0x5e100000
/* Made by the host as if the VM had sent it. */
#define MARK_REPLY 0x5e200000
/* A frame of the engine for the VM. */
#define MARK_ENGINE 0x5e300000

#endif
