/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Senders behind a switch, and a host with VMs behind its last hop:
 *
 *   sender --+                         uplink +------+ tap --- VM
 *   sender --+-- switch [last hop] ----------- | host |
 *   sender --+                                 +------+ tap --- VM
 *
 * Each sender has a link and a node of its own. A frame has the headers, preamble and gap of
 * Ethernet on the last hop: rates are lowered by what they take of a full frame.
 */
#ifndef VSNOOP_SIM_NETWORK_H
#define VSNOOP_SIM_NETWORK_H

#include <memory>

#include <ns3/node-container.h>
#include <ns3/simple-net-device.h>

#include "cell.h"
#include "host_hooks.h"
#include "last_hop.h"

namespace vsnoop
{

struct Network {
	explicit Network(const Cell &cell);

	ns3::Ipv4Address SenderAddress(uint32_t number) const;
	ns3::Ipv4Address VmAddress(uint32_t number) const;

	ns3::NodeContainer senders;
	ns3::NodeContainer vms;
	ns3::Ptr<LastHop> last_hop;
	ns3::Ptr<HostHooks> host;

      private:
	std::vector<uint32_t> m_waits_us;
};

} /* namespace vsnoop */

#endif
