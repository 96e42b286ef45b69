//! By what a capture tells the host's ACKs from the VM's: docs/guide/coexistence.md, "Whose ACK is
//! it?".
//!
//! The filters that are printed there are compiled by libpcap, which tcpdump compiles them with,
//! and tried on the frames; where no libpcap is installed, the fields that they look at are all
//! that is compared.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use etherparse::{IpHeaders, IpNumber, Ipv4Header, Ipv6Header, PacketBuilder};
use vsnoop_bpf::types::flow_key;
use vsnoop_bpf::{Hook, MarkedRun};

use crate::scene::{
    Attached, NEXT, REDIRECT, SENDER, VM, engine, holding, insert_ipv6_flow, of_sender,
};

/// The row "mark" of the table.
const MARK: u32 = 0x5e20_0000;
const MASK: u32 = 0xfff0_0000;
/// A mark of other software, outside of the mask.
const OTHERS_MARK: u32 = 0x77;

/// In the program, which also runs in guests that have no other file of the project.
const DOCUMENT: &str = include_str!("../../../../docs/guide/coexistence.md");

/// The printed filter with this remark.
fn printed_filter(remark: &str) -> String {
    let mut lines =
        DOCUMENT.lines().filter(|line| line.starts_with("tcpdump ") && line.ends_with(remark));
    let line = lines.next_back().unwrap_or_else(|| panic!("no tcpdump with {remark}"));
    line.split('\'').nth(1).expect("a filter between quotes").to_owned()
}

/// An ACK of the VM with this identification.
fn ack_of_vm(identification: u16) -> Vec<u8> {
    let mut ip = Ipv4Header::new(20, 63, IpNumber::TCP, VM, SENDER).expect("a header");
    ip.identification = identification;
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ip(IpHeaders::Ipv4(ip, Default::default()))
        .tcp(80, 40000, 500, 9000)
        .ack(5000)
        .write(&mut frame, &[])
        .expect("build an ACK");
    frame
}

pub fn a_capture_tells_an_early_ack_over_ipv4_from_the_vms() {
    let port = Attached::with_hold();
    holding(&port);
    let frame = of_sender(5000, 500, &[7; 100]);
    let (verdict, early) = port.run_hook(Hook::ToVm, &frame, 1).expect("run");
    assert_eq!(verdict, REDIRECT, "acknowledged");
    assert_eq!(early[18..20], [0, 0], "identification");
    assert_eq!(early[20..22], [0x40, 0], "DF, and no fragment");
    assert_eq!(early[47], 0x10, "a pure ACK");
    let own = ack_of_vm(50_311);
    let of_host = printed_filter("# the host's");
    let of_vm = printed_filter("# of a Linux VM itself");
    let Some(pcap) = Pcap::open() else {
        println!("no libpcap is installed: the printed filters were not tried");
        return;
    };
    for (frame, is_of_host) in [(&early, true), (&own, false)] {
        assert_eq!(pcap.matches(&of_host, frame), is_of_host, "{of_host}");
        assert_eq!(pcap.matches(&of_vm, frame), !is_of_host, "{of_vm}");
    }
    // What is no ACK matches neither.
    for filter in [&of_host, &of_vm] {
        assert!(!pcap.matches(filter, &crate::scene::rst_of_vm(80, 40000)), "{filter}");
    }
}

pub fn a_filter_for_ipv4_matches_no_early_ack_over_ipv6() {
    let port = Attached::with_hold();
    engine(&port);
    let flow_key { sender_addr: sender, vm_addr: vm, .. } = insert_ipv6_flow(&port);
    let ip = Ipv6Header {
        hop_limit: 33,
        next_header: IpNumber::TCP,
        source: sender,
        destination: vm,
        ..Default::default()
    };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([6; 6], [2; 6])
        .ip(IpHeaders::Ipv6(ip, Default::default()))
        .tcp(40000, 80, 4000, 1000)
        .ack(500)
        .write(&mut frame, &[7; 100])
        .expect("build a segment");
    let (verdict, early) = port.run_hook(Hook::ToVm, &frame, 1).expect("run");
    assert_eq!(verdict, REDIRECT, "acknowledged");
    // The filters are for IPv4, as the document says.
    if let Some(pcap) = Pcap::open() {
        assert!(!pcap.matches(&printed_filter("# the host's"), &early));
    }
}

pub fn an_early_acks_mark_ends_at_the_taps_ingress_hook() {
    let port = Attached::with_hold();
    holding(&port);
    let row = format!("`{MARK:#x}` in the mask `{MASK:#x}`");
    assert!(DOCUMENT.contains(&row), "docs/guide/coexistence.md has no {row}");
    let to_vm = port.open_hook(Hook::ToVm).expect("open");
    let early = to_vm.run_marked(&of_sender(5000, 500, &[7; 100]), OTHERS_MARK).expect("run");
    assert_eq!((early.verdict, early.mark & MASK), (REDIRECT, MARK));
    // The kernel redirects it to the tap's ingress with its mark.
    let from_vm = port.open_hook(Hook::FromVm).expect("open");
    let passed = from_vm.run_marked(&early.frame, early.mark).expect("run");
    assert_eq!(passed, MarkedRun { verdict: NEXT, frame: early.frame, mark: 0 });
    // A VM's packets have no mark of their own, and get none.
    let own = ack_of_vm(50_311);
    assert_eq!(from_vm.run_marked(&own, 0).expect("run").mark, 0);
}

/// libpcap, loaded where it is installed.
struct Pcap {
    library: *mut c_void,
}

#[repr(C)]
struct Program {
    len: u32,
    instructions: *mut c_void,
}

#[repr(C)]
struct Captured {
    at: libc::timeval,
    caplen: u32,
    len: u32,
}

const DLT_EN10MB: c_int = 1;
const SNAPLEN: c_int = 65_535;
const PCAP_NETMASK_UNKNOWN: u32 = u32::MAX;

type Handle = *mut c_void;
type OpenDead = unsafe extern "C" fn(c_int, c_int) -> Handle;
type Compile = unsafe extern "C" fn(Handle, *mut Program, *const c_char, c_int, u32) -> c_int;
type Filter = unsafe extern "C" fn(*const Program, *const Captured, *const u8) -> c_int;
type Free = unsafe extern "C" fn(*mut Program);
type Close = unsafe extern "C" fn(Handle);

impl Pcap {
    fn open() -> Option<Self> {
        // SAFETY: a C string; the library's constructors have no preconditions.
        let library = unsafe { libc::dlopen(c"libpcap.so.0.8".as_ptr(), libc::RTLD_NOW) };
        (!library.is_null()).then_some(Self { library })
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: an open library, and a C string.
        let symbol = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        assert!(!symbol.is_null(), "libpcap has no {name:?}");
        symbol
    }

    fn matches(&self, filter: &str, frame: &[u8]) -> bool {
        let text = CString::new(filter).expect("no NUL in a filter");
        let mut program = Program { len: 0, instructions: std::ptr::null_mut() };
        let len = frame.len() as u32;
        let captured = Captured { at: libc::timeval { tv_sec: 0, tv_usec: 0 }, caplen: len, len };
        // SAFETY: the functions have these types in pcap(3PCAP); the records and the frame outlive
        // the calls, and the handle and the program are freed once, at the end.
        unsafe {
            let open_dead: OpenDead = std::mem::transmute(self.symbol(c"pcap_open_dead"));
            let compile: Compile = std::mem::transmute(self.symbol(c"pcap_compile"));
            let offline: Filter = std::mem::transmute(self.symbol(c"pcap_offline_filter"));
            let free: Free = std::mem::transmute(self.symbol(c"pcap_freecode"));
            let close: Close = std::mem::transmute(self.symbol(c"pcap_close"));
            let handle = open_dead(DLT_EN10MB, SNAPLEN);
            assert!(!handle.is_null(), "pcap_open_dead");
            let compiled = compile(handle, &mut program, text.as_ptr(), 1, PCAP_NETMASK_UNKNOWN);
            assert_eq!(compiled, 0, "libpcap does not compile {filter}");
            let is_match = offline(&program, &captured, frame.as_ptr()) != 0;
            free(&mut program);
            close(handle);
            is_match
        }
    }
}
