use std::os::unix::fs::MetadataExt;
use vsnoop_bpf::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let netns = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    let name = std::ffi::CString::new(a[2].clone()).unwrap();
    let ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) };
    match a[1].as_str() {
        "attach" => {
            let mut spec = AttachSpec::new(ifindex, &a[2], netns);
            spec.policy.run = types::port_run::PORT_ACTIVE;
            if a.len() > 3 { spec.policy.thin = a[3].parse().unwrap(); }
            Port::attach(&spec).unwrap_or_else(|e| panic!("{e}"));
        }
        "detach" => Port::open(netns, ifindex).unwrap().detach().unwrap(),
        _ => {
            let p = Port::open(netns, ifindex).unwrap();
            println!("{:#?}", p.stats().unwrap());
            println!("{:?}", p.state().unwrap());
            for (_, f) in p.flows().unwrap() { println!("{f:?}"); }
            for p in p.programs().unwrap() { println!("{} {} runs {:.1} ns", p.name, p.run_count, p.run_time_ns as f64 / p.run_count.max(1) as f64); }
        }
    }
}
