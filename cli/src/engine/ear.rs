//! Hears what a VM and its senders send at a port that is not its tap, and who announces IP
//! addresses at a bridge.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use libc::c_int;
use vsnoop_hold::moves::Announcement;
use vsnoop_hold::overheard::{ack_of_sender, announcement, pure_ack};

use super::device::MARK_ENGINE;

/// Headers with all options fit.
const HEADERS_BYTES: usize = 256;
/// Frames that are taken at once.
const AT_ONCE: usize = 64;
/// Under accel/bpf/marks.h: ACKs that the hooks of that port have made are not the VM's.
const MARK_MASK: u32 = 0xfff0_0000;
const MARK_REPLY: u32 = 0x5e20_0000;

/// A segment, as a pure ACK.
#[derive(Clone, Debug)]
pub enum Heard {
    OfVm(Vec<u8>),
    OfSender(Vec<u8>),
}

struct Received {
    /// Bytes of the part that fits.
    length: usize,
    /// Stood before its type.
    tag: Option<[u8; 4]>,
    is_outgoing: bool,
}

#[derive(Debug)]
pub struct Ear {
    socket: OwnedFd,
}

impl Ear {
    /// Hears frames that come from this address, or go to it, by an interface of the calling
    /// thread's network namespace.
    pub fn of_vm(ifindex: u32, mac: [u8; 6]) -> Result<Self> {
        Self::open_socket(ifindex, &of_address(mac))
    }

    /// Hears ARP and neighbour advertisements that come up from a bridge of that namespace, as
    /// those do that announce an address to all.
    pub fn of_announcements(bridge: u32) -> Result<Self> {
        Self::open_socket(bridge, &of_announcements())
    }

    fn open_socket(ifindex: u32, program: &[libc::sock_filter]) -> Result<Self> {
        // SAFETY: takes no pointers. Protocol 0: it receives nothing until it is bound.
        let fd = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        };
        ensure!(fd >= 0, "open a packet socket: {}", std::io::Error::last_os_error());
        // SAFETY: a new descriptor, owned by this value alone.
        let ear = Self { socket: unsafe { OwnedFd::from_raw_fd(fd) } };
        ear.set_option(libc::SOL_PACKET, libc::PACKET_AUXDATA, &1).context("hear of VLAN tags")?;
        let program =
            libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        ear.set_option(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
            .context("filter frames")?;
        // SAFETY: an all-zero sockaddr_ll is one.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = ifindex as i32;
        // SAFETY: a complete address and its true length.
        let bound = unsafe {
            libc::bind(
                ear.socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        ensure!(bound == 0, "bind to interface {ifindex}: {}", std::io::Error::last_os_error());
        Ok(ear)
    }

    /// Takes the segments of the VM and of its senders, as pure ACKs.
    pub fn take_acks(&mut self) -> Vec<Heard> {
        self.take_frames(|is_outgoing, frame| {
            if is_outgoing {
                ack_of_sender(frame).map(Heard::OfSender)
            } else {
                pure_ack(frame).map(Heard::OfVm)
            }
        })
    }

    /// Takes the announcements that have come.
    pub fn take_announcements(&mut self) -> Vec<Announcement> {
        self.take_frames(|_, frame| announcement(frame))
    }

    /// Takes frames with their tags, which the kernel tells beside them.
    /// `read` is told whether the host has sent it.
    fn take_frames<T>(&mut self, read: impl Fn(bool, &[u8]) -> Option<T>) -> Vec<T> {
        let mut found = Vec::new();
        let mut frame = [0; HEADERS_BYTES];
        for _ in 0..AT_ONCE {
            let Some(Received { length, tag, is_outgoing }) = self.receive_frame(&mut frame) else {
                break;
            };
            let frame = &frame[..length];
            found.extend(match tag {
                Some(tag) if length >= MACS_BYTES => {
                    let tagged = [&frame[..MACS_BYTES], &tag, &frame[MACS_BYTES..]].concat();
                    read(is_outgoing, &tagged)
                }
                _ => read(is_outgoing, frame),
            });
        }
        found
    }

    fn receive_frame(&self, frame: &mut [u8]) -> Option<Received> {
        let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        let mut control = [0u64; 8];
        // SAFETY: an all-zero sockaddr_ll is one.
        let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        // SAFETY: an all-zero msghdr is one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of_val(&from) as _;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: buffers with their true lengths, which outlive the call.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &mut message, 0) };
        let length = usize::try_from(length).ok()?.min(frame.len());
        let is_outgoing = from.sll_pkttype == libc::PACKET_OUTGOING;
        Some(Received { length, tag: tag_of(&message), is_outgoing })
    }

    fn set_option<T>(&self, level: c_int, name: c_int, value: &T) -> std::io::Result<()> {
        // SAFETY: a value with its true length; what it points to outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                level,
                name,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

/// Behind these a tag stands.
const MACS_BYTES: usize = 12;

/// The VLAN tag that the kernel told beside the frame (packet(7)).
fn tag_of(message: &libc::msghdr) -> Option<[u8; 4]> {
    const TPID: u16 = libc::ETH_P_8021Q as u16;
    // SAFETY: recvmsg() has filled the message, whose control buffer is alive.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    // SAFETY: this control message is a tpacket_auxdata, perhaps not aligned.
    let told: libc::tpacket_auxdata =
        unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(header).cast()) };
    let is_told = |flag: u32| told.tp_status & flag != 0;
    let tpid = if is_told(libc::TP_STATUS_VLAN_TPID_VALID) { told.tp_vlan_tpid } else { TPID };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), told.tp_vlan_tci.to_be_bytes());
    is_told(libc::TP_STATUS_VLAN_VALID).then_some([a, b, c, d])
}

/// Passes ARP, and neighbour advertisements (RFC 4861).
fn of_announcements() -> [libc::sock_filter; 9] {
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ICMPV6: u32 = 58;
    const ADVERTISEMENT: u32 = 136;
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    [
        instruction(LOAD_HALF, 0, 0, 12),
        instruction(JUMP_IF_EQUAL, 6, 0, libc::ETH_P_ARP as u32),
        instruction(JUMP_IF_EQUAL, 0, 4, libc::ETH_P_IPV6 as u32),
        instruction(LOAD_BYTE, 0, 0, 20),
        instruction(JUMP_IF_EQUAL, 0, 2, ICMPV6),
        instruction(LOAD_BYTE, 0, 0, 54),
        instruction(JUMP_IF_EQUAL, 1, 0, ADVERTISEMENT),
        instruction(RETURN, 0, 0, 0),
        instruction(RETURN, 0, 0, HEADERS_BYTES as u32),
    ]
}

/// Passes the first bytes of frames that the VM with this address has sent itself, and of those
/// that the host sends to it, but for the engine's own.
fn of_address(mac: [u8; 6]) -> [libc::sock_filter; 17] {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_HALF: u16 = 0x28;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    /// SKF_AD_OFF + SKF_AD_PKTTYPE and SKF_AD_MARK of linux/filter.h.
    const KIND: u32 = -0x1000_i32 as u32 + 4;
    const MARK: u32 = -0x1000_i32 as u32 + 20;
    let half = |at: usize| u16::from_be_bytes([mac[at], mac[at + 1]]);
    let begin = u32::from(half(0)) << 16 | u32::from(half(2));
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    [
        instruction(LOAD_WORD, 0, 0, KIND),
        instruction(JUMP_IF_EQUAL, 7, 0, libc::PACKET_OUTGOING.into()),
        // From the VM.
        instruction(LOAD_WORD, 0, 0, 6),
        instruction(JUMP_IF_EQUAL, 0, 11, begin),
        instruction(LOAD_HALF, 0, 0, 10),
        instruction(JUMP_IF_EQUAL, 0, 9, half(4).into()),
        instruction(LOAD_WORD, 0, 0, MARK),
        instruction(AND, 0, 0, MARK_MASK),
        instruction(JUMP_IF_EQUAL, 6, 7, MARK_REPLY),
        // To the VM.
        instruction(LOAD_WORD, 0, 0, 0),
        instruction(JUMP_IF_EQUAL, 0, 4, begin),
        instruction(LOAD_HALF, 0, 0, 4),
        instruction(JUMP_IF_EQUAL, 0, 2, half(4).into()),
        instruction(LOAD_WORD, 0, 0, MARK),
        instruction(JUMP_IF_EQUAL, 0, 1, MARK_ENGINE),
        instruction(RETURN, 0, 0, 0),
        instruction(RETURN, 0, 0, HEADERS_BYTES as u32),
    ]
}
