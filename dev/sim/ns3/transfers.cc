/* SPDX-License-Identifier: GPL-2.0-only */
#include "transfers.h"

#include <ns3/inet-socket-address.h>
#include <ns3/simulator.h>

#include "connections.h"

namespace vsnoop
{

using namespace ns3;

/* A request for a download, and the response to an upload. */
static const uint64_t SHORT = 100;
/* Simulated time that all transfers may take. */
static const Time LIMIT = Seconds(1200);

Transfers::Transfers(const Cell &cell, Network &network)
    : of_vm(cell.vms), m_cell(cell), m_network(network),
      m_request(cell.kind == "downloads" ? SHORT : cell.answer),
      m_response(cell.kind == "downloads" ? cell.answer : SHORT), m_peers(cell.senders),
      m_random(CreateObject<UniformRandomVariable>()), m_unfinished(cell.senders)
{
	for (uint32_t vm = 0; vm < cell.vms; vm++)
		m_listeners.push_back(
			Listen(network.vms.Get(vm), MakeCallback(&Transfers::Accepted, this)));
	for (uint32_t number = 0; number < m_peers.size(); number++)
		Pause(number);
}

void Transfers::Pause(uint32_t number)
{
	double pause_s = m_random->GetValue(0, m_cell.gap_ms) / 1e3;

	Simulator::Schedule(Seconds(pause_s), &Transfers::Begin, this, number);
}

/* A port of its own for each connection: vsnoop-world tells those of a VM apart by ports. */
void Transfers::Begin(uint32_t number)
{
	Peer &peer = m_peers[number];
	Ipv4Address vm = m_network.VmAddress(number % m_cell.vms);

	m_port = m_port < 60000 ? m_port + 1 : 10000;
	peer.socket = SenderSocket::Create(m_network.senders.Get(number));
	if (SenderSocket::has_rack)
		peer.socket->SetRetxThresh(1);
	peer.socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), m_port));
	peer.socket->TraceConnectWithoutContext("Tx", MakeCallback(&SenderSocket::Push));
	peer.socket->SetConnectCallback(Callback<void, Ptr<Socket>>([this, number](Ptr<Socket> to) {
						Write(to, m_peers[number].end);
					}),
					MakeNullCallback<void, Ptr<Socket>>());
	peer.socket->SetSendCallback(Callback<void, Ptr<Socket>, uint32_t>(
		[this, number](Ptr<Socket> to, uint32_t) { Write(to, m_peers[number].end); }));
	peer.socket->SetRecvCallback(Callback<void, Ptr<Socket>>(
		[this, number](Ptr<Socket> from) { Answered(number, from); }));
	peer.end = { m_request, m_response };
	peer.began = Simulator::Now();
	peer.socket->Connect(InetSocketAddress(vm, PORT));
}

void Transfers::Accepted(Ptr<Socket> socket)
{
	m_served[socket] = { 0, m_request };
	socket->SetRecvCallback(MakeCallback(&Transfers::Asked, this));
	socket->SetSendCallback(Callback<void, Ptr<Socket>, uint32_t>(
		[this](Ptr<Socket> to, uint32_t) { Write(to, m_served[to]); }));
	socket->SetCloseCallbacks(
		Callback<void, Ptr<Socket>>([](Ptr<Socket> closed) { closed->Close(); }),
		MakeNullCallback<void, Ptr<Socket>>());
	Asked(socket);
}

void Transfers::Read(Ptr<Socket> socket, End &end)
{
	while (Ptr<Packet> packet = socket->Recv()) {
		if (!packet->GetSize())
			break;
		end.unread -= packet->GetSize();
	}
}

void Transfers::Write(Ptr<Socket> socket, End &end)
{
	while (uint32_t len =
		       std::min<uint64_t>({ end.unwritten, CHUNK, socket->GetTxAvailable() })) {
		if (socket->Send(Create<Packet>(len)) <= 0)
			return;
		end.unwritten -= len;
	}
}

void Transfers::Asked(Ptr<Socket> socket)
{
	End &end = m_served[socket];
	bool is_asked = end.unread > 0;

	Read(socket, end);
	if (!is_asked || end.unread)
		return;
	end.unwritten = m_response;
	Write(socket, end);
}

void Transfers::Answered(uint32_t number, Ptr<Socket> socket)
{
	Peer &peer = m_peers[number];

	if (socket != peer.socket || !peer.end.unread)
		return;
	Read(socket, peer.end);
	if (peer.end.unread)
		return;
	double ms = (Simulator::Now() - peer.began).GetSeconds() * 1e3;
	timeouts += peer.socket->timeouts;
	socket->Close();
	if (peer.done++) { /* the first one does not count */
		durations.push_back(ms);
		of_vm[number % m_cell.vms].push_back(ms);
	}
	if (peer.done <= m_cell.rounds)
		Pause(number);
	else if (!--m_unfinished) {
		ended = true;
		Simulator::Stop();
	}
}

void Transfers::Run()
{
	Simulator::Stop(LIMIT);
	Simulator::Run();
	for (const auto &[socket, end] : m_served)
		timeouts += DynamicCast<SenderSocket>(socket)->timeouts;
}

} /* namespace vsnoop */
