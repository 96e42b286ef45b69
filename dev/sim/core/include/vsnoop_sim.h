/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A host with the programs of bpf/, the engine and the helper, for a simulator (src/lib.rs). The
 * caller hands over frames, and after each call takes those that leave.
 */
#ifndef VSNOOP_SIM_H
#define VSNOOP_SIM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct vsnoop_sim_host;

struct vsnoop_sim_settings {
	uint32_t ports;
	uint32_t attached; /* 0: the host passes frames on, and VMs stand all the same */
	uint32_t incast; /* 1: incast control, for a last hop with the rate and queue below */
	uint32_t early; /* 1: early ACKs, with a hold and an engine; 2: and split connections */
	uint32_t buffer_bytes;
	uint64_t rate_bps;
	uint64_t hold_bytes; /* of each port */
	uint32_t stop_ms; /* each VM stands, ms ... */
	uint32_t period_ms; /* ... in each period */
	const uint32_t *waits_us; /* or it runs and stands in turn, us, again and again: copied */
	uint32_t waits; /* numbers there, an even one */
	uint32_t ring_frames; /* ring of each VM */
	uint32_t seed;
};

struct vsnoop_sim_frame {
	const uint8_t *bytes; /* from the Ethernet header on */
	uint32_t len;
	uint32_t port;
	uint32_t to_vm; /* 0: to the network */
};

struct vsnoop_sim_counts {
	uint64_t shaped; /* connections that are shaped now */
	uint64_t grants; /* to connections that waited */
	uint64_t base_rtt_ns;
	uint64_t ring_drops;
	uint64_t early_acks;
	uint64_t hold_bytes_most; /* most memory of each hold at an engine's run, summed */
	uint64_t hold_bytes_host_most; /* most memory of all holds at the same time */
	uint64_t engine_runs;
};

struct vsnoop_sim_host *vsnoop_sim_new(const struct vsnoop_sim_settings *settings);
void vsnoop_sim_free(struct vsnoop_sim_host *host);
void vsnoop_sim_to_vm(struct vsnoop_sim_host *host, uint32_t port, const uint8_t *bytes,
		      uint32_t len, uint64_t now_ns);
void vsnoop_sim_from_vm(struct vsnoop_sim_host *host, uint32_t port, const uint8_t *bytes,
			uint32_t len, uint64_t now_ns);
/* Engine, helper and VMs do what is due. */
void vsnoop_sim_run(struct vsnoop_sim_host *host, uint64_t now_ns);
/* When the host has to run next, after `now_ns`; UINT64_MAX: never. */
uint64_t vsnoop_sim_next(const struct vsnoop_sim_host *host, uint64_t now_ns);
/* Takes the next frame that leaves; 0: there is none. Its bytes are valid until the next call. */
uint32_t vsnoop_sim_take(struct vsnoop_sim_host *host, struct vsnoop_sim_frame *frame);
void vsnoop_sim_count(struct vsnoop_sim_host *host, struct vsnoop_sim_counts *counts);

#ifdef __cplusplus
}
#endif

#endif
