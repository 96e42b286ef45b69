//! The file system of pins.

use std::ffi::CString;
use std::mem::MaybeUninit;

use crate::error::{Error, Result};

/// `BPF_FS_MAGIC`, linux/magic.h.
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

pub(crate) fn check_bpffs() -> Result<()> {
    let path = CString::new("/sys/fs/bpf").expect("no NUL in a literal");
    let mut st = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: a valid C string and a buffer of the right type.
    let rc = unsafe { libc::statfs(path.as_ptr(), st.as_mut_ptr()) };
    // SAFETY: statfs() fills the zeroed buffer or leaves it zeroed.
    if rc != 0 || unsafe { st.assume_init() }.f_type != BPF_FS_MAGIC {
        return Err(Error::NoBpfFs);
    }
    Ok(())
}
