/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The uplink that a port is behind (flow/incast.h).  One record, shared by the
 * programs of all its ports and by the uplink's own (uplink.bpf.c): the loader puts
 * the uplink's pinned map in the place of this one.
 */
#ifndef VSNOOP_BPF_UPLINK_H
#define VSNOOP_BPF_UPLINK_H

#include "kernel.h"
#include "flow.h"

struct uplink uplink SEC(".data.uplink") = {};

#endif
