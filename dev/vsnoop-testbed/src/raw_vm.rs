//! VMs that are taps, which a test or a measurement reads and writes, and the frames that they
//! send.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vsnoop_packet::packet::Pool;
use vsnoop_packet::vnet::VirtioNetHdr;

use crate::hosts::Host;
use crate::net::{Tap, TapOptions};

pub const PATIENCE: Duration = Duration::from_secs(60);
/// For local experiments (IEEE 802): no stack answers it.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
pub const OWNER: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const ATTACKER: [u8; 6] = [2, 0, 0, 0, 0, 3];
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// A VM on the bridge of a host.
pub fn raw_vm(host: &Host, name: &str) -> Result<Tap> {
    let tap = host.netns.tap(name, &TapOptions::default())?;
    host.netns.add_port("br0", name)?;
    Ok(tap)
}

/// A frame that differs by its number, which is in bytes 14 to 18.
pub fn frame(destination: [u8; 6], source: [u8; 6], number: u32) -> Vec<u8> {
    let mut frame = [&destination[..], &source, &ETHER_TYPE, &number.to_be_bytes()].concat();
    frame.resize(64, 0x5a);
    frame
}

pub fn send(tap: &Tap, frame: &[u8]) -> Result<()> {
    send_with(tap, VirtioNetHdr::default(), frame)
}

pub fn send_with(tap: &Tap, header: VirtioNetHdr, frame: &[u8]) -> Result<()> {
    let mut packet = Pool::default().take();
    packet.fill(header, frame);
    ensure!(tap.write(&packet).context("write a frame")?, "no room for a frame");
    Ok(())
}

/// Reads until this frame comes; `refused` must not come before.
pub fn receive(tap: &Tap, wanted: &[u8], refused: &[Vec<u8>]) -> Result<()> {
    let mut packet = Pool::default().take();
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        if !tap.read(&mut packet).context("read a frame")? {
            std::thread::sleep(Duration::from_micros(200));
        } else if packet.frame() == wanted {
            return Ok(());
        } else if refused.iter().any(|frame| frame == packet.frame()) {
            bail!("a frame came that must not: {:02x?}", &packet.frame()[..18]);
        }
    }
    bail!("a frame was lost: {:02x?}", &wanted[..18])
}

/// Sends until one arrives: bridges and links then know the source.
pub fn introduce(from: &Tap, to: &Tap, source: [u8; 6]) -> Result<()> {
    let mut packet = Pool::default().take();
    let since = Instant::now();
    let wanted = frame(BROADCAST, source, u32::MAX);
    while since.elapsed() < PATIENCE {
        send(from, &wanted)?;
        std::thread::sleep(Duration::from_millis(50));
        while to.read(&mut packet).context("read a frame")? {
            if packet.frame() == wanted {
                return Ok(());
            }
        }
    }
    bail!("no frame arrives from {source:02x?}")
}
