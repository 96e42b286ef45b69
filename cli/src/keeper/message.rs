//! Messages between splitter and keeper, over a SOCK_SEQPACKET socket.
//!
//! | kind | from | has | |
//! |---|---|---|---|
//! | `READY` | keeper | how many connections it can keep | behind all that it has kept |
//! | `KEPT` | both | number, record, descriptors | keep this; or, this was kept |
//! | `FORGET` | splitter | number | the connection is over |
//!
//! The record is the splitter's own: a keeper of another version keeps it as it is.

use std::io::{IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use vsnoop_split::PARTS;

const READY: u32 = 1;
const KEPT: u32 = 2;
const FORGET: u32 = 3;

/// Kind, room, number.
const HEADER: usize = 16;
/// Most bytes of a record.
const MOST_RECORD: usize = 512;
/// Most descriptors of a message that another program may send.
const MOST_DESCRIPTORS: usize = 16;

/// A connection as it is kept.
#[derive(Debug)]
pub struct Kept {
    /// The number of one connection only, as long as the host runs.
    pub id: u64,
    pub record: Vec<u8>,
    pub parts: [OwnedFd; PARTS],
}

#[derive(Debug)]
pub enum Message {
    Ready { room: usize },
    Kept(Kept),
    Forget(u64),
}

/// The result of reading a socket.
#[derive(Debug)]
pub enum Incoming {
    Message(Message),
    /// Nothing, or what is not understood.
    Nothing,
    /// The other end is gone.
    End,
}

pub fn send_ready(socket: BorrowedFd, room: usize) -> Result<(), Errno> {
    let room = u32::try_from(room).unwrap_or(u32::MAX);
    send(socket, &encode_header(READY, room, 0), &[], &[])
}

pub fn send_kept(
    socket: BorrowedFd,
    id: u64,
    record: &[u8],
    parts: [BorrowedFd; PARTS],
) -> Result<(), Errno> {
    debug_assert!(record.len() <= MOST_RECORD);
    send(socket, &encode_header(KEPT, 0, id), record, &parts.map(|part| part.as_raw_fd()))
}

pub fn send_forget(socket: BorrowedFd, id: u64) -> Result<(), Errno> {
    send(socket, &encode_header(FORGET, 0, id), &[], &[])
}

/// Does not wait for room, nor for a message.
const AT_ONCE: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);

fn send(socket: BorrowedFd, header: &[u8], record: &[u8], parts: &[RawFd]) -> Result<(), Errno> {
    let bytes = [IoSlice::new(header), IoSlice::new(record)];
    let rights = [ControlMessage::ScmRights(parts)];
    let rights = if parts.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(socket.as_raw_fd(), &bytes, rights, AT_ONCE, None).map(drop)
}

fn encode_header(kind: u32, room: u32, id: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&kind.to_ne_bytes());
    header[4..8].copy_from_slice(&room.to_ne_bytes());
    header[8..].copy_from_slice(&id.to_ne_bytes());
    header
}

/// Takes the next message, without waiting for one.
pub fn receive(socket: BorrowedFd) -> Result<Incoming, Errno> {
    let mut bytes = [0; HEADER + MOST_RECORD];
    let (count, descriptors) = match receive_bytes(socket, &mut bytes) {
        Ok(received) => received,
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Incoming::Nothing),
        // The other side has closed with messages unread. What it has sent can still be read.
        Err(Errno::ECONNRESET) => return receive(socket),
        Err(errno) => return Err(errno),
    };
    if count == 0 {
        return Ok(Incoming::End);
    }
    let message = parse_message(&bytes[..count], descriptors);
    Ok(message.map_or(Incoming::Nothing, Incoming::Message))
}

fn parse_message(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Message> {
    let (header, record) = bytes.split_first_chunk::<HEADER>()?;
    let word = |at: usize| {
        let word = header.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*word))
    };
    let id = u64::from_ne_bytes(*header.last_chunk::<8>()?);
    match word(0)? {
        READY => Some(Message::Ready { room: word(4)? as usize }),
        FORGET => Some(Message::Forget(id)),
        KEPT => {
            // Fewer than were sent: this process has no room for them.
            let parts = descriptors.try_into().ok()?;
            Some(Message::Kept(Kept { id, record: record.to_vec(), parts }))
        }
        _ => None,
    }
}

/// Room for the descriptors of a message, aligned as the kernel wants it.
type Control = [MaybeUninit<u64>; 2 + MOST_DESCRIPTORS];

fn receive_bytes(socket: BorrowedFd, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut into = IoSliceMut::new(bytes);
    let mut control: Control = [MaybeUninit::uninit(); _];
    // SAFETY: all fields are integers and pointers, for which zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = (&raw mut into).cast();
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    let flags = (AT_ONCE | MsgFlags::MSG_CMSG_CLOEXEC).bits();
    // SAFETY: an IoSliceMut is an iovec; all that the message points to outlives the call.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let count = Errno::result(count)?;
    Ok((count as usize, take_descriptors(&message)))
}

/// The descriptors of a message that was received. Without those that there was no room for.
fn take_descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    // SAFETY: the kernel has written the control messages that the header describes.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or a control message within the buffer.
    while let Some(control) = unsafe { next.as_ref() } {
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: no access, only the length of a header.
            let header = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = control.cmsg_len.saturating_sub(header) / size_of::<RawFd>();
            // SAFETY: behind the header are `count` descriptors, which are this process's own now.
            found.extend((0..count).map(|at| unsafe {
                let data = libc::CMSG_DATA(control).cast::<RawFd>().add(at);
                OwnedFd::from_raw_fd(data.read_unaligned())
            }));
        }
        // SAFETY: a control message of this header.
        next = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
    found
}

impl Kept {
    /// Sends it to the splitter.
    pub fn send(&self, socket: BorrowedFd) -> Result<(), Errno> {
        send_kept(socket, self.id, &self.record, self.parts.each_ref().map(AsFd::as_fd))
    }
}
