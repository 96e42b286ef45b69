//! Pinned maps.

use std::path::Path;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::error::{Error, Result};
use crate::record::Record;

/// Opens a pinned map and checks that its values are of type `T`.
pub(crate) fn open_map<T: Record>(path: &Path) -> std::result::Result<MapHandle, String> {
    let map = MapHandle::from_pinned_path(path)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    if map.value_size() as usize != size_of::<T>() {
        return Err(format!(
            "{} has records of {} bytes, this version's have {}",
            path.display(),
            map.value_size(),
            size_of::<T>()
        ));
    }
    Ok(map)
}

/// Of a pinned map with one value.
pub(crate) fn read_only_value<T: Record>(path: &Path) -> Result<T> {
    let what = || format!("read {}", path.display());
    let map = MapHandle::from_pinned_path(path).map_err(Error::bpf(what()))?;
    let bytes = map.lookup(&[0; 4], MapFlags::ANY).map_err(Error::bpf(what()))?;
    bytes
        .and_then(|bytes| T::from_bytes(&bytes))
        .ok_or_else(|| Error::Damaged { path: path.to_owned(), reason: "it cannot be read".into() })
}
