/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Interface between vm.c and src/guest/lwip.rs, which declares it by hand for Rust.
 */
#ifndef VSNOOP_LWIP_VM_H
#define VSNOOP_LWIP_VM_H

#include <stdbool.h>
#include <stdint.h>

/* State of an end. */
struct lwip_vm_state {
	uint32_t accepted; /* position in the peer's stream; SYN and FIN count as one each */
	uint32_t unread; /* bytes that the application may read */
	uint32_t room; /* bytes that it may write */
	bool is_open; /* established, and not ended */
	bool has_fin; /* the peer has closed */
	bool is_done; /* both have closed, and the peer has acknowledged all */
	bool is_reset; /* ended in any other way */
};

/* An IP address: the first 4 bytes, or all 16. */
struct lwip_vm_address {
	uint8_t bytes[16];
	bool is_ipv6;
};

void lwip_vm_start(uint32_t seed, uint32_t window);
void lwip_vm_add_address(const struct lwip_vm_address *address);
void lwip_vm_listen(uint32_t end, uint16_t port);
void lwip_vm_connect(uint32_t end, uint16_t port, const struct lwip_vm_address *peer,
		     uint16_t peer_port);
void lwip_vm_clock(uint32_t now_ms);
void lwip_vm_input(const uint8_t *packet, uint32_t len);
void lwip_vm_timers(void);
uint32_t lwip_vm_next_timer_ms(void);
uint32_t lwip_vm_read(uint32_t end, uint8_t *bytes, uint32_t room);
uint32_t lwip_vm_write(uint32_t end, const uint8_t *bytes, uint32_t len);
bool lwip_vm_close(uint32_t end);
void lwip_vm_abort(uint32_t end);
void lwip_vm_look(uint32_t end, struct lwip_vm_state *state);

/* In Rust. */
void lwip_vm_sends(const uint8_t *packet, uint32_t len);

#endif
