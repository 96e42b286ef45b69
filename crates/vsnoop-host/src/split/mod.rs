//! stub, H2 has the real one
pub fn inner_device(_meta: &vsnoop_bpf::types::port_meta) -> String {
    "vs1".into()
}
