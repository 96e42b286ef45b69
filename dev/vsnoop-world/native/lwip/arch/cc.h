/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What lwIP asks of its platform. */
#ifndef VSNOOP_LWIP_CC_H
#define VSNOOP_LWIP_CC_H

#define LWIP_NO_CTYPE_H 1

/* In Rust; does not return. */
void lwip_vm_failed(const char *why);
#define LWIP_PLATFORM_ASSERT(why) lwip_vm_failed(why)
#define LWIP_PLATFORM_DIAG(message)

#endif
