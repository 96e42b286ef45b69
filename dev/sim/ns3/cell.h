/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a cell of an experiment has: one network, one kind of TCP, one way of control. Each is an
 * option of the program with this name.
 */
#ifndef VSNOOP_SIM_CELL_H
#define VSNOOP_SIM_CELL_H

#include <cstdint>
#include <string>

namespace vsnoop
{

struct Cell {
	std::string kind = "queries"; /* queries, flows, uploads, downloads */
	std::string tcp = "cubic"; /* cubic, reno, bbr, dctcp */
	std::string control = "off"; /* off, incast, incast-early, early, split */
	uint32_t senders = 8;
	uint32_t vms = 1; /* that the senders answer, in turn */
	uint32_t background = 0; /* senders beside them that never stop */
	double gbps = 1;
	double sender_gbps = 0; /* 0: as the last hop */
	double vm_gbps = 0; /* that a VM's CPU takes in; 0: unlimited */
	uint64_t answer = 64000; /* bytes of each sender */
	uint64_t buffer = 128000; /* queue of the last hop, bytes of frames */
	double alpha = 0; /* dynamic threshold of a shared buffer of `buffer`; 0: none */
	uint64_t mark = 0; /* bytes in the queue from which CE is set; 0: none */
	double rtt_us = 100; /* of an empty network */
	double jitter_us = 0; /* more for each sender, up to this, for a round trip */
	double think_us = 20; /* from request to answer, up to this */
	double rto_min_ms = 200;
	uint32_t rounds = 10;
	double scale_bytes = 4194304; /* receive buffer, from which the window scale comes */
	uint32_t stop_ms = 0; /* each VM stands for this time ... */
	uint32_t period_ms = 0; /* ... in each period */
	std::string
		waits_us; /* or it runs and stands in turn for these times, with commas between */
	double gap_ms = 0; /* before each upload or download, at most */
	double seconds = 2; /* of flows without an end */
	uint64_t hold = 67108864; /* memory of a port's hold, bytes */
	double limit_s = 60; /* simulated time of a round */
	uint32_t seed = 1;

	/* Payload of a line that is full, over its rate. */
	static constexpr double PAYLOAD = 1448.0 / 1538;
};

} /* namespace vsnoop */

#endif
