//! Names as the kernel and C have them: up to 15 bytes, and NULs.

use std::ffi::CStr;

pub(crate) fn c_name(name: &str) -> [std::ffi::c_char; 16] {
    let mut out = [0; 16];
    for (to, from) in out.iter_mut().zip(name.bytes().take(15)) {
        *to = from as std::ffi::c_char;
    }
    out
}

pub(crate) fn c_string(chars: &[std::ffi::c_char; 16]) -> String {
    let bytes = chars.map(|c| c as u8);
    CStr::from_bytes_until_nul(&bytes)
        .map(|s| s.to_string_lossy().into_owned())
        .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned())
}
