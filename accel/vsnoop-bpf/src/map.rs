//! Pinned maps.

use std::path::Path;

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::error::{Damage, Error, Result};
use crate::record::Record;

/// Opens a pinned map and checks that its values are of type `T`.
pub(crate) fn open_map<T: Record>(path: &Path) -> Result<MapHandle> {
    let map = open_any_map(path)?;
    if !T::may_have(map.value_size() as usize) {
        let (pin, bytes, ours) = (path.to_owned(), map.value_size(), size_of::<T>());
        return Err(damaged(path, Damage::RecordSize { pin, bytes, ours }));
    }
    Ok(map)
}

/// Opens a pinned map with values of any type.
pub(crate) fn open_any_map(path: &Path) -> Result<MapHandle> {
    MapHandle::from_pinned_path(path).map_err(|source| unopened(path, source))
}

/// The error for a pin that cannot be opened: it is damaged, or this process has no descriptor or
/// memory left.
pub(crate) fn unopened(path: &Path, source: libbpf_rs::Error) -> Error {
    match source.kind() {
        ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::InvalidInput
        | ErrorKind::InvalidData => {
            damaged(path, Damage::Pin { pin: path.to_owned(), error: source })
        }
        _ => Error::bpf(format!("open {}", path.display()))(source),
    }
}

/// The error for the directory of a damaged pin.
fn damaged(pin: &Path, reason: Damage) -> Error {
    Error::Damaged { path: pin.parent().unwrap_or(pin).to_owned(), reason }
}

/// Reads the only value of a pinned map.
pub(crate) fn read_only_value<T: Record>(path: &Path) -> Result<T> {
    let what = || format!("read {}", path.display());
    let map = MapHandle::from_pinned_path(path).map_err(Error::bpf(what()))?;
    let bytes = map.lookup(&[0; 4], MapFlags::ANY).map_err(Error::bpf(what()))?;
    bytes.and_then(|bytes| T::from_bytes(&bytes)).ok_or_else(|| {
        let (path, reason) = (path.to_owned(), Damage::Unread { what: "it" });
        Error::Damaged { path, reason }
    })
}
