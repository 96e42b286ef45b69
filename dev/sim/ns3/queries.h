/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Rounds of queries: the VMs ask all senders at once over connections that stay, and a round ends
 * when all answers are there. A first round does not count. Senders in the background send without
 * end.
 */
#ifndef VSNOOP_SIM_QUERIES_H
#define VSNOOP_SIM_QUERIES_H

#include <vector>

#include <ns3/random-variable-stream.h>
#include <ns3/socket.h>

#include "network.h"
#include "sender_socket.h"

namespace vsnoop
{

struct Round {
	double ms;
	uint64_t timeouts; /* of all senders */
	uint64_t probes; /* of windows closed or too small */
	uint64_t drops;
	bool ended;
};

class Queries
{
      public:
	Queries(const Cell &cell, Network &network);

	/* Runs all rounds. */
	void Run();

	std::vector<Round> rounds;
	/* From a request to the end of its answer, ms. */
	std::vector<double> completions;
	uint64_t background_bytes = 0;

      private:
	struct Sender {
		ns3::Ptr<ns3::Socket> listener;
		ns3::Ptr<SenderSocket> socket;
		ns3::Ptr<ns3::Socket> client; /* of the VM */
		uint64_t asked = 0; /* bytes of the request that are still to come */
		uint64_t unwritten = 0; /* bytes of the answer */
		uint64_t wanted = 0; /* bytes that the VM waits for */
	};

	struct Counts {
		uint64_t timeouts = 0;
		uint64_t probes = 0;
		uint64_t drops = 0;
	};

	void Connect(uint32_t number);
	void Accepted(uint32_t number, ns3::Ptr<ns3::Socket> socket);
	void Asked(uint32_t number, ns3::Ptr<ns3::Socket> socket);
	void Answer(uint32_t number);
	void Write(uint32_t number, ns3::Ptr<ns3::Socket> socket, uint32_t room);
	void Received(uint32_t number, ns3::Ptr<ns3::Socket> socket);
	Counts Now() const;
	void Begin();
	void End(bool ended);

	Cell m_cell;
	Network &m_network;
	std::vector<Sender> m_senders;
	ns3::Ptr<ns3::UniformRandomVariable> m_random;
	ns3::EventId m_limit;
	uint32_t m_unfinished = 0;
	Counts m_before;
	bool m_warm = false; /* the first round, which does not count, is over */
	ns3::Time m_began;
};

} /* namespace vsnoop */

#endif
