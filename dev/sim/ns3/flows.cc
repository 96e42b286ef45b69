/* SPDX-License-Identifier: GPL-2.0-only */
#include "flows.h"

#include <ns3/simulator.h>

#include "connections.h"

namespace vsnoop
{

using namespace ns3;

/* Connections are opened one after the other. */
static const uint64_t CONNECT_US = 20;
/* A rate is that of so many samples, in which a fair share has so many segments. */
static const uint32_t SAMPLES = 10;
static const uint32_t SEGMENTS = 50;
static const double SEGMENT_BITS = 8.0 * 1448;
static const double CLOSE = 0.9;

Flows::Flows(const Cell &cell, Network &network)
    : m_cell(cell), m_network(network), m_flows(cell.senders), m_joined(Seconds(cell.seconds / 2))
{
	for (uint32_t number = 0; number < m_flows.size(); number++) {
		m_flows[number].listener = Listen(
			network.senders.Get(number),
			OnSocket([this, number](Ptr<Socket> socket) { Accepted(number, socket); }));
		bool is_last = number + 1 == m_flows.size();
		Simulator::Schedule(is_last ? m_joined : MicroSeconds(CONNECT_US * number),
				    &Flows::Connect, this, number);
	}
	Simulator::Schedule(m_joined, &Flows::Sample, this);
	Simulator::Schedule(Seconds(cell.seconds * 3 / 4), &Flows::BeginLastQuarter, this);
	Simulator::Schedule(Seconds(cell.seconds), &Flows::End, this);
}

void Flows::Connect(uint32_t number)
{
	OnSocket received([this, number](Ptr<Socket> socket) { Received(number, socket); });

	m_flows[number].client = ConnectToSender(m_network, number, received);
}

void Flows::Accepted(uint32_t number, Ptr<Socket> socket)
{
	m_flows[number].socket = DynamicCast<SenderSocket>(socket);
	socket->SetSendCallback(Callback<void, Ptr<Socket>, uint32_t>(
		[this](Ptr<Socket> to, uint32_t room) { Fill(to, room); }));
	Fill(socket, 0);
}

void Flows::Fill(Ptr<Socket> socket, uint32_t)
{
	while (uint32_t len = std::min(CHUNK, socket->GetTxAvailable()))
		if (socket->Send(Create<Packet>(len)) <= 0)
			return;
}

void Flows::Received(uint32_t number, Ptr<Socket> socket)
{
	while (Ptr<Packet> packet = socket->Recv()) {
		if (!packet->GetSize())
			break;
		m_flows[number].received += packet->GetSize();
	}
}

void Flows::Sample()
{
	double fair_bps = m_cell.gbps * 1e9 / m_flows.size();
	Time step = Seconds(SEGMENTS * SEGMENT_BITS / SAMPLES / fair_bps);

	m_samples.push_back(m_flows.back().received);
	if (converged_ms < 0 && m_samples.size() > SAMPLES) {
		uint64_t before = m_samples[m_samples.size() - 1 - SAMPLES];
		double bits = 8.0 * (m_samples.back() - before);
		if (bits >= CLOSE * Cell::PAYLOAD * SEGMENTS * SEGMENT_BITS)
			converged_ms = (Simulator::Now() - m_joined).GetSeconds() * 1e3;
	}
	Simulator::Schedule(step, &Flows::Sample, this);
}

void Flows::BeginLastQuarter()
{
	for (const Flow &flow : m_flows)
		m_before.push_back(flow.received);
}

void Flows::End()
{
	double sum = 0, squares = 0, least = -1, quarter_s = m_cell.seconds / 4;

	for (uint32_t number = 0; number < m_flows.size(); number++) {
		double bits = 8.0 * (m_flows[number].received - m_before[number]);
		sum += bits;
		squares += bits * bits;
		least = least < 0 ? bits : std::min(least, bits);
		timeouts += m_flows[number].socket ? m_flows[number].socket->timeouts : 0;
	}
	goodput_mbps = sum / quarter_s / 1e6;
	if (sum > 0) {
		jain = sum * sum / squares / m_flows.size();
		least_share = least * m_flows.size() / sum;
	}
	Simulator::Stop();
}

void Flows::Run()
{
	Simulator::Run();
}

} /* namespace vsnoop */
