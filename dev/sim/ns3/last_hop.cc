/* SPDX-License-Identifier: GPL-2.0-only */
#include "last_hop.h"

#include <algorithm>

#include <ns3/ipv4-header.h>

namespace vsnoop
{

using namespace ns3;

NS_OBJECT_ENSURE_REGISTERED(LastHop);

TypeId LastHop::GetTypeId()
{
	static TypeId id = TypeId("vsnoop::LastHop")
				   .SetParent<Queue<Packet>>()
				   .SetGroupName("Network")
				   .AddConstructor<LastHop>();
	return id;
}

void LastHop::Set(Ptr<SharedBuffer> buffer, uint64_t limit, uint64_t mark)
{
	SetMaxSize(QueueSize(QueueSizeUnit::PACKETS, UINT32_MAX));
	m_buffer = buffer;
	m_limit = limit;
	m_mark = mark;
}

uint64_t LastHop::Limit() const
{
	if (m_buffer->alpha <= 0)
		return m_limit;
	uint64_t left = m_buffer->total - std::min(m_buffer->total, m_buffer->used);
	return std::min(left + m_bytes, static_cast<uint64_t>(m_buffer->alpha * left));
}

/* Sets CE on a packet that says that its ends understand it (RFC 3168). */
static bool mark_ce(Ptr<Packet> packet)
{
	Ipv4Header header;

	packet->PeekHeader(header);
	if (header.GetEcn() == Ipv4Header::ECN_NotECT)
		return false;
	packet->RemoveHeader(header);
	header.SetEcn(Ipv4Header::ECN_CE);
	packet->AddHeader(header);
	return true;
}

bool LastHop::Enqueue(Ptr<Packet> packet)
{
	uint64_t bytes = packet->GetSize() + ETHERNET_BYTES;

	if (m_bytes + bytes > Limit()) {
		drops++;
		DropBeforeEnqueue(packet);
		return false;
	}
	if (m_mark && m_bytes > m_mark && mark_ce(packet))
		marks++;
	m_bytes += bytes;
	m_buffer->used += bytes;
	most = std::max(most, m_bytes);
	return DoEnqueue(GetContainer().end(), packet);
}

void LastHop::Release(Ptr<Packet> packet)
{
	uint64_t bytes = packet ? packet->GetSize() + ETHERNET_BYTES : 0;

	m_bytes -= bytes;
	m_buffer->used -= bytes;
}

Ptr<Packet> LastHop::Dequeue()
{
	Ptr<Packet> packet = DoDequeue(GetContainer().begin());

	Release(packet);
	return packet;
}

Ptr<Packet> LastHop::Remove()
{
	Ptr<Packet> packet = DoRemove(GetContainer().begin());

	Release(packet);
	return packet;
}

Ptr<const Packet> LastHop::Peek() const
{
	return DoPeek(GetContainer().begin());
}

} /* namespace vsnoop */
