/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How connections of the simulated network begin.
 */
#ifndef VSNOOP_SIM_CONNECTIONS_H
#define VSNOOP_SIM_CONNECTIONS_H

#include <ns3/socket.h>

#include "network.h"

namespace vsnoop
{

/* All listeners have it. */
static const uint16_t PORT = 5001;
/* Bytes that are written at a time. */
static const uint32_t CHUNK = 65536;

using OnSocket = ns3::Callback<void, ns3::Ptr<ns3::Socket>>;

/* A listener of this node, whose sockets are SenderSockets. Calls `accepted` with each. */
ns3::Ptr<ns3::Socket> Listen(ns3::Ptr<ns3::Node> node, OnSocket accepted);

/* A connection of a VM to the listener of this sender. Calls `received` when bytes have come. */
ns3::Ptr<ns3::Socket> ConnectToSender(Network &network, uint32_t number, OnSocket received);

} /* namespace vsnoop */

#endif
