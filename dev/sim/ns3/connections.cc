/* SPDX-License-Identifier: GPL-2.0-only */
#include "connections.h"

#include <ns3/inet-socket-address.h>
#include <ns3/tcp-socket-factory.h>

#include "sender_socket.h"

namespace vsnoop
{

using namespace ns3;

Ptr<Socket> Listen(Ptr<Node> node, OnSocket accepted)
{
	Ptr<Socket> listener = SenderSocket::Create(node);

	listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), PORT));
	listener->Listen();
	listener->SetAcceptCallback(
		MakeNullCallback<bool, Ptr<Socket>, const Address &>(),
		Callback<void, Ptr<Socket>, const Address &>([accepted](Ptr<Socket> socket,
									const Address &) {
			socket->TraceConnectWithoutContext("Tx", MakeCallback(&SenderSocket::Push));
			accepted(socket);
		}));
	return listener;
}

Ptr<Socket> ConnectToSender(Network &network, uint32_t number, OnSocket received)
{
	Ptr<Node> vm = network.vms.Get(number % network.vms.GetN());
	Ptr<Socket> client = Socket::CreateSocket(vm, TcpSocketFactory::GetTypeId());

	client->Bind();
	client->Connect(InetSocketAddress(network.SenderAddress(number), PORT));
	client->SetRecvCallback(received);
	return client;
}

} /* namespace vsnoop */
