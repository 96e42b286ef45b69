/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The uplink of a port (flow/incast.h): one record, shared by the programs of all its ports and by
 * the uplink's own (uplink.bpf.c). The loader replaces this map by the uplink's pinned one.
 */
#ifndef VSNOOP_BPF_UPLINK_H
#define VSNOOP_BPF_UPLINK_H

#include "kernel.h"
#include "flow.h"

struct uplink uplink SEC(".data.uplink") = {};

#endif
