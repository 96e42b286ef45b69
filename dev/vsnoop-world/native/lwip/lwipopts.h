/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Options of lwIP as the TCP of a simulated VM (vm.c): the raw API without threads, timestamps,
 * SACK and window scaling, IPv4 and IPv6. All randomness comes from the scenario's seed.
 */
#ifndef VSNOOP_LWIPOPTS_H
#define VSNOOP_LWIPOPTS_H

/* Collects all state in two sections, so that vm.c can reset it. */
#pragma clang section bss = "lwip_bss" data = "lwip_data"

#define NO_SYS 1
#define SYS_LIGHTWEIGHT_PROT 0
#define LWIP_NETCONN 0
#define LWIP_SOCKET 0
#define LWIP_STATS 0
#define MEM_ALIGNMENT 8

#define LWIP_ARP 0
#define LWIP_UDP 0
#define LWIP_RAW 0
#define IP_REASSEMBLY 0
#define IP_FRAG 0
#define LWIP_IPV6 1
#define LWIP_IPV6_FRAG 0
#define LWIP_IPV6_REASS 0
#define LWIP_IPV6_MLD 0
#define LWIP_IPV6_AUTOCONFIG 0
#define LWIP_IPV6_SEND_ROUTER_SOLICIT 0
#define LWIP_ND6_ALLOW_RA_UPDATES 0

/* Fits with an IPv6 header: lwIP forgets the MTU when a SYN-ACK comes twice. */
#define TCP_MSS 1440
#define TCP_SND_BUF 65535
#define TCP_SND_QUEUELEN 512
#define TCP_OVERSIZE TCP_MSS
#define LWIP_TCP_TIMESTAMPS 1
#define LWIP_TCP_SACK_OUT 1
#define LWIP_WND_SCALE 1
#define TCP_RCV_SCALE 2

/* The window is the scenario's. lwIP's checks in the preprocessor see the constant only. */
extern unsigned int lwip_vm_wider;
#define TCP_WND (0xffffU + lwip_vm_wider)
#define LWIP_DISABLE_TCP_SANITY_CHECKS 1

unsigned int lwip_vm_random(void);
#define LWIP_RAND() lwip_vm_random()
#define LWIP_HOOK_TCP_ISN(local, local_port, remote, remote_port) lwip_vm_random()

#define MEM_SIZE (1024 * 1024)
#define MEMP_NUM_TCP_PCB 16
#define MEMP_NUM_TCP_SEG 1024
#define MEMP_NUM_PBUF 1024
#define PBUF_POOL_SIZE 512
#define PBUF_POOL_BUFSIZE 1536

#endif
