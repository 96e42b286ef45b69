/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A host between its uplink and the taps of its VMs: frames pass the programs of bpf/ in both
 * directions (sim/core). Without a simulated kernel it is a bridge. Time is that of ns-3.
 */
#ifndef VSNOOP_SIM_HOST_HOOKS_H
#define VSNOOP_SIM_HOST_HOOKS_H

#include <map>
#include <vector>

#include <ns3/mac48-address.h>
#include <ns3/net-device.h>
#include <ns3/nstime.h>
#include <ns3/event-id.h>

#include "vsnoop_sim.h"

namespace vsnoop
{

class HostHooks : public ns3::SimpleRefCount<HostHooks>
{
      public:
	/* `settings`: null: a bridge and no more. Its number of ports is that of the taps. */
	HostHooks(ns3::Ptr<ns3::NetDevice> uplink, const vsnoop_sim_settings *settings);
	~HostHooks();

	/* Adds the tap of the VM with this address. */
	void AddTap(ns3::Ptr<ns3::NetDevice> tap, ns3::Mac48Address vm);
	/* All taps are there: the programs run from now on. */
	void Start();
	vsnoop_sim_counts Counts();

      private:
	bool FromUplink(ns3::Ptr<ns3::NetDevice> device, ns3::Ptr<const ns3::Packet> packet,
			uint16_t protocol, const ns3::Address &from, const ns3::Address &to,
			ns3::NetDevice::PacketType type);
	bool FromTap(uint32_t port, ns3::Ptr<ns3::NetDevice> device,
		     ns3::Ptr<const ns3::Packet> packet, uint16_t protocol,
		     const ns3::Address &from, const ns3::Address &to,
		     ns3::NetDevice::PacketType type);
	const uint8_t *Frame(ns3::Ptr<const ns3::Packet> packet, uint16_t protocol,
			     const ns3::Address &from, const ns3::Address &to);
	void Settle();
	void Run();
	void SendAll();

	ns3::Ptr<ns3::NetDevice> m_uplink;
	std::vector<ns3::Ptr<ns3::NetDevice>> m_taps;
	std::map<ns3::Mac48Address, uint32_t> m_ports;
	bool m_simulated;
	vsnoop_sim_settings m_settings;
	vsnoop_sim_host *m_host = nullptr;
	std::vector<uint8_t> m_frame;
	ns3::EventId m_event;
	uint64_t m_event_ns = UINT64_MAX;
};

} /* namespace vsnoop */

#endif
