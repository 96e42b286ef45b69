/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The decision core of vsnoop: everything that may be decided about a TCP flow
 * to a VM, without touching a packet.
 *
 * Pure C with no kernel and no libc; the same source is compiled into the BPF
 * programs (bpf/), into a Rust crate for tests and fuzzing (vsnoop-flow), and
 * into simulators.  The caller parses, holds the flow's lock, asks, and acts:
 *
 *   setup.h    a flow begins           window.h   what the sender is shown
 *   to_vm.h    a segment to the VM     state.h    offline, online, promptness
 *   from_vm.h  a segment of the VM     seq.h      sequence numbers
 *   hold.h     a flow that the host keeps copies of
 *   incast.h   windows of all flows behind an uplink
 *   types.h    what all of them share with bpf/ and with user space
 */
#ifndef VSNOOP_FLOW_H
#define VSNOOP_FLOW_H

#include "from_vm.h"
#include "incast.h"
#include "setup.h"
#include "to_vm.h"

#endif
