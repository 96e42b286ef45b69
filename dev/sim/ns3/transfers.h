/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Uploads to VMs and downloads from them: each peer has a VM, and transfers one after the other,
 * each over a connection of its own, with a random pause before it. A transfer lasts from the
 * connection's SYN until its peer has the whole response.
 */
#ifndef VSNOOP_SIM_TRANSFERS_H
#define VSNOOP_SIM_TRANSFERS_H

#include <map>
#include <vector>

#include <ns3/random-variable-stream.h>
#include <ns3/socket.h>

#include "network.h"
#include "sender_socket.h"

namespace vsnoop
{

class Transfers
{
      public:
	Transfers(const Cell &cell, Network &network);

	void Run();

	std::vector<double> durations; /* ms */
	std::vector<std::vector<double>> of_vm; /* those of each VM */
	uint64_t timeouts = 0; /* of senders, at the ends of their connections */
	bool ended = false;

      private:
	/* One end of a connection: bytes that it still has to write and to read. */
	struct End {
		uint64_t unwritten = 0;
		uint64_t unread = 0;
	};
	struct Peer {
		uint32_t done = 0;
		ns3::Ptr<SenderSocket> socket;
		End end;
		ns3::Time began;
	};

	void Begin(uint32_t number);
	void Pause(uint32_t number);
	void Read(ns3::Ptr<ns3::Socket> socket, End &end);
	void Write(ns3::Ptr<ns3::Socket> socket, End &end);
	void Answered(uint32_t number, ns3::Ptr<ns3::Socket> socket);
	void Asked(ns3::Ptr<ns3::Socket> socket);
	void Accepted(ns3::Ptr<ns3::Socket> socket);

	Cell m_cell;
	Network &m_network;
	uint64_t m_request; /* bytes of a request and of its response */
	uint64_t m_response;
	std::vector<Peer> m_peers;
	std::vector<ns3::Ptr<ns3::Socket>> m_listeners;
	/* What the VMs have to read and write. */
	std::map<ns3::Ptr<ns3::Socket>, End> m_served;
	ns3::Ptr<ns3::UniformRandomVariable> m_random;
	uint32_t m_unfinished;
	uint16_t m_port = 10000;
};

} /* namespace vsnoop */

#endif
