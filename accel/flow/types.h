/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Types that the BPF programs, the Rust user space and the tests share, by subject. Rust's view of
 * these types is generated from these files (accel/vsnoop-flow).
 *
 *   types/abi.h              the ABI number, the pinned record of an attachment
 *   types/segment.h          a TCP segment, parsed or to be sent
 *   types/flow_record.h      a flow's key, mode and record; handshakes
 *   types/hold_record.h      the hold: copies of what the host has acknowledged
 *   types/verdict.h          verdicts and outcomes
 *   types/port.h             a port's settings and state
 *   types/stats.h            a port's counters
 *   types/incast_accounts.h  incast control of a flow and of a port
 *   types/uplink_record.h    incast control of an uplink
 *   types/split_records.h    split connections
 *
 * "The sender" is the remote end that sends data to the VM. Times are CLOCK_MONOTONIC in
 * nanoseconds.
 */
#ifndef VSNOOP_FLOW_TYPES_H
#define VSNOOP_FLOW_TYPES_H

#include "types/abi.h"
#include "types/flow_record.h"
#include "types/hold_record.h"
#include "types/port.h"
#include "types/segment.h"
#include "types/split_records.h"
#include "types/stats.h"
#include "types/uplink_record.h"
#include "types/verdict.h"

#endif
