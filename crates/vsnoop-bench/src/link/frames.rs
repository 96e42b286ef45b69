//! Frames of a tap, cut into pieces of a datagram's size and put together again.
//!
//! The least that a link must do, so that a TCP connection can go through a carrier: a frame with its
//! virtio_net_hdr is so many bytes, and of a super-packet that lost a piece nothing is delivered. A
//! piece begins with the number of its frame, its place in it, and whether it is the last.

use std::os::fd::AsFd;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::unistd::{read, write};

use super::load::PAYLOAD_BYTES;

const HEADER_BYTES: usize = 4;
const BODY_BYTES: usize = PAYLOAD_BYTES - HEADER_BYTES;

/// A frame of 64 KB, and the headers before it.
pub const FRAME_BYTES: usize = 65536 + 64;

/// Super-packets that are handled in one direction before the other has its turn.
pub const BURST: usize = 8;

/// Reads one frame; None when there is none.
pub fn take_frame(tap: impl AsFd, buffer: &mut [u8]) -> Result<Option<usize>> {
    match read(tap, buffer) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(error) => Err(error).context("read a frame"),
    }
}

/// Writes one frame; what the kernel does not take is lost.
pub fn give_frame(tap: impl AsFd, frame: &[u8]) {
    let _ = write(tap, frame);
}

/// Cuts frames. All pieces of a frame but the last have [`PAYLOAD_BYTES`].
#[derive(Debug, Default)]
pub struct Cutter {
    number: u16,
    piece: Vec<u8>,
}

impl Cutter {
    pub fn cut(&mut self, frame: &[u8], mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let count = frame.len().div_ceil(BODY_BYTES);
        let [high, low] = self.number.to_be_bytes();
        for (place, body) in frame.chunks(BODY_BYTES).enumerate() {
            let last = u8::from(place + 1 == count);
            self.piece.clear();
            self.piece.extend_from_slice(&[high, low, place as u8, last]);
            self.piece.extend_from_slice(body);
            each(&self.piece)?;
        }
        self.number = self.number.wrapping_add(1);
        Ok(())
    }
}

/// Joins the pieces of frames that arrive in order.
#[derive(Debug, Default)]
pub struct Joiner {
    number: [u8; 2],
    /// Of the next piece; None until a frame begins.
    place: Option<u8>,
    frame: Vec<u8>,
}

impl Joiner {
    /// The frame that is whole with this piece.
    pub fn join(&mut self, piece: &[u8]) -> Option<&[u8]> {
        let (&[high, low, place, last], body) = piece.split_first_chunk::<HEADER_BYTES>()?;
        if place == 0 {
            self.number = [high, low];
            self.frame.clear();
        } else if self.place != Some(place) || self.number != [high, low] {
            self.place = None;
            return None;
        }
        if self.frame.len() + body.len() > FRAME_BYTES {
            self.place = None;
            return None;
        }
        self.frame.extend_from_slice(body);
        self.place = if last == 0 { place.checked_add(1) } else { None };
        (last != 0).then_some(&self.frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(cutter: &mut Cutter, frame: &[u8]) -> Vec<Vec<u8>> {
        let mut pieces = Vec::new();
        let collect = |piece: &[u8]| {
            pieces.push(piece.to_vec());
            Ok(())
        };
        cutter.cut(frame, collect).unwrap();
        pieces
    }

    #[test]
    fn a_frame_is_whole_with_its_last_piece_and_not_without_one() {
        let mut cutter = Cutter::default();
        let frame: Vec<u8> = (0..65_000u32).map(|at| (at % 251) as u8).collect();
        let whole = pieces(&mut cutter, &frame);
        let (last, before) = whole.split_last().unwrap();
        for lost in 0..before.len() {
            let mut joiner = Joiner::default();
            for (at, piece) in whole.iter().enumerate() {
                assert!(at == lost || joiner.join(piece).is_none(), "without piece {lost}");
            }
        }
        let mut joiner = Joiner::default();
        assert!(before.iter().all(|piece| joiner.join(piece).is_none()));
        assert_eq!(joiner.join(last).unwrap(), frame);
    }

    #[test]
    fn pieces_of_two_frames_are_not_joined() {
        let mut cutter = Cutter::default();
        let (first, second) = (pieces(&mut cutter, &[1; 2000]), pieces(&mut cutter, &[2; 2000]));
        let mut joiner = Joiner::default();
        assert!(joiner.join(&first[0]).is_none());
        assert!(joiner.join(&second[1]).is_none());
    }
}
