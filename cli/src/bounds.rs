//! The bounds of a port: its hold, how far senders may send beyond the VM's window, and whether
//! downloads are split.

use vsnoop_bpf::CongestionControl;
use vsnoop_bpf::types::policy;
use vsnoop_host::attach::UNBOUNDED;
use vsnoop_host::units;

/// `None`: as far as the hold allows.
pub fn ahead_bytes(ahead: u32) -> Option<u64> {
    (ahead != UNBOUNDED).then_some(ahead.into())
}

/// They were asked for, and the host, or the port, is not fit.
pub fn downloads_stay_off(port: &str, why: &str) -> String {
    format!("port {port}: downloads stay off: {why}")
}

/// For example ", splits downloads (bbr)", of a port that does.
pub fn splits_text(policy: &policy) -> String {
    let name = CongestionControl::from_policy(policy).name();
    format!(", splits downloads{}", name.map_or(String::new(), |name| format!(" ({name})")))
}

/// For example "holds at most 16 MiB, senders at most 1 MiB ahead of the VM's window".
pub fn bounds_text(hold_bytes: u64, ahead: u32) -> String {
    let hold = format!("holds at most {}", units::bytes(hold_bytes));
    match ahead_bytes(ahead) {
        None => hold,
        Some(0) => format!("{hold}, senders not ahead of the VM's window"),
        Some(bytes) => {
            format!("{hold}, senders at most {} ahead of the VM's window", units::bytes(bytes))
        }
    }
}
