//! Stage `read`: batches of a port or divert tap, merged where that pays.

use std::os::fd::AsFd;

use super::Egress;
use super::batch::{BatchBuffer, ReadEnd};
use crate::frames::frame::{Frame, ParsedFrame};
use crate::ports::counted_port::CountedPort;
use crate::threads::event::ControlEvent;
use vsnoop_link::slots::FrameSource;
use vsnoop_packet::offload::merge::Merger;

/// Bounds how long one port keeps the thread from the others.
const BATCHES_PER_PASS: usize = 8;

impl Egress {
    /// Reads a few batches of frames from a port or divert tap, and sends them on their way.
    pub(super) fn read(&mut self, source: FrameSource) {
        // Taken out, so that its frames can be routed by reference.
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..BATCHES_PER_PASS {
            let Some(end) = self.fill_buffer(&mut buffer, source) else { break };
            self.route_batch(source, &buffer);
            match end {
                ReadEnd::More => {}
                ReadEnd::Nothing => break,
                ReadEnd::Failed(error) => {
                    let _ = self.events.send(ControlEvent::SourceFailed { source, error });
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    /// Reads what waits there; `None`: there is no such port any more.
    fn fill_buffer(&self, buffer: &mut BatchBuffer, source: FrameSource) -> Option<ReadEnd> {
        let CountedPort { port, stats, .. } = match source {
            FrameSource::Port(slot) => self.shared.find_port(slot)?,
            FrameSource::DivertTap(slot) => &self.shared.divert_taps.as_ref()?.find_tap(slot)?.port,
            FrameSource::Peer(_) => return None,
        };
        let own = port.is_interface().then_some(&*self.shared.own);
        let end = buffer.fill_from(port, stats, &self.shared.stats, own);
        if let ReadEnd::Failed(error) = &end
            && !port.is_of_state(error)
        {
            // It would be told again and again. The control thread has it watched again.
            self.watch.forget(port.as_fd());
        }
        Some(end)
    }

    /// Routes the frames of a batch. Segments of one flow are merged first, if a transport or the
    /// compressor gains from that.
    fn route_batch(&mut self, source: FrameSource, buffer: &BatchBuffer) {
        if buffer.is_empty() {
            return;
        }
        self.frames += buffer.len();
        let now_ns = self.shared.now_ns();
        if self.policies.has_any() || self.any_ordered {
            let mut merger = Merger::new();
            for ParsedFrame { offload, headers, bytes } in buffer.frames() {
                merger.push_parsed(offload, headers, bytes, &mut |merged| {
                    self.route(source, Frame::from_merged(&merged), now_ns);
                });
            }
            merger.flush(&mut |merged| self.route(source, Frame::from_merged(&merged), now_ns));
        } else {
            for ParsedFrame { offload, headers, bytes } in buffer.frames() {
                self.route(source, Frame::parsed(offload, headers, &[bytes]), now_ns);
            }
        }
        self.flush(now_ns);
    }
}
