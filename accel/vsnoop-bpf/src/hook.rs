//! The two places of a tap where programs are.

/// One of the two hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// tcx egress of the tap.
    ToVm = 0,
    /// tcx ingress of the tap.
    FromVm = 1,
}

impl Hook {
    /// The kernel's number of the hook (`enum bpf_attach_type`).
    pub fn attach_type(self) -> libbpf_sys::bpf_attach_type {
        match self {
            Hook::ToVm => libbpf_sys::BPF_TCX_EGRESS,
            Hook::FromVm => libbpf_sys::BPF_TCX_INGRESS,
        }
    }
}
