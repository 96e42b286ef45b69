/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A VM with lwIP: one interface without link layer, up to ENDS connections, and a layer between
 * lwIP's callbacks and an application in Rust that polls.
 *
 * lwIP keeps its state in global variables. lwipopts.h collects them, and those of this file, in
 * two sections; lwip_vm_start() restores the initial contents of both. Only one VM can exist at a
 * time.
 */
#include <stdlib.h>
#include <string.h>

/* Not reset by lwip_vm_start(): declared before the sections of lwipopts.h. */
static void *pristine;

#include "lwip/init.h"
#include "lwip/ip.h"
#include "lwip/netif.h"
#include "lwip/pbuf.h"
#include "lwip/priv/tcp_priv.h"
#include "lwip/sys.h"
#include "lwip/tcp.h"
#include "lwip/timeouts.h"

#include "vm.h"

#define ENDS 8
#define MTU 1500
/* TCP's largest window with TCP_RCV_SCALE. */
#define UNREAD (0xffff << TCP_RCV_SCALE)

extern u8_t __start_lwip_bss[], __stop_lwip_bss[];
extern u8_t __start_lwip_data[], __stop_lwip_data[];

struct end {
	struct tcp_pcb *listener;
	struct tcp_pcb *pcb; /* while lwIP has it */
	u32_t irs; /* the peer's first sequence number */
	u32_t accepted; /* valid once lwIP has freed the pcb */
	u32_t first; /* in `unread`, a ring */
	u32_t len;
	u8_t unread[UNREAD];
	bool was_open;
	bool has_fin;
	bool is_done;
	bool is_reset;
};

unsigned int lwip_vm_wider;
static struct end ends[ENDS];
static struct netif netif;
static u32_t now_ms;
static u32_t random_state;

u32_t sys_now(void)
{
	return now_ms;
}

unsigned int lwip_vm_random(void)
{
	/* Marsaglia's xorshift32. */
	random_state ^= random_state << 13;
	random_state ^= random_state >> 17;
	random_state ^= random_state << 5;
	return random_state;
}

static err_t sends(struct netif *through, struct pbuf *packet)
{
	u8_t bytes[MTU];

	LWIP_UNUSED_ARG(through);
	LWIP_ASSERT("a packet larger than the MTU", packet->tot_len <= sizeof(bytes));
	pbuf_copy_partial(packet, bytes, packet->tot_len, 0);
	lwip_vm_sends(bytes, packet->tot_len);
	return ERR_OK;
}

static err_t sends_ipv4(struct netif *through, struct pbuf *packet, const ip4_addr_t *to)
{
	LWIP_UNUSED_ARG(to);
	return sends(through, packet);
}

static err_t sends_ipv6(struct netif *through, struct pbuf *packet, const ip6_addr_t *to)
{
	LWIP_UNUSED_ARG(to);
	return sends(through, packet);
}

static err_t set_up(struct netif *new)
{
	new->mtu = MTU;
	new->output = sends_ipv4;
	new->output_ip6 = sends_ipv6;
	return ERR_OK;
}

/**
 * lwip_vm_start() - A new VM; the one before it is gone.
 * @seed: Of its initial sequence numbers.
 * @window: Its receive window, bytes; at most UNREAD.
 */
void lwip_vm_start(u32_t seed, u32_t window)
{
	size_t data = __stop_lwip_data - __start_lwip_data;

	if (!pristine) {
		pristine = malloc(data);
		memcpy(pristine, __start_lwip_data, data);
	}
	memcpy(__start_lwip_data, pristine, data);
	memset(__start_lwip_bss, 0, __stop_lwip_bss - __start_lwip_bss);
	LWIP_ASSERT("a window that can be announced", window <= UNREAD);
	random_state = seed | 1;
	lwip_vm_wider = window - 0xffff;
	lwip_init();
	netif_add_noaddr(&netif, NULL, set_up, ip_input);
	netif_set_default(&netif);
	netif_set_up(&netif);
	netif_set_link_up(&netif);
}

static ip_addr_t address_of(const struct lwip_vm_address *from)
{
	ip_addr_t address = { 0 };

	if (from->is_ipv6) {
		IP_SET_TYPE_VAL(address, IPADDR_TYPE_V6);
		memcpy(ip_2_ip6(&address)->addr, from->bytes, 16);
	} else {
		IP_SET_TYPE_VAL(address, IPADDR_TYPE_V4);
		memcpy(&ip_2_ip4(&address)->addr, from->bytes, 4);
	}
	return address;
}

/* Gives the VM an address. */
void lwip_vm_add_address(const struct lwip_vm_address *from)
{
	ip_addr_t address = address_of(from);
	ip4_addr_t mask;
	s8_t index = -1;

	if (IP_IS_V6(&address)) {
		netif_add_ip6_address(&netif, ip_2_ip6(&address), &index);
		LWIP_ASSERT("room for an address", index >= 0);
		netif_ip6_addr_set_state(&netif, index, IP6_ADDR_PREFERRED);
	} else {
		IP4_ADDR(&mask, 255, 0, 0, 0);
		netif_set_addr(&netif, ip_2_ip4(&address), &mask, IP4_ADDR_ANY4);
	}
}

/* The last ACK has come, or the connection has failed; `arg`->pcb is freed already. */
static void on_error(void *arg, err_t err)
{
	struct end *end = arg;

	end->pcb = NULL;
	if (err == ERR_CLSD && end->has_fin)
		end->is_done = true;
	else
		end->is_reset = true;
}

static void note_accepted(struct end *end)
{
	if (end->pcb && end->was_open)
		end->accepted = end->pcb->rcv_nxt - end->irs;
}

static err_t on_data(void *arg, struct tcp_pcb *pcb, struct pbuf *data, err_t err)
{
	struct end *end = arg;

	LWIP_UNUSED_ARG(pcb);
	LWIP_UNUSED_ARG(err);
	if (!data) {
		end->has_fin = true;
	} else {
		LWIP_ASSERT("data beyond the window", end->len + data->tot_len <= UNREAD);
		for (u16_t i = 0; i < data->tot_len; i++)
			end->unread[(end->first + end->len + i) % UNREAD] = pbuf_get_at(data, i);
		end->len += data->tot_len;
		pbuf_free(data);
	}
	note_accepted(end);
	return ERR_OK;
}

static void is_established(struct end *end, struct tcp_pcb *pcb)
{
	end->pcb = pcb;
	end->was_open = true;
	end->irs = pcb->rcv_nxt - 1;
	end->accepted = 1;
	tcp_arg(pcb, end);
	tcp_recv(pcb, on_data);
	tcp_err(pcb, on_error);
	tcp_nagle_disable(pcb);
}

static err_t on_accept(void *arg, struct tcp_pcb *pcb, err_t err)
{
	struct end *end = arg;

	if (err != ERR_OK || end->was_open)
		return ERR_VAL;
	is_established(end, pcb);
	return ERR_OK;
}

static err_t on_connected(void *arg, struct tcp_pcb *pcb, err_t err)
{
	LWIP_UNUSED_ARG(err);
	is_established(arg, pcb);
	return ERR_OK;
}

/* Checks for a state without a callback: a connection in TIME-WAIT is done. */
static void look_at_all(void)
{
	for (struct end *end = ends; end < ends + ENDS; end++) {
		note_accepted(end);
		if (end->was_open && end->listener) {
			tcp_close(end->listener);
			end->listener = NULL;
		}
		if (end->pcb && end->pcb->state == TIME_WAIT) {
			end->is_done = true;
			tcp_arg(end->pcb, NULL);
			tcp_recv(end->pcb, NULL);
			tcp_err(end->pcb, NULL);
			end->pcb = NULL;
		}
	}
}

/* Lets end `end` accept one connection. */
void lwip_vm_listen(u32_t end, u16_t port)
{
	struct tcp_pcb *pcb = tcp_new_ip_type(IPADDR_TYPE_ANY);
	err_t err = tcp_bind(pcb, IP_ANY_TYPE, port);

	LWIP_ASSERT("an end and its port", end < ENDS && err == ERR_OK);
	ends[end].listener = tcp_listen(pcb);
	tcp_arg(ends[end].listener, &ends[end]);
	tcp_accept(ends[end].listener, on_accept);
}

/* Lets end `end`, which listens, open a connection. */
void lwip_vm_connect(u32_t end, u16_t port, const struct lwip_vm_address *peer, u16_t peer_port)
{
	struct tcp_pcb *pcb = tcp_new_ip_type(peer->is_ipv6 ? IPADDR_TYPE_V6 : IPADDR_TYPE_V4);
	ip_addr_t address = address_of(peer);
	err_t err;

	tcp_close(ends[end].listener);
	ends[end].listener = NULL;
	err = tcp_bind(pcb, peer->is_ipv6 ? IP6_ADDR_ANY : IP4_ADDR_ANY, port);
	LWIP_ASSERT("a port", err == ERR_OK);
	ends[end].pcb = pcb;
	tcp_arg(pcb, &ends[end]);
	tcp_err(pcb, on_error);
	err = tcp_connect(pcb, &address, peer_port, on_connected);
	LWIP_ASSERT("a way", err == ERR_OK);
}

void lwip_vm_clock(u32_t ms)
{
	now_ms = ms;
}

/* Processes an IP packet; drops it without memory. */
void lwip_vm_input(const u8_t *packet, u32_t len)
{
	struct pbuf *copy = pbuf_alloc(PBUF_RAW, len, PBUF_POOL);

	if (copy) {
		pbuf_take(copy, packet, len);
		if (netif.input(copy, &netif) != ERR_OK)
			pbuf_free(copy);
	}
	look_at_all();
}

void lwip_vm_timers(void)
{
	sys_check_timeouts();
	look_at_all();
}

/* Time until lwip_vm_timers() must be called, ms; UINT32_MAX: never. */
u32_t lwip_vm_next_timer_ms(void)
{
	return sys_timeouts_sleeptime();
}

/* Reads up to `room` bytes for the application. Returns their number. */
u32_t lwip_vm_read(u32_t number, u8_t *bytes, u32_t room)
{
	struct end *end = &ends[number];
	u32_t len = LWIP_MIN(room, end->len);

	for (u32_t i = 0; i < len; i++)
		bytes[i] = end->unread[(end->first + i) % UNREAD];
	end->first = (end->first + len) % UNREAD;
	end->len -= len;
	for (u32_t told = 0; end->pcb && told < len;) {
		u16_t portion = LWIP_MIN(len - told, 0xffff);

		tcp_recved(end->pcb, portion);
		told += portion;
	}
	return len;
}

/* Writes for the application. Returns how many bytes lwIP accepted. */
u32_t lwip_vm_write(u32_t number, const u8_t *bytes, u32_t len)
{
	struct end *end = &ends[number];

	if (!end->pcb)
		return 0;
	len = LWIP_MIN(len, tcp_sndbuf(end->pcb));
	if (len == 0 || tcp_write(end->pcb, bytes, len, TCP_WRITE_FLAG_COPY) != ERR_OK)
		return 0;
	tcp_output(end->pcb);
	return len;
}

/* Closes for sending. Returns whether lwIP has accepted that. */
bool lwip_vm_close(u32_t number)
{
	struct end *end = &ends[number];

	return end->pcb && tcp_shutdown(end->pcb, 0, 1) == ERR_OK;
}

void lwip_vm_abort(u32_t number)
{
	struct end *end = &ends[number];

	note_accepted(end);
	if (end->pcb)
		tcp_abort(end->pcb);
	else if (!end->is_done)
		end->is_reset = true;
}

void lwip_vm_look(u32_t number, struct lwip_vm_state *state)
{
	struct end *end = &ends[number];

	note_accepted(end);
	*state = (struct lwip_vm_state){
		.accepted = end->accepted,
		.unread = end->len,
		.room = end->pcb && end->was_open ? tcp_sndbuf(end->pcb) : 0,
		.is_open = end->was_open && end->pcb,
		.has_fin = end->has_fin,
		.is_done = end->is_done,
		.is_reset = end->is_reset,
	};
}
