/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The queue of a switch's port: limited in bytes, and by a dynamic threshold where ports share a
 * buffer (Choudhury and Hahne, 1998); it marks ECN-capable packets that find more than a threshold.
 */
#ifndef VSNOOP_SIM_LAST_HOP_H
#define VSNOOP_SIM_LAST_HOP_H

#include <ns3/packet.h>
#include <ns3/queue.h>

namespace vsnoop
{

/* Bytes of a frame before its IP packet. */
const uint32_t ETHERNET_BYTES = 14;

/* Memory that the ports of a switch share. */
struct SharedBuffer : public ns3::SimpleRefCount<SharedBuffer> {
	uint64_t total = 0;
	double alpha = 0; /* 0: a port has its own limit only */
	uint64_t used = 0;
};

class LastHop : public ns3::Queue<ns3::Packet>
{
      public:
	static ns3::TypeId GetTypeId();

	/* `limit`: bytes of frames. `mark`: 0: nothing is marked. */
	void Set(ns3::Ptr<SharedBuffer> buffer, uint64_t limit, uint64_t mark);
	bool Enqueue(ns3::Ptr<ns3::Packet> packet) override;
	ns3::Ptr<ns3::Packet> Dequeue() override;
	ns3::Ptr<ns3::Packet> Remove() override;
	ns3::Ptr<const ns3::Packet> Peek() const override;

	uint64_t drops = 0;
	uint64_t marks = 0;
	uint64_t most = 0; /* bytes */

      private:
	uint64_t Limit() const;
	void Release(ns3::Ptr<ns3::Packet> packet);

	ns3::Ptr<SharedBuffer> m_buffer;
	uint64_t m_limit = 0;
	uint64_t m_mark = 0;
	uint64_t m_bytes = 0;
};

} /* namespace vsnoop */

#endif
