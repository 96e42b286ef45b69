//! Records: a header of 12 bytes and the payload, sealed or plain, one in each datagram.
//!
//! The header is epoch and counter, and is authenticated; the nonce is the counter, combined with
//! a constant of the key as in TLS 1.3 (RFC 8446, section 5.3). A super-packet becomes one sendmsg()
//! and arrives in one recvmsg(); records are opened where they lie. Keys are random: where they come
//! from does not change what it costs to use them.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use aws_lc_rs::aead::{Aad, Algorithm, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::rand;
use vsnoop_lab::testbed::net::Tap;

use super::carrier::Carrier;
use super::frames::{BURST, Cutter, FRAME_BYTES, Joiner, give_frame, take_frame};
use super::load::{
    Arrivals, DRAIN, LOOK, Load, Meter, PAYLOAD_BYTES, PING_BYTES, Pace, UNIT, UNIT_BYTES,
};
use super::udp;

const HEADER_BYTES: usize = 12;
const EPOCH: u32 = 1;

/// Records under one key, which both ends of a bench have.
pub struct Records {
    secret: Option<Secret>,
}

struct Secret {
    algorithm: &'static Algorithm,
    key: Vec<u8>,
    iv: [u8; NONCE_LEN],
}

impl Records {
    pub fn plain() -> Self {
        Self { secret: None }
    }

    pub fn sealed(algorithm: &'static Algorithm) -> Result<Self> {
        let mut key = vec![0; algorithm.key_len()];
        let mut iv = [0; NONCE_LEN];
        rand::fill(&mut key).and_then(|()| rand::fill(&mut iv)).context("make a key")?;
        Ok(Self { secret: Some(Secret { algorithm, key, iv }) })
    }

    fn end(&self) -> Result<End> {
        let Some(Secret { algorithm, key, iv }) = &self.secret else {
            return Ok(End { key: None, counter: 0 });
        };
        let key = UnboundKey::new(algorithm, key).context("use a key")?;
        Ok(End { key: Some((LessSafeKey::new(key), *iv)), counter: 0 })
    }
}

/// One end's use of the key.
struct End {
    key: Option<(LessSafeKey, [u8; NONCE_LEN])>,
    counter: u64,
}

impl End {
    /// The size of a record of so much payload.
    fn record_bytes(&self, payload: usize) -> usize {
        HEADER_BYTES + payload + self.key.as_ref().map_or(0, |(key, _)| key.algorithm().tag_len())
    }

    /// Appends a record.
    fn seal(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&EPOCH.to_be_bytes());
        header[4..].copy_from_slice(&self.counter.to_be_bytes());
        out.extend_from_slice(&header);
        let start = out.len();
        out.extend_from_slice(payload);
        if let Some((key, iv)) = &self.key {
            let nonce = nonce(iv, self.counter);
            let tag = key
                .seal_in_place_separate_tag(nonce, Aad::from(header), &mut out[start..])
                .map_err(|_| anyhow!("a record cannot be sealed"))?;
            out.extend_from_slice(tag.as_ref());
        }
        self.counter += 1;
        Ok(())
    }

    /// The payload of a record; None where it is not one of ours.
    fn open<'a>(&self, record: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let (header, body) = record.split_first_chunk_mut::<HEADER_BYTES>()?;
        let (epoch, counter) = header.split_first_chunk::<4>()?;
        let counter = u64::from_be_bytes(counter.try_into().ok()?);
        if u32::from_be_bytes(*epoch) != EPOCH {
            return None;
        }
        match &self.key {
            None => Some(body),
            Some((key, iv)) => key.open_in_place(nonce(iv, counter), Aad::from(*header), body).ok(),
        }
    }
}

fn nonce(iv: &[u8; NONCE_LEN], counter: u64) -> Nonce {
    let mut nonce = *iv;
    for (byte, count) in nonce[NONCE_LEN - 8..].iter_mut().zip(counter.to_be_bytes()) {
        *byte ^= count;
    }
    Nonce::assume_unique_for_key(nonce)
}

impl Carrier for Records {
    fn connected(&self) -> bool {
        true
    }

    fn send(&self, socket: UdpSocket, load: Load, meter: &Meter) -> Result<()> {
        udp::prepare(&socket, Some(LOOK))?;
        let mut end = self.end()?;
        match load {
            Load::Bulk => send_bulk(&socket, &mut end, meter),
            Load::Pings { count, pause } => {
                let mut record = Vec::new();
                let mut buffer = vec![0; udp::BUFFER_BYTES];
                for _ in 0..count {
                    record.clear();
                    let at = Instant::now();
                    end.seal(&[0; PING_BYTES], &mut record)?;
                    udp::send(&socket, &record, record.len())?;
                    if let Some((bytes, _)) = udp::receive(&socket, &mut buffer)?
                        && end.open(&mut buffer[..bytes]).is_some()
                    {
                        meter.round_trips.lock().expect("no holder panics").push(at.elapsed());
                    }
                    std::thread::sleep(pause);
                }
                Ok(())
            }
        }
    }

    fn receive(&self, socket: UdpSocket, meter: &Meter) -> Result<()> {
        udp::prepare(&socket, Some(LOOK))?;
        let mut end = self.end()?;
        let mut buffer = vec![0; udp::BUFFER_BYTES];
        let mut answer = Vec::new();
        while !meter.ended() {
            let Some((bytes, segment_bytes)) = udp::receive(&socket, &mut buffer)? else {
                continue;
            };
            let mut arrivals = Arrivals::default();
            for record in buffer[..bytes].chunks_mut(segment_bytes) {
                match end.open(record) {
                    Some(payload) if payload.len() == PAYLOAD_BYTES => arrivals.add(payload),
                    Some(payload) if payload.len() == PING_BYTES => {
                        answer.clear();
                        end.seal(payload, &mut answer)?;
                        udp::send(&socket, &answer, answer.len())?;
                    }
                    _ => {}
                }
            }
            meter.add_received(arrivals);
        }
        Ok(())
    }

    fn bridge(&self, socket: UdpSocket, tap: Tap, _dials: bool, stop: &AtomicBool) -> Result<()> {
        udp::prepare(&socket, None)?;
        socket.set_nonblocking(true)?;
        let mut end = self.end()?;
        let record_bytes = end.record_bytes(PAYLOAD_BYTES);
        let (mut cutter, mut joiner) = (Cutter::default(), Joiner::default());
        let mut buffer = vec![0; udp::BUFFER_BYTES.max(FRAME_BYTES)];
        let mut records = Vec::with_capacity(2 * FRAME_BYTES);
        while !stop.load(SeqCst) {
            udp::wait(&socket, Some(tap.as_fd()), LOOK)?;
            for _ in 0..BURST {
                let Some(bytes) = take_frame(&tap, &mut buffer)? else { break };
                records.clear();
                cutter.cut(&buffer[..bytes], |piece| end.seal(piece, &mut records))?;
                for unit in records.chunks(UNIT * record_bytes) {
                    udp::send(&socket, unit, record_bytes)?;
                }
            }
            for _ in 0..BURST {
                let Some((bytes, segment_bytes)) = udp::receive(&socket, &mut buffer)? else {
                    break;
                };
                for record in buffer[..bytes].chunks_mut(segment_bytes) {
                    let Some(piece) = end.open(record) else { continue };
                    if let Some(frame) = joiner.join(piece) {
                        give_frame(&tap, frame);
                    }
                }
            }
        }
        Ok(())
    }
}

fn send_bulk(socket: &UdpSocket, end: &mut End, meter: &Meter) -> Result<()> {
    let mut unit = vec![0x55; UNIT_BYTES];
    let record_bytes = end.record_bytes(PAYLOAD_BYTES);
    let mut records = Vec::with_capacity(UNIT * record_bytes);
    let mut pace = Pace::new(meter);
    while !meter.stopped() {
        if !pace.may_send() {
            pace.wait();
            continue;
        }
        records.clear();
        meter.fill(&mut unit);
        for payload in unit.chunks(PAYLOAD_BYTES) {
            end.seal(payload, &mut records)?;
        }
        meter.add_sent(UNIT);
        udp::send(socket, &records, record_bytes)?;
    }
    std::thread::sleep(DRAIN);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::aead::AES_128_GCM;

    #[test]
    fn a_sealed_record_opens_and_a_changed_one_does_not() {
        let records = Records::sealed(&AES_128_GCM).unwrap();
        let (mut sender, receiver) = (records.end().unwrap(), records.end().unwrap());
        let mut record = Vec::new();
        sender.seal(b"payload", &mut record).unwrap();
        assert_eq!(record.len(), sender.record_bytes(7));
        for at in 0..record.len() {
            let mut changed = record.clone();
            changed[at] ^= 1;
            assert!(receiver.open(&mut changed).is_none(), "byte {at}");
        }
        assert_eq!(receiver.open(&mut record).unwrap(), b"payload");
    }
}
