//! Values of C as bytes.

/// The bytes of a key.
pub fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: as many bytes as it has; keys have no padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}
