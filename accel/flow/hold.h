/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Decisions about a flow with a hold (the report's shared buffer). The host acknowledges only bytes
 * of which the hold has a copy.
 *
 * A segment within the VM's window is copied and goes to the VM at once: as a clone whose original
 * becomes the early ACK, or itself where a later ACK covers it (hold_choose_hand()). A segment
 * beyond the window, or one that the ring refuses, is copied and waits (FLOW_HOLDING). The engine
 * hands it over in order once the VM's window has room. Until the engine has handed over
 * everything, segments of the sender are kept behind it, or dropped:
 *
 *   in order          kept, acknowledged at once or with the next; in the last memory of the hold
 *                     it is kept, and acknowledged when the VM has taken what is held before it
 *   a pure ACK        forwarded at once, with SEQ = high_seq
 *   a probe, old data answered by the host
 *   beyond a hole     kept, NEXT_SEQ acknowledged again with SACK (four ranges)
 *   FIN               recorded, and sent to the VM by the engine
 *   RST               with SEQ = NEXT_SEQ: forwarded like a pure ACK, the held bytes are given up
 *   URG, or an option that is not understood: dropped; the sender repeats it, and the VM gets it
 *                     once everything is handed over.  If it would fill a hole, the ranges beyond
 *                     the hole are forgotten: with them the flow could not leave HOLDING.
 *
 * A segment that the VM does not get may still have an ACK of the VM's data, or a window update.
 * These go to the VM at once, as a pure ACK (EVENT_SENDER_ACK, hold_fill_sender_ack()).
 *
 * hold_to_vm() decides about a segment. With TO_VM_KEEP it has claimed the chain (`claimed`); the
 * caller copies, hands over according to out->hand, and calls flow_kept(), which moves NEXT_SEQ and
 * fills in the ACK.
 *
 * Out-of-order ranges are in hold_ranges.h, the engine and the window in hold_state.h, the sender's
 * ACKs in hold_sender.h, the VM's in hold_vm.h; hold_to_vm.h decides about a segment, hold_kept.h
 * after it was copied.
 */
#ifndef VSNOOP_FLOW_HOLD_H
#define VSNOOP_FLOW_HOLD_H

#include "hold_kept.h"
#include "hold_vm.h"

#endif
