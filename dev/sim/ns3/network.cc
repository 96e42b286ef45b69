/* SPDX-License-Identifier: GPL-2.0-only */
#include "network.h"

#include <sstream>

#include <ns3/arp-cache.h>
#include <ns3/boolean.h>
#include <ns3/bridge-net-device.h>
#include <ns3/config.h>
#include <ns3/double.h>
#include <ns3/drop-tail-queue.h>
#include <ns3/internet-stack-helper.h>
#include <ns3/ipv4.h>
#include <ns3/ipv4-interface.h>
#include <ns3/ipv4-l3-protocol.h>
#include <ns3/ipv4-static-routing-helper.h>
#include <ns3/random-variable-stream.h>
#include <ns3/simple-channel.h>
#include <ns3/string.h>
#include <ns3/tcp-socket.h>
#include <ns3/uinteger.h>

namespace vsnoop
{

using namespace ns3;

/* A full frame: its IP packet, and all that it takes of the wire. */
static const double FULL_PACKET = 1500;
static const double FULL_WIRE = 1538;
/* Payload of a full segment with timestamps. */
static const uint32_t SEGMENT = 1448;
/* Of a queue that is not to lose anything. */
static const uint32_t MANY_PACKETS = 1000000;
/* Until a lone segment is acknowledged. Linux takes 40 ms, or does it at once, by the history of
 * the connection, which ns-3 does not look at; but less than the least retransmission timeout
 * (tcp_delack_max()). */
static const Time LONE_ACK = MilliSeconds(1);
static const uint32_t SENDERS = 0x0a000001; /* 10.0.0.1, ... */
static const uint32_t VMS = 0x0a008001; /* 10.0.128.1, ... */

static void set_tcp(const Cell &cell)
{
	std::string type = cell.tcp == "reno"  ? "ns3::TcpLinuxReno" :
			   cell.tcp == "bbr"   ? "ns3::TcpBbr" :
			   cell.tcp == "dctcp" ? "ns3::TcpDctcp" :
						 "ns3::TcpCubic";
	uint64_t send_buffer = std::max<uint64_t>(4194304, cell.answer + 65536);
	Time rto = MicroSeconds(static_cast<uint64_t>(cell.rto_min_ms * 1000));

	Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue(type));
	Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(SEGMENT));
	Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
	Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(send_buffer));
	Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(cell.scale_bytes));
	Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(std::min(LONE_ACK, rto / 2)));
	Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(rto));
	Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(MicroSeconds(100)));
	if (cell.tcp == "dctcp")
		Config::SetDefault("ns3::TcpSocketBase::UseEcn", StringValue("On"));
}

static Ptr<SimpleNetDevice> device(Ptr<Node> node, Ptr<SimpleChannel> channel, double gbps)
{
	Ptr<SimpleNetDevice> device = CreateObject<SimpleNetDevice>();
	auto queue = CreateObject<DropTailQueue<Packet>>();

	queue->SetMaxSize(QueueSize(QueueSizeUnit::PACKETS, MANY_PACKETS));
	device->SetQueue(queue);
	device->SetAddress(Mac48Address::Allocate());
	if (gbps > 0)
		device->SetAttribute("DataRate", DataRateValue(DataRate(static_cast<uint64_t>(
							 gbps * 1e9 * FULL_PACKET / FULL_WIRE))));
	device->SetChannel(channel);
	node->AddDevice(device);
	return device;
}

static Ptr<SimpleChannel> channel(double delay_us)
{
	Ptr<SimpleChannel> channel = CreateObject<SimpleChannel>();

	channel->SetAttribute("Delay",
			      TimeValue(NanoSeconds(static_cast<uint64_t>(delay_us * 1e3))));
	return channel;
}

static void set_address(Ptr<NetDevice> device, Ipv4Address address)
{
	Ptr<Ipv4> ipv4 = device->GetNode()->GetObject<Ipv4>();
	uint32_t interface = ipv4->AddInterface(device);

	ipv4->AddAddress(interface, Ipv4InterfaceAddress(address, Ipv4Mask("255.255.0.0")));
	ipv4->SetUp(interface);
}

/* No ARP requests share the wire with what is measured. */
static void set_neighbour(Ptr<NetDevice> device, Ipv4Address address, Ptr<NetDevice> other)
{
	Ptr<Ipv4L3Protocol> ipv4 = device->GetNode()->GetObject<Ipv4L3Protocol>();
	Ptr<Ipv4Interface> interface = ipv4->GetInterface(ipv4->GetInterfaceForDevice(device));
	ArpCache::Entry *entry = interface->GetArpCache()->Add(address);

	entry->SetMacAddress(other->GetAddress());
	entry->MarkPermanent();
}

static vsnoop_sim_settings settings(const Cell &cell)
{
	vsnoop_sim_settings settings = {};

	settings.attached = cell.control != "off";
	settings.incast = cell.control == "incast" || cell.control == "incast-early";
	settings.early = cell.control == "early" || cell.control == "incast-early";
	if (cell.control == "split")
		settings.early = 2;
	settings.buffer_bytes = cell.buffer;
	if (cell.alpha > 0)
		settings.buffer_bytes = cell.buffer * cell.alpha / (1 + cell.alpha);
	settings.rate_bps = cell.gbps * 1e9;
	settings.hold_bytes = cell.hold;
	settings.stop_ms = cell.stop_ms;
	settings.period_ms = cell.period_ms;
	settings.ring_frames = 1024;
	settings.seed = cell.seed;
	return settings;
}

/* Numbers with commas between, an even number of them. */
static std::vector<uint32_t> numbers(const std::string &text)
{
	std::vector<uint32_t> numbers;
	std::istringstream stream(text);
	std::string number;

	while (std::getline(stream, number, ','))
		numbers.push_back(std::stoul(number));
	return numbers;
}

Ipv4Address Network::VmAddress(uint32_t number) const
{
	return Ipv4Address(VMS + number);
}

Ipv4Address Network::SenderAddress(uint32_t number) const
{
	return Ipv4Address(SENDERS + number);
}

Network::Network(const Cell &cell)
{
	set_tcp(cell);
	senders.Create(cell.senders + cell.background);
	vms.Create(cell.vms);
	InternetStackHelper stack;
	Ipv4StaticRoutingHelper routing;
	stack.SetRoutingHelper(routing);
	stack.SetIpv6StackInstall(false);
	stack.Install(senders);
	stack.Install(vms);

	Ptr<Node> middle = CreateObject<Node>(), receiver = CreateObject<Node>();
	/* A quarter of the round trip on each link, each way. */
	double quarter_us = cell.rtt_us / 4;
	Ptr<SimpleChannel> down = channel(quarter_us);
	Ptr<SimpleNetDevice> port = device(middle, down, cell.gbps);
	Ptr<SimpleNetDevice> uplink = device(receiver, down, cell.gbps);
	auto buffer = Create<SharedBuffer>();
	buffer->total = cell.buffer;
	buffer->alpha = cell.alpha;
	last_hop = CreateObject<LastHop>();
	last_hop->Set(buffer, cell.buffer, cell.mark);
	port->SetQueue(last_hop);

	Ptr<BridgeNetDevice> bridge = CreateObject<BridgeNetDevice>();
	bridge->SetAddress(Mac48Address::Allocate());
	middle->AddDevice(bridge);
	bridge->AddBridgePort(port);
	Ptr<UniformRandomVariable> random = CreateObject<UniformRandomVariable>();
	double gbps = cell.sender_gbps > 0 ? cell.sender_gbps : cell.gbps;
	std::vector<Ptr<NetDevice>> devices;
	for (uint32_t number = 0; number < senders.GetN(); number++) {
		Ptr<SimpleChannel> link =
			channel(quarter_us + random->GetValue(0, cell.jitter_us / 2));
		devices.push_back(device(senders.Get(number), link, gbps));
		bridge->AddBridgePort(device(middle, link, gbps));
		set_address(devices.back(), SenderAddress(number));
	}

	/* A host without vsnoop and with VMs that always run needs no simulated kernel. */
	bool simulated = cell.control != "off" || cell.stop_ms > 0 || !cell.waits_us.empty();
	vsnoop_sim_settings of_host = settings(cell);
	m_waits_us = numbers(cell.waits_us);
	of_host.waits_us = m_waits_us.data();
	of_host.waits = m_waits_us.size();
	host = Create<HostHooks>(uplink, simulated ? &of_host : nullptr);
	for (uint32_t number = 0; number < vms.GetN(); number++) {
		Ptr<SimpleChannel> link = channel(0);
		Ptr<NetDevice> of_vm = device(vms.Get(number), link, 0);
		Ptr<NetDevice> tap = device(receiver, link, cell.vm_gbps);
		Ipv4Address address = VmAddress(number);
		set_address(of_vm, address);
		host->AddTap(tap, Mac48Address::ConvertFrom(of_vm->GetAddress()));
		for (uint32_t sender = number; sender < senders.GetN(); sender += vms.GetN()) {
			set_neighbour(devices[sender], address, of_vm);
			set_neighbour(of_vm, SenderAddress(sender), devices[sender]);
		}
	}
	host->Start();
}

} /* namespace vsnoop */
