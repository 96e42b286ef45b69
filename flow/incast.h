/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Incast control: what all senders behind an uplink may have on their way at
 * once is bounded by what the last hop can take, and shared out by receive
 * windows (ICTCP: Wu, Feng, Guo, Zhang, CoNEXT 2010).
 *
 * Credit.  The last hop takes its queue (`buffer`; a quarter is kept for what nobody gave
 * credit for) and what is on the wire (C times the round trip of an empty queue).  A flow
 * owes the bytes between what was received of it and the right edge that it was granted; an
 * edge is only moved when credit is left for it, and received bytes are paid back.  What all
 * owe is at most the credit, one grant (of whoever is next: so much goes round always),
 * what handshakes have shown, and what comes back with flows that had kept silent, whose
 * debts do not count meanwhile.
 *
 * Line.  A flow that gets nothing while its window is closed waits in line, and is served
 * before those that are open.  Among many (INCAST_SLIDES) a window is opened only when it was
 * closed.  A grant is two segments at least, for VMs acknowledge every other one.  With more
 * flows than the credit has such grants for, a flow gets one in some rounds and none in others.
 *
 * End of an answer.  A short segment with PSH that does not end where the window does says
 * that its sender has nothing more.  What it was granted and did not use counts as silent at
 * once, and it gets a new window after those in line.  The window of one that only ever answers
 * may stay shut until the VM asks it again: all such flows together would answer the next
 * volley of requests with more than the queue takes.
 *
 * Window.  How much of the credit a flow asks for is ICTCP's: it grows while
 * the flow fills what it was given (d <= GAMMA1) and shrinks when it does not
 * (d > GAMMA2 in three round trips), with the bandwidth that is left as the quota
 * of all.  Up to the equal share of the credit a window doubles without asking
 * for quota: credit makes that safe, and few flows start as fast as plain TCP.
 * Steps are a sixteenth of the window or one MSS, so that fast links converge
 * as soon as slow ones.
 *
 * Only flows with a short round trip are shaped (SCOPE); others are not what
 * fills a last hop within a round trip.  The state of an uplink is shared by
 * all ports behind it, without a lock: what two CPUs count at the same time is
 * at worst a little off, and goes with its epoch.
 *
 * Rates are bytes per tick of 2^20 ns (1.05 ms): 131072 is 1 Gb/s.
 *
 * Credit is in incast_credit.h, the round trip in incast_round_trip.h, the window in
 * incast_window.h, the line in incast_queue.h; each includes the one before.
 */
#ifndef VSNOOP_FLOW_INCAST_H
#define VSNOOP_FLOW_INCAST_H

#include "incast_queue.h"

#endif
