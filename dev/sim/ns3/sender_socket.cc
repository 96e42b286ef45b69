/* SPDX-License-Identifier: GPL-2.0-only */
#include "sender_socket.h"

#include <ns3/object-factory.h>
#include <ns3/rtt-estimator.h>
#include <ns3/simulator.h>
#include <ns3/tcp-congestion-ops.h>
#include <ns3/tcp-l4-protocol.h>
#include <ns3/tcp-option-sack.h>
#include <ns3/tcp-prr-recovery.h>
#include <ns3/tcp-tx-buffer.h>

namespace vsnoop
{

using namespace ns3;

NS_OBJECT_ENSURE_REGISTERED(SenderSocket);

TypeId SenderSocket::GetTypeId()
{
	static TypeId id = TypeId("vsnoop::SenderSocket")
				   .SetParent<TcpSocketBase>()
				   .SetGroupName("Internet")
				   .AddConstructor<SenderSocket>();
	return id;
}

bool SenderSocket::has_rack = true;

SenderSocket::SenderSocket() = default;

SenderSocket::SenderSocket(const SenderSocket &other) : TcpSocketBase(other)
{
}

SenderSocket::~SenderSocket()
{
	m_override.Cancel();
	m_tail_probe.Cancel();
}

Ptr<SenderSocket> SenderSocket::Create(Ptr<Node> node)
{
	Ptr<TcpL4Protocol> tcp = node->GetObject<TcpL4Protocol>();
	Ptr<SenderSocket> socket = CreateObject<SenderSocket>();
	TypeIdValue type;

	tcp->GetAttribute("SocketType", type);
	ObjectFactory control;
	control.SetTypeId(type.Get());
	socket->SetNode(node);
	socket->SetTcp(tcp);
	socket->SetRtt(CreateObject<RttMeanDeviation>());
	socket->SetCongestionControlAlgorithm(control.Create<TcpCongestionOps>());
	socket->SetRecoveryAlgorithm(CreateObject<TcpPrrRecovery>());
	tcp->AddSocket(socket);
	return socket;
}

void SenderSocket::CompleteFork(Ptr<Packet> packet, const TcpHeader &header, const Address &from,
				const Address &to)
{
	if (has_rack)
		SetRetxThresh(1);
	TcpSocketBase::CompleteFork(packet, header, from, to);
}

Ptr<TcpSocketBase> SenderSocket::Fork()
{
	return CopyObject<SenderSocket>(this);
}

/* The header is the socket's own, about to be sent: there is no other way to it. */
void SenderSocket::Push(Ptr<const Packet> packet, const TcpHeader &header,
			Ptr<const TcpSocketBase> socket)
{
	const SenderSocket *own = static_cast<const SenderSocket *>(PeekPointer(socket));
	SequenceNumber32 end = header.GetSequenceNumber() + packet->GetSize();

	if (packet->GetSize() && end == own->m_txBuffer->TailSequence())
		const_cast<TcpHeader &>(header).SetFlags(header.GetFlags() | TcpHeader::PSH);
}

int SenderSocket::Send(Ptr<Packet> packet, uint32_t flags)
{
	int sent = TcpSocketBase::Send(packet, flags);

	/* The base class may have put off sending to an event of its own. */
	if (sent > 0)
		Simulator::ScheduleNow(&SenderSocket::UseSmallWindow, Ptr<SenderSocket>(this),
				       false);
	return sent;
}

void SenderSocket::ReceivedAck(Ptr<Packet> packet, const TcpHeader &header)
{
	NoteDelivered(header);
	TcpSocketBase::ReceivedAck(packet, header);
	/* The base class has it run while all that is left waits for the window. */
	if (!BytesInFlight())
		m_retxEvent.Cancel();
	KeepTwoSegments();
	RepeatLostHead();
	UseSmallWindow(false);
	ScheduleTailProbe();
}

uint32_t SenderSocket::SendDataPacket(SequenceNumber32 seq, uint32_t size, bool ack)
{
	uint32_t sent = TcpSocketBase::SendDataPacket(seq, size, ack);

	m_sent[seq] = ++m_order;
	ScheduleTailProbe();
	return sent;
}

void SenderSocket::NoteDelivered(const TcpHeader &header)
{
	SequenceNumber32 ack = header.GetAckNumber();
	auto note = [this](SequenceNumber32 from, SequenceNumber32 to) {
		for (auto at = m_sent.lower_bound(from); at != m_sent.end() && at->first < to; ++at)
			m_delivered = std::max(m_delivered, at->second);
	};

	if (m_sent.empty())
		return;
	if (ack > m_sent.begin()->first) {
		note(m_sent.begin()->first, ack);
		m_sent.erase(m_sent.begin(), m_sent.lower_bound(ack));
		m_probes_tail = false;
	}
	if (!header.HasOption(TcpOption::SACK))
		return;
	auto option = DynamicCast<const TcpOptionSack>(header.GetOption(TcpOption::SACK));
	for (const auto &[from, to] : option->GetSackList())
		note(from, to);
}

/* A segment that was sent later has arrived: the one sent again is lost as well. */
void SenderSocket::RepeatLostHead()
{
	auto head = m_sent.find(m_txBuffer->HeadSequence());

	if (!has_rack || head == m_sent.end() || head->second >= m_delivered ||
	    !m_txBuffer->IsHeadRetransmitted())
		return;
	m_txBuffer->DeleteRetransmittedFlagFromHead();
	SendPendingData(m_connected);
}

/* As Linux: only while nothing is known to be lost, one probe at a time. */
void SenderSocket::ScheduleTailProbe()
{
	/* TCP_TIMEOUT_MIN_US */
	const Time least = MilliSeconds(2);
	uint32_t in_flight = BytesInFlight();

	m_tail_probe.Cancel();
	if (!has_rack || m_probes_tail || !in_flight || m_txBuffer->GetSacked() ||
	    (m_tcb->m_congState != TcpSocketState::CA_OPEN &&
	     m_tcb->m_congState != TcpSocketState::CA_CWR))
		return;
	bool is_alone = in_flight <= m_tcb->m_segmentSize;
	Time patience = 2 * m_rtt->GetEstimate() + (is_alone ? m_minRto : least);
	if (m_retxEvent.IsRunning() && Simulator::GetDelayLeft(m_retxEvent) <= patience)
		return;
	m_tail_probe = Simulator::Schedule(patience, &SenderSocket::ProbeTail, this);
}

void SenderSocket::ProbeTail()
{
	if (!m_endPoint) /* the connection has ended */
		return;
	m_probes_tail = true;
	if (SendPendingData(m_connected) || m_sent.empty())
		return;
	/* Nothing new may be sent: the last segment again. */
	SequenceNumber32 last = m_sent.rbegin()->first;
	SequenceNumber32 end = std::min(m_tcb->m_highTxMark.Get(), m_txBuffer->TailSequence());
	if (last < end)
		SendDataPacket(last, end - last, m_connected);
}

uint32_t SenderSocket::AvailableWindow() const
{
	bool recovers = m_tcb->m_congState == TcpSocketState::CA_RECOVERY;
	uint32_t available = TcpSocketBase::AvailableWindow();
	SequenceNumber32 next, end;

	if (!available || !m_txBuffer->NextSeg(&next, &end, recovers))
		return available;
	/* The right edge is at `end`, or within a segment of new data. */
	bool is_new = next >= m_tcb->m_highTxMark.Get();
	bool is_cut = end - next < static_cast<int32_t>(m_tcb->m_segmentSize) &&
		      end < m_txBuffer->TailSequence();
	return end <= next || (is_new && is_cut) ? 0 : available;
}

void SenderSocket::KeepTwoSegments()
{
	uint32_t least = 2 * m_tcb->m_segmentSize;

	if (m_tcb->m_congState == TcpSocketState::CA_LOSS || m_tcb->m_cWnd >= least)
		return;
	m_tcb->m_cWnd = least;
	m_tcb->m_cWndInfl = least;
	m_tcb->m_ssThresh = std::max(m_tcb->m_ssThresh.Get(), least);
	SendPendingData(m_connected);
}

void SenderSocket::UseSmallWindow(bool override_timer)
{
	/* Linux: TCP_RTO_MIN, by the timer that probes closed windows. */
	const Time patience = MilliSeconds(200);
	uint32_t window = m_rWnd;
	SequenceNumber32 next, end;

	m_largest_window = std::max(m_largest_window, window);
	m_override.Cancel();
	if (!window || window >= m_tcb->m_segmentSize || !m_connected || BytesInFlight() ||
	    !m_txBuffer->NextSeg(&next, &end, false))
		return;
	if (window < m_largest_window / 2 && !override_timer) {
		m_override =
			Simulator::Schedule(patience, &SenderSocket::UseSmallWindow, this, true);
		return;
	}
	SequenceNumber32 edge = m_txBuffer->HeadSequence() + window;
	if (next >= edge || next >= end)
		return;
	probes += override_timer && m_tcb->m_congState != TcpSocketState::CA_LOSS;
	uint32_t sent = SendDataPacket(next, std::min(edge, end) - next, m_connected);
	if (next == m_tcb->m_nextTxSequence.Get())
		m_tcb->m_nextTxSequence += sent;
}

void SenderSocket::ReTxTimeout()
{
	timeouts += m_txBuffer->SizeFromSequence(m_txBuffer->HeadSequence()) > 0;
	m_tail_probe.Cancel();
	m_probes_tail = false;
	TcpSocketBase::ReTxTimeout();
	UseSmallWindow(true);
}

void SenderSocket::PersistTimeout()
{
	probes++;
	TcpSocketBase::PersistTimeout();
}

} /* namespace vsnoop */
