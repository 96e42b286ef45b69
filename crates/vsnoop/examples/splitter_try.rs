#![allow(dead_code)]
#[path = "../src/splitter/mod.rs"]
mod splitter;
mod output {
    pub mod watch {
        pub struct Interrupt;
        impl Interrupt {
            pub fn is_set(&self) -> bool {
                false
            }
        }
    }
}
fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).init();
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap();
    let host = args.next().unwrap();
    let netns = vsnoop_host::system::netns::Netns::current()?;
    let found = vsnoop_host::ports::find(&name, &netns)?;
    let c = std::ffi::CString::new(host)?;
    let index = unsafe { libc::if_nametoindex(c.as_ptr()) };
    let spec =
        vsnoop_bpf::split::SplitSpec { tap_ifindex: found.meta.ifindex, socket_ifindex: index };
    vsnoop_bpf::split::attach(&found.port, &spec)?;
    vsnoop_host::system::netns::Netns::open("vsnoop-split")?.enter()?;
    splitter::Splitter::new()?.work(&output::watch::Interrupt, |_| false)?;
    Ok(())
}
