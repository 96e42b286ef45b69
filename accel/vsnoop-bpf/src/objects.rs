//! The compiled objects of bpf/, and the names of their maps and programs.
//!
//! build.rs reads the names out of the objects and makes enums of them: a name that is misspelt, or
//! whose map was removed, does not compile, and a `match` must say what becomes of a new one.

use std::ffi::OsStr;

use libbpf_rs::{Map, MapCore, Object, Program};

/// One of the names of an object.
pub(crate) trait Named: Copy + PartialEq + std::fmt::Debug + 'static {
    /// All of the object's.
    const ALL: &'static [Self];

    /// The name in the source; for a section of variables the name of that section.
    fn name(self) -> &'static str;

    /// That which libbpf calls so: for a section of variables it may put a part of the object's
    /// name before that of the section.
    fn from_libbpf(name: &OsStr) -> Self {
        let is_it = |one: &&Self| {
            let (name, own) = (name.as_encoded_bytes(), one.name().as_bytes());
            if own[0] == b'.' { name.ends_with(own) } else { name == own }
        };
        let found = Self::ALL.iter().find(is_it);
        *found.unwrap_or_else(|| unreachable!("{} has come after the build", name.display()))
    }
}

include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// The port's maps, without incast control.
pub(crate) static PORT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/port.bpf.o"));
/// The port's maps with incast control: flows have longer records.
pub(crate) static PORT_WITH_INCAST: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/port_incast.bpf.o"));
/// The hooks, and the programs that user space runs, without incast control.
pub(crate) static PLAIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vsnoop.bpf.o"));
/// The hooks and the programs for user space, with incast control.
pub(crate) static WITH_INCAST: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/vsnoop_incast.bpf.o"));
/// The hook on an uplink.
pub(crate) static UPLINK: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/uplink.bpf.o"));
/// The programs of split connections.
pub(crate) static SPLIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/split.bpf.o"));

/// A map of a loaded object, of which `name` is one.
pub(crate) fn map<N: Named>(object: &Object, name: N) -> Map<'_> {
    let found = object.maps().find(|map| N::from_libbpf(map.name()) == name);
    found.unwrap_or_else(|| unreachable!("{name:?} is a name of the object"))
}

/// A program of a loaded object, of which `name` is one.
pub(crate) fn program<N: Named>(object: &Object, name: N) -> Program<'_> {
    let found = object.progs().find(|program| N::from_libbpf(program.name()) == name);
    found.unwrap_or_else(|| unreachable!("{name:?} is a name of the object"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_of_variables_are_known_with_a_part_of_the_objects_name() {
        let map_of = |name: &str| vsnoop::Map::from_libbpf(OsStr::new(name));
        assert_eq!(map_of("vsnoop.rodata"), vsnoop::Map::Rodata);
        assert_eq!(map_of(".data.uplink"), vsnoop::Map::DataUplink);
        assert_eq!(map_of("ports"), vsnoop::Map::Ports);
    }
}
