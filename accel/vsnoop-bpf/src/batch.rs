//! The kernel returns whole buckets: a batch that is not full is not the last one (libbpf-rs's
//! iterator assumes that it is), and one with room for less than a bucket fails with ENOSPC.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapHandle};

use crate::record::Record;

/// Records asked for at first.
const BATCH: usize = 4096;

/// All entries, each value read under its record's lock.
pub(crate) fn entries<K: Record, V: Record>(map: &MapHandle) -> libbpf_rs::Result<Vec<(K, V)>> {
    let (key_size, value_size) = (map.key_size() as usize, map.value_size() as usize);
    let opts = libbpf_sys::bpf_map_batch_opts {
        sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as _,
        elem_flags: u64::from(libbpf_sys::BPF_F_LOCK),
        ..Default::default()
    };
    let mut room = BATCH;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    // Where the next batch begins; the kernel writes 4 bytes for a hash map.
    let (mut from, mut to) = ([0u8; 8], [0u8; 8]);
    let mut first = true;
    let mut found = Vec::new();
    loop {
        keys.resize(room * key_size, 0u8);
        values.resize(room * value_size, 0u8);
        let mut count = room as u32;
        // SAFETY: both buffers have room for `count` entries of the map's own
        // sizes; the positions have room for what the kernel writes.
        let rc = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                if first { std::ptr::null_mut() } else { from.as_mut_ptr().cast() },
                to.as_mut_ptr().cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &mut count,
                &opts,
            )
        };
        match -rc {
            libc::ENOSPC => {
                room *= 2;
                continue;
            }
            libc::EINTR => continue,
            0 | libc::ENOENT => {}
            errno => return Err(libbpf_rs::Error::from_raw_os_error(errno)),
        }
        let batch = keys.chunks_exact(key_size).zip(values.chunks_exact(value_size));
        found.extend(
            batch
                .take(count as usize)
                .filter_map(|(key, value)| Some((K::from_bytes(key)?, V::from_bytes(value)?))),
        );
        if rc != 0 {
            return Ok(found);
        }
        (from, first) = (to, false);
    }
}
