/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Flows without an end. All but one begin together, and the last one in the middle of the time:
 * how soon has it its share, and how equal are the shares of all at last?
 */
#ifndef VSNOOP_SIM_FLOWS_H
#define VSNOOP_SIM_FLOWS_H

#include <vector>

#include <ns3/socket.h>

#include "network.h"
#include "sender_socket.h"

namespace vsnoop
{

class Flows
{
      public:
	Flows(const Cell &cell, Network &network);

	void Run();

	double jain = 0; /* index of Jain, Chiu and Hawe (1984), of the last quarter */
	double goodput_mbps = 0; /* of the last quarter */
	double least_share = 0; /* of the slowest flow there, over the fair share */
	double converged_ms = -1; /* until the last flow has nine tenths of its share; -1: never */
	uint64_t timeouts = 0;

      private:
	struct Flow {
		ns3::Ptr<ns3::Socket> listener;
		ns3::Ptr<SenderSocket> socket;
		ns3::Ptr<ns3::Socket> client;
		uint64_t received = 0;
	};

	void Connect(uint32_t number);
	void Accepted(uint32_t number, ns3::Ptr<ns3::Socket> socket);
	void Received(uint32_t number, ns3::Ptr<ns3::Socket> socket);
	void Fill(ns3::Ptr<ns3::Socket> socket, uint32_t room);
	void Sample();
	void BeginLastQuarter();
	void End();

	Cell m_cell;
	Network &m_network;
	std::vector<Flow> m_flows;
	ns3::Time m_joined;
	/* Bytes that the last flow had at each sample. */
	std::vector<uint64_t> m_samples;
	std::vector<uint64_t> m_before;
};

} /* namespace vsnoop */

#endif
