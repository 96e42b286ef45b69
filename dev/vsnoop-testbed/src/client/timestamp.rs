//! Reading transmit timestamps from a socket's error queue.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, Timestamps, recvmsg};
use nix::sys::time::TimeSpec;

/// linux/errqueue.h: the data was acknowledged.
const SCM_TSTAMP_ACK: u32 = 2;

/// The wall-clock time at which the stamped byte was acknowledged, if the queue has it. Call it
/// when the receiver has answered: by then the acknowledgement has come.
pub fn of_acknowledgement(socket: BorrowedFd) -> Result<Option<SystemTime>> {
    let mut found = None;
    loop {
        let mut payload = [0; 64];
        let mut slices = [IoSliceMut::new(&mut payload)];
        let mut space = nix::cmsg_space!(Timestamps, [u8; 128]);
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let message = match recvmsg::<SockaddrStorage>(
            socket.as_raw_fd(),
            &mut slices,
            Some(&mut space),
            flags,
        ) {
            Ok(message) => message,
            Err(nix::Error::EAGAIN) => return Ok(found),
            Err(error) => return Err(error).context("read the error queue"),
        };
        let (mut time, mut acknowledged) = (None, false);
        for control in message.cmsgs().context("parse the error queue")? {
            match control {
                ControlMessageOwned::ScmTimestampsns(stamps) => time = Some(stamps.system),
                ControlMessageOwned::Ipv4RecvErr(error, _)
                | ControlMessageOwned::Ipv6RecvErr(error, _) => {
                    acknowledged = error.ee_info == SCM_TSTAMP_ACK;
                }
                _ => (),
            }
        }
        if acknowledged {
            found = time.map(wall_clock);
        }
    }
}

fn wall_clock(time: TimeSpec) -> SystemTime {
    SystemTime::UNIX_EPOCH
        + Duration::new(time.tv_sec().unsigned_abs(), time.tv_nsec().unsigned_abs() as u32)
}
