//! The file system of pins.

use rustix::fs::statfs;

use crate::error::{Error, Result};

/// `BPF_FS_MAGIC`, linux/magic.h.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

pub(crate) fn check_bpffs() -> Result<()> {
    if !statfs("/sys/fs/bpf").is_ok_and(|found| found.f_type == BPF_FS_MAGIC) {
        return Err(Error::NoBpfFs);
    }
    Ok(())
}
