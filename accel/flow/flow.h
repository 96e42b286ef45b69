/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The decision core of vsnoop: all decisions about a TCP flow to a VM. It touches no packet.
 *
 * Pure C with no kernel and no libc; the same source is compiled into the BPF programs (bpf/), into
 * a Rust crate for tests and fuzzing (vsnoop-flow), and into simulators. The caller parses a
 * packet, locks the flow, calls a decision, and acts on its verdict:
 *
 *   setup.h    a flow begins           window.h   what the sender is shown
 *   to_vm.h    a segment to the VM     state.h    offline, online, promptness
 *   from_vm.h  a segment of the VM     seq.h      sequence numbers
 *   hold.h     a flow with a hold: copies of what the host acknowledges
 *   far_end.h  is the VM the far end, or does it forward?
 *   lease.h, vm_lease.h: segments of passive flows, without a full decision
 *   split.h    which connections are worth two sockets of the host
 *   incast.h   windows of all flows behind an uplink
 *   types.h    types shared with bpf/ and with user space
 */
#ifndef VSNOOP_FLOW_H
#define VSNOOP_FLOW_H

#include "from_vm.h"
#include "incast.h"
#include "lease.h"
#include "setup.h"
#include "split.h"
#include "to_vm.h"
#include "vm_lease.h"

#endif
