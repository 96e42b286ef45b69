//! Names as the kernel and C have them: bytes, and at least one NUL.

use std::ffi::CStr;

/// Cuts a text that is too long.
pub(crate) fn c_name<const SIZE: usize>(name: &str) -> [std::ffi::c_char; SIZE] {
    let mut out = [0; SIZE];
    for (to, from) in out.iter_mut().zip(name.bytes().take(SIZE - 1)) {
        *to = from as std::ffi::c_char;
    }
    out
}

pub(crate) fn c_string<const SIZE: usize>(chars: &[std::ffi::c_char; SIZE]) -> String {
    let bytes = chars.map(|c| c as u8);
    CStr::from_bytes_until_nul(&bytes)
        .map(|s| s.to_string_lossy().into_owned())
        .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned())
}
