use std::process::Command;

use vsnoop_bpf::{AttachSpec, Port};

#[test]
fn the_running_kernel_accepts_the_programs() {
    // SAFETY: a namespace of this thread's own; nothing else runs on it.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "unshare: run as root");
    let ip = |args: &str| {
        assert!(Command::new("ip").args(args.split(' ')).status().unwrap().success(), "ip {args}")
    };
    ip("tuntap add dev t0 mode tap vnet_hdr");
    ip("link set t0 up");
    let ifindex = unsafe { libc::if_nametoindex(c"t0".as_ptr()) };
    use std::os::unix::fs::MetadataExt;
    let netns = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    let port = Port::attach(&AttachSpec::new(ifindex, "t0", netns)).unwrap_or_else(|e| panic!("{e}\n{e:?}"));
    for p in port.programs().unwrap() {
        println!("{p:?}");
    }
    assert!(port.links_alive());
    println!("{:?}", port.meta().unwrap());
    port.detach().unwrap();
}
