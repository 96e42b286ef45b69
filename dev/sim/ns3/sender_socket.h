/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * ns-3's TCP with what a sender needs under small windows, and what ns-3 leaves out:
 *
 *   small windows  a window below a segment is used if nothing is in flight: at once if it is half
 *                  of the largest one seen, else after a timer (RFC 9293, section 3.8.6.2.1)
 *   right edge     bytes that were selectively acknowledged count in the receive window: ns-3 takes
 *                  what is in flight for what the window has used up, and then sends no bytes
 *   two segments   are the least congestion window but after a timeout, as in Linux: with one, each
 *                  segment waits for a delayed ACK
 *   PSH            on a segment that empties the queue (section 3.9.1.2)
 *   timer          with nothing in flight no retransmission timer runs (RFC 6298, section 5.2)
 *   RACK           no path of the simulated network reorders, so one selectively acknowledged
 *                  segment proves that older ones are lost, also those that were sent again (RFC
 *                  8985, section 6; of the latter the first at a time)
 *   tail loss      a probe after two round trips without an ACK (RFC 8985, section 7)
 *
 * It counts its timeouts.
 */
#ifndef VSNOOP_SIM_SENDER_SOCKET_H
#define VSNOOP_SIM_SENDER_SOCKET_H

#include <map>

#include <ns3/node.h>
#include <ns3/tcp-header.h>
#include <ns3/tcp-socket-base.h>

namespace vsnoop
{

class SenderSocket : public ns3::TcpSocketBase
{
      public:
	static ns3::TypeId GetTypeId();
	/* A socket of this node, with the congestion control of its TCP. */
	static ns3::Ptr<SenderSocket> Create(ns3::Ptr<ns3::Node> node);

	SenderSocket();
	SenderSocket(const SenderSocket &other);
	~SenderSocket() override;

	int Send(ns3::Ptr<ns3::Packet> packet, uint32_t flags) override;
	/* Sets PSH; connected to this socket once it is established. */
	static void Push(ns3::Ptr<const ns3::Packet> packet, const ns3::TcpHeader &header,
			 ns3::Ptr<const ns3::TcpSocketBase> socket);

	/* Without RACK and tail loss probes, as ns-3 has it, three duplicate ACKs prove a loss. */
	static bool has_rack;

	uint64_t timeouts = 0;
	uint64_t probes = 0;

      protected:
	void CompleteFork(ns3::Ptr<ns3::Packet> packet, const ns3::TcpHeader &header,
			  const ns3::Address &from, const ns3::Address &to) override;
	uint32_t SendDataPacket(ns3::SequenceNumber32 seq, uint32_t size, bool ack) override;
	ns3::Ptr<ns3::TcpSocketBase> Fork() override;
	void ReceivedAck(ns3::Ptr<ns3::Packet> packet, const ns3::TcpHeader &header) override;
	uint32_t AvailableWindow() const override;
	void ReTxTimeout() override;
	void PersistTimeout() override;

      private:
	void KeepTwoSegments();
	void UseSmallWindow(bool override_timer);
	void NoteDelivered(const ns3::TcpHeader &header);
	void RepeatLostHead();
	void ScheduleTailProbe();
	void ProbeTail();

	uint32_t m_largest_window = 0;
	ns3::EventId m_override;
	/* Order in which the segments that begin here were last sent. */
	std::map<ns3::SequenceNumber32, uint64_t> m_sent;
	uint64_t m_order = 0;
	uint64_t m_delivered = 0; /* the latest of them that has arrived */
	ns3::EventId m_tail_probe;
	bool m_probes_tail = false; /* a probe is in flight */
};

} /* namespace vsnoop */

#endif
