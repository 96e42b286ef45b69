/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Incast control: bounds the bytes that all senders behind an uplink have in flight by what the
 * last hop can take, and shares them out by receive windows (ICTCP: Wu, Feng, Guo, Zhang, CoNEXT
 * 2010).
 *
 * Credit. The last hop takes its queue (`buffer`; a quarter is kept for bytes sent without credit)
 * and what is on the wire (C times the round trip with an empty queue). The outstanding credit of a
 * flow is the bytes between `received` and the right edge that it was granted. An edge moves only
 * while credit is left; received bytes return credit. The outstanding credit of all flows is at
 * most the credit, plus one grant (to the head of the grant queue, so that every flow makes
 * progress), plus the windows of handshakes, plus what silent flows still have, whose outstanding
 * credit does not count while they are silent.
 *
 * Volley. All answers to a volley of requests come at the same time, so that the queue has to take
 * them: the wire's part of the credit is for data that come in the course of a round trip. What
 * flows may send without another grant comes out of the queue's part (incast_volley()): first
 * windows, those of flows that have finished, trains, and what requests are granted at once. Where
 * it has less than two segments for each shaped flow, a finished flow that is known to send unasked
 * is left one, whatever the queue.
 *
 * Room. Credit that is left may be much: what the wire takes. Granted at once it comes at once, a
 * round trip later, and then the queue has to take it. So each port has room for its share of a
 * volley, which is used by grants and by requests to flows with open windows, and comes back as
 * the port's share of the line has time for it. A window that slides needs none: it opens as data
 * come. Where the wire takes more than the queue, only trains may use that of many flows: what
 * these leave open when they finish comes with the next volley.
 *
 * Grant queue. A flow with a closed window that gets nothing waits in the grant queue, which is
 * served before flows with open windows. With many flows (INCAST_SLIDES) a window is opened only
 * after it was closed. A grant is at least two segments, because VMs acknowledge every other one.
 * With more flows than the credit has such grants for, each flow gets one in some rounds only.
 *
 * End of an answer. A short segment with PSH that does not end at the window's edge says that its
 * sender has nothing more. The part of its grant that it did not use counts as silent at once, and
 * flows in the grant queue go before it. A flow that only ever answers may keep a closed window
 * until the VM sends it a request: the answers of all such flows to the next volley of requests
 * would be more than the queue of the last hop takes. But a sender that waits for its CPU or its
 * disk also sends a short segment, and the request for which its flow would wait does not come
 * before the whole answer has: where the last two answers of a flow had one length, a shorter one
 * has not ended.
 *
 * Window. ICTCP controls how much credit a flow asks for: the window grows while the flow fills its
 * grant (d <= GAMMA1), and shrinks when it does not (d > GAMMA2 in three round trips); the quota of
 * all flows is the bandwidth that is left. Up to its equal share of the credit a window doubles
 * without quota: the credit makes that safe, and few flows start as fast as plain TCP. A step is a
 * sixteenth of the window or one MSS, so that fast links converge as soon as slow ones.
 *
 * Scope. Only flows with a round trip up to INCAST_SCOPE_NS and a window scale up to INCAST_SCALE
 * are shaped; others cannot fill a last hop within a round trip, or would take more than they are
 * granted. All ports behind an uplink share its state without a lock: concurrent
 * updates leave a small error, which ends with its epoch.
 *
 * States. A flow is left alone, or shaped (INCAST_SHAPED). A shaped flow with a closed window, less
 * than a segment, may wait (enum incast_waiting).
 *
 *   from          when                                              to            window
 *   left alone    it is in scope (incast_shapes())                  NOT_WAITING   as shown
 *   any other     it leaves the scope, or its record is removed     left alone    the VM's own
 *   NOT_WAITING   credit is left, and the queue is empty            NOT_WAITING   grows
 *   NOT_WAITING   closed, nothing granted                           QUEUED        closed
 *   NOT_WAITING   closed, FINISHED, it only ever answers, and       ANSWERER      closed
 *                 does not pause
 *   NOT_WAITING   closed, FINISHED, and it may send unasked, or     OTHER         closed
 *                 pauses (incast_pauses())
 *   QUEUED        at the head, and there is credit (incast_next())  NOT_WAITING   its request, or
 *                                                                                 a train
 *   ANSWERER      at the head, the grant queue is empty, silent     NOT_WAITING   two segments,
 *                 flows and this port's others have less                          or one
 *                 outstanding than half its share of a volley
 *   OTHER         at the head, the grant queue is empty, credit     NOT_WAITING   the same
 *                 is left; unless it is known to send unasked,
 *                 less is outstanding than the share of a volley
 *   OTHER         its answer ends, and it only ever answers         ANSWERER      closed
 *   finished      request of the VM, or more data: nothing granted  QUEUED        closed
 *   finished      request of the VM: granted                        NOT_WAITING   its request
 *   any waiting   the VM answers a probe of its sender              NOT_WAITING   two segments
 *   any waiting   rounding opens the window, or the queue is full   NOT_WAITING   as it is
 *
 *   (ANSWERER, OTHER: INCAST_FINISHED_ANSWERER, _OTHER; "finished": both. One queue serves them.)
 *
 *   bit        set                                       cleared
 *   FINISHED   a segment ends an answer                  by more data, a request, an answered probe
 *   ANSWERS    request of the VM while FINISHED          never
 *   SPEAKS     data or a probe come while FINISHED, but  never
 *              for data after a pause
 *   ASKED      the VM sends it data                      by data
 *   GIVEN      an edge is granted                        when an ACK shows it
 *   STILL      the edge was granted to a closed window   with the next grant to an open one
 *   WIDE       an edge is granted two segments ahead     never
 *   MARKED     data with a CE mark come                  at the end of the round trip
 *   AVOIDS     d > GAMMA1, CE, or no quota is left       after INCAST_IDLE_NS without data
 *   BESIDE     data do not come through the uplink       by data through the uplink
 *   VARIES     an answer is not as long as the last one  by one that is, to 256 bytes
 *
 * Rates are bytes per tick of 2^20 ns (1.05 ms): 131072 is 1 Gb/s.
 *
 * Credit is in incast_credit.h, time and room in incast_time.h, the round trip in
 * incast_round_trip.h, the window in incast_window.h, the grant queue in incast_queue.h; each
 * includes the one before.
 */
#ifndef VSNOOP_FLOW_INCAST_H
#define VSNOOP_FLOW_INCAST_H

#include "incast_queue.h"

#endif
