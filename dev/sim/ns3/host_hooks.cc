/* SPDX-License-Identifier: GPL-2.0-only */
#include "host_hooks.h"

#include <cstring>

#include <ns3/packet.h>
#include <ns3/simulator.h>

#include "last_hop.h"

namespace vsnoop
{

using namespace ns3;

static uint64_t now_ns()
{
	return Simulator::Now().GetNanoSeconds();
}

HostHooks::HostHooks(Ptr<NetDevice> uplink, const vsnoop_sim_settings *settings)
    : m_uplink(uplink), m_simulated(settings),
      m_settings(settings ? *settings : vsnoop_sim_settings())
{
	uplink->SetPromiscReceiveCallback(MakeCallback(&HostHooks::FromUplink, this));
}

HostHooks::~HostHooks()
{
	if (m_host)
		vsnoop_sim_free(m_host);
}

void HostHooks::AddTap(Ptr<NetDevice> tap, Mac48Address vm)
{
	uint32_t port = m_taps.size();

	m_taps.push_back(tap);
	m_ports[vm] = port;
	tap->SetPromiscReceiveCallback(MakeCallback(&HostHooks::FromTap, this, port));
}

void HostHooks::Start()
{
	if (!m_simulated)
		return;
	m_settings.ports = m_taps.size();
	m_host = vsnoop_sim_new(&m_settings);
	Run();
}

vsnoop_sim_counts HostHooks::Counts()
{
	vsnoop_sim_counts counts = {};

	if (m_host)
		vsnoop_sim_count(m_host, &counts);
	return counts;
}

const uint8_t *HostHooks::Frame(Ptr<const Packet> packet, uint16_t protocol, const Address &from,
				const Address &to)
{
	uint32_t len = packet->GetSize();

	m_frame.resize(ETHERNET_BYTES + len);
	Mac48Address::ConvertFrom(to).CopyTo(m_frame.data());
	Mac48Address::ConvertFrom(from).CopyTo(m_frame.data() + 6);
	m_frame[12] = protocol >> 8;
	m_frame[13] = protocol & 0xff;
	packet->CopyData(m_frame.data() + ETHERNET_BYTES, len);
	return m_frame.data();
}

bool HostHooks::FromUplink(Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t protocol,
			   const Address &from, const Address &to, NetDevice::PacketType)
{
	auto found = m_ports.find(Mac48Address::ConvertFrom(to));

	if (found == m_ports.end())
		return false;
	if (!m_host) {
		m_taps[found->second]->SendFrom(packet->Copy(), from, to, protocol);
		return true;
	}
	const uint8_t *frame = Frame(packet, protocol, from, to);
	vsnoop_sim_to_vm(m_host, found->second, frame, m_frame.size(), now_ns());
	Settle();
	return true;
}

bool HostHooks::FromTap(uint32_t port, Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t protocol,
			const Address &from, const Address &to, NetDevice::PacketType)
{
	if (!m_host) {
		m_uplink->SendFrom(packet->Copy(), from, to, protocol);
		return true;
	}
	const uint8_t *frame = Frame(packet, protocol, from, to);
	vsnoop_sim_from_vm(m_host, port, frame, m_frame.size(), now_ns());
	Settle();
	return true;
}

void HostHooks::SendAll()
{
	vsnoop_sim_frame frame;

	while (vsnoop_sim_take(m_host, &frame)) {
		Mac48Address to, from;

		to.CopyFrom(frame.bytes);
		from.CopyFrom(frame.bytes + 6);
		uint16_t protocol = frame.bytes[12] << 8 | frame.bytes[13];
		Ptr<Packet> packet =
			Create<Packet>(frame.bytes + ETHERNET_BYTES, frame.len - ETHERNET_BYTES);
		Ptr<NetDevice> device = frame.to_vm ? m_taps[frame.port] : m_uplink;
		device->SendFrom(packet, from, to, protocol);
	}
}

/* The host may have to run sooner than it said. */
void HostHooks::Settle()
{
	SendAll();
	uint64_t next = vsnoop_sim_next(m_host, now_ns());
	if (next == UINT64_MAX || (m_event.IsRunning() && m_event_ns <= next))
		return;
	m_event.Cancel();
	m_event_ns = next;
	m_event = Simulator::Schedule(NanoSeconds(next - now_ns()), &HostHooks::Run, this);
}

void HostHooks::Run()
{
	vsnoop_sim_run(m_host, now_ns());
	Settle();
}

} /* namespace vsnoop */
