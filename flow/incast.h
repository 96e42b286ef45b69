/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Incast control: what all senders behind an uplink may have on their way at
 * once is bounded by what the last hop can take, and shared out by receive
 * windows (ICTCP: Wu, Feng, Guo, Zhang, CoNEXT 2010).
 *
 * Credit.  The last hop takes its queue (`buffer`; a quarter is kept for what nobody gave
 * credit for) and what is on the wire (C times the round trip of an empty queue).  A flow
 * has as outstanding credit the bytes between what was received of it and the right edge that
 * it was granted.  An edge is only moved when credit is left for it; received bytes return
 * credit.  The outstanding credit of all flows is at most the credit, one grant (to the head
 * of the queue: so much goes round always), what handshakes have shown, and what comes back
 * with flows that had kept silent, whose outstanding credit does not count meanwhile.
 *
 * Grant queue.  A flow that gets nothing while its window is closed waits in the grant queue,
 * and is served before those that are open.  Among many (INCAST_SLIDES) a window is opened only
 * when it was closed.  A grant is two segments at least, for VMs acknowledge every other one.
 * With more flows than the credit has such grants for, a flow gets one in some rounds and none
 * in others.
 *
 * End of an answer.  A short segment with PSH that does not end where the window does says
 * that its sender has nothing more.  What it was granted and did not use counts as silent at
 * once, and it gets a new window after those in the grant queue.  The window of one that only
 * ever answers may stay shut until the VM asks it again: all such flows together would answer
 * the next volley of requests with more than the queue of the last hop takes.
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
 * States.  A flow is left alone, or shaped (INCAST_SHAPED); one that is shaped may wait (enum
 * incast_waiting), its window closed: it has room for less than a segment.
 *
 *   from          when                                              to            window
 *   left alone    it is in scope (incast_shapes())                  NOT_WAITING   as shown
 *   any other     it is not any more, or its record goes            left alone    the VM's own
 *   NOT_WAITING   credit is left, and the queue is empty            NOT_WAITING   grows
 *   NOT_WAITING   closed, nothing granted                           QUEUED        closed
 *   NOT_WAITING   closed, FINISHED, and it only ever answers        SHUT          closed
 *   NOT_WAITING   closed, FINISHED, and it may speak unasked        IDLE          closed
 *   QUEUED        at the head, and there is credit                  NOT_WAITING   what it wants
 *   SHUT          at the head, the grant queue is empty, silent     NOT_WAITING   two segments
 *                 flows have less outstanding than the credit
 *   IDLE          at the head, the grant queue is empty, credit     NOT_WAITING   two segments
 *                 is left
 *   SHUT, IDLE    asked by the VM, or more came: nothing granted    QUEUED        closed
 *   SHUT, IDLE    asked by the VM: granted                          NOT_WAITING   what it wants
 *   any waiting   the VM answers a probe of its sender              NOT_WAITING   two segments
 *   any waiting   rounding opens the window, or the queue is full   NOT_WAITING   as it is
 *
 *   bit        set                                       cleared
 *   FINISHED   a segment ends an answer                  by more data, a request, an answered probe
 *   ANSWERS    the VM asks it while FINISHED             never
 *   SPEAKS     data or a probe come while FINISHED       never
 *   ASKED      the VM sends it data                      by data
 *   GIVEN      an edge is granted                        when an ACK shows it
 *   STILL      ... and the window was closed             with the next grant to an open one
 *   WIDE       an edge is granted two segments ahead     never
 *   MARKED     data with a CE mark come                  at the end of the round trip
 *   AVOIDS     d > GAMMA1, CE, or no quota is left       after INCAST_IDLE_NS without data
 *   BESIDE     data come another way than the uplink     by data through the uplink
 *
 * Rates are bytes per tick of 2^20 ns (1.05 ms): 131072 is 1 Gb/s.
 *
 * Credit is in incast_credit.h, the round trip in incast_round_trip.h, the window in
 * incast_window.h, the grant queue in incast_queue.h; each includes the one before.
 */
#ifndef VSNOOP_FLOW_INCAST_H
#define VSNOOP_FLOW_INCAST_H

#include "incast_queue.h"

#endif
