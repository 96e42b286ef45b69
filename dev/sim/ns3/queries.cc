/* SPDX-License-Identifier: GPL-2.0-only */
#include "queries.h"

#include <ns3/simulator.h>

#include "connections.h"

namespace vsnoop
{

using namespace ns3;

static const uint32_t REQUEST = 8;
/* Connections are opened one after the other: from one to the next, and then until the first
 * round. */
static const uint64_t CONNECT_US = 20;
static const uint64_t SETTLE_MS = 50;

Queries::Queries(const Cell &cell, Network &network)
    : m_cell(cell), m_network(network), m_senders(cell.senders + cell.background),
      m_random(CreateObject<UniformRandomVariable>())
{
	for (uint32_t number = 0; number < m_senders.size(); number++) {
		m_senders[number].listener = Listen(
			network.senders.Get(number),
			OnSocket([this, number](Ptr<Socket> socket) { Accepted(number, socket); }));
		Simulator::Schedule(MicroSeconds(CONNECT_US * number), &Queries::Connect, this,
				    number);
	}
	Time settled = MicroSeconds(CONNECT_US * m_senders.size()) + MilliSeconds(SETTLE_MS);
	Simulator::Schedule(settled, &Queries::Begin, this);
}

void Queries::Connect(uint32_t number)
{
	OnSocket received([this, number](Ptr<Socket> socket) { Received(number, socket); });

	m_senders[number].client = ConnectToSender(m_network, number, received);
}

void Queries::Accepted(uint32_t number, Ptr<Socket> socket)
{
	Sender &sender = m_senders[number];

	sender.socket = DynamicCast<SenderSocket>(socket);
	socket->SetRecvCallback(Callback<void, Ptr<Socket>>(
		[this, number](Ptr<Socket> from) { Asked(number, from); }));
	socket->SetSendCallback(Callback<void, Ptr<Socket>, uint32_t>(
		[this, number](Ptr<Socket> to, uint32_t room) { Write(number, to, room); }));
	if (number >= m_cell.senders) {
		sender.unwritten = UINT64_MAX / 2;
		Write(number, socket, 0);
	}
}

Queries::Counts Queries::Now() const
{
	Counts now;

	now.drops = m_network.last_hop->drops;
	for (const Sender &sender : m_senders) {
		now.timeouts += sender.socket ? sender.socket->timeouts : 0;
		now.probes += sender.socket ? sender.socket->probes : 0;
	}
	return now;
}

void Queries::Begin()
{
	m_before = Now();
	m_began = Simulator::Now();
	m_unfinished = m_cell.senders;
	m_limit = Simulator::Schedule(Seconds(m_cell.limit_s), &Queries::End, this, false);
	for (uint32_t number = 0; number < m_cell.senders; number++) {
		m_senders[number].asked = REQUEST;
		m_senders[number].wanted = m_cell.answer;
		m_senders[number].client->Send(Create<Packet>(REQUEST));
	}
}

void Queries::Asked(uint32_t number, Ptr<Socket> socket)
{
	Sender &sender = m_senders[number];

	while (Ptr<Packet> packet = socket->Recv()) {
		if (!packet->GetSize())
			break;
		sender.asked -= packet->GetSize();
		if (!sender.asked)
			Simulator::Schedule(NanoSeconds(static_cast<uint64_t>(
						    m_random->GetValue(0, m_cell.think_us) * 1e3)),
					    &Queries::Answer, this, number);
	}
}

void Queries::Answer(uint32_t number)
{
	m_senders[number].unwritten = m_cell.answer;
	Write(number, m_senders[number].socket, 0);
}

void Queries::Write(uint32_t number, Ptr<Socket> socket, uint32_t)
{
	Sender &sender = m_senders[number];

	while (sender.unwritten) {
		uint32_t len =
			std::min<uint64_t>({ sender.unwritten, CHUNK, socket->GetTxAvailable() });
		if (!len || socket->Send(Create<Packet>(len)) <= 0)
			return;
		sender.unwritten -= len;
	}
}

void Queries::Received(uint32_t number, Ptr<Socket> socket)
{
	Sender &sender = m_senders[number];

	while (Ptr<Packet> packet = socket->Recv()) {
		uint64_t len = packet->GetSize();
		if (!len)
			break;
		if (number >= m_cell.senders) {
			background_bytes += len;
			continue;
		}
		sender.wanted -= len;
		if (sender.wanted)
			continue;
		completions.push_back((Simulator::Now() - m_began).GetSeconds() * 1e3);
		if (!--m_unfinished)
			End(true);
	}
}

void Queries::End(bool ended)
{
	m_limit.Cancel();
	double ms = (Simulator::Now() - m_began).GetSeconds() * 1e3;
	Counts now = Now();
	bool first = !m_warm;
	m_warm = true;
	if (first && ended) {
		completions.clear();
		Simulator::Schedule(NanoSeconds(1), &Queries::Begin, this);
		return;
	}
	rounds.push_back({ ms, now.timeouts - m_before.timeouts, now.probes - m_before.probes,
			   now.drops - m_before.drops, ended });
	if (ended && rounds.size() < m_cell.rounds)
		Simulator::Schedule(NanoSeconds(1), &Queries::Begin, this);
	else
		Simulator::Stop();
}

void Queries::Run()
{
	Simulator::Run();
}

} /* namespace vsnoop */
