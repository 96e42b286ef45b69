//! Lists the directory of all pins: ports, and damaged directories.

use std::path::PathBuf;

use vsnoop_flow::types::port_meta;

use crate::error::{Damage, Error, Result};
use crate::map::read_only_value;
use crate::maps::PortMap;
use crate::pins::{self, Stage};
use crate::port::Port;
use crate::programs;

/// A directory under [`crate::PIN_ROOT`] that is no port of this version.
#[derive(Debug)]
pub struct Damaged {
    /// The directory.
    pub path: PathBuf,
    /// The fault.
    pub reason: Damage,
}

impl Damaged {
    /// An incomplete attach: its process was killed.
    pub fn is_arriving(&self) -> bool {
        pins::is_arriving(&self.path)
    }

    /// The record of its attachment, if there is one of this version.
    pub fn meta(&self) -> Option<port_meta> {
        read_only_value(&self.path.join(PortMap::Meta.pin())).ok()
    }

    /// Removes it: hooks first, then the rest.
    pub fn remove(&self) -> Result<()> {
        programs::remove(&self.path)
    }
}

/// The result of [`Port::list`].
#[derive(Debug)]
pub enum Listed {
    /// A working attachment.
    Port(Box<Port>),
    /// Left-overs, or another version's state.
    Damaged(Damaged),
}

impl Port {
    /// The ports under [`crate::PIN_ROOT`], damaged or not, without those that a process is taking
    /// away.
    pub fn list() -> Result<Vec<Listed>> {
        Self::open_all(pins::entries(Stage::Listed)?)
    }

    /// The directories that [`Port::list`] would open, with ids: a cheap way to notice changes.
    pub fn names() -> Result<Vec<(PathBuf, Option<u64>)>> {
        let with_inode = |path: PathBuf| {
            let inode = pins::inode(&path);
            (path, inode)
        };
        Ok(pins::entries(Stage::Listed)?.into_iter().map(with_inode).collect())
    }

    /// Ports that a process is detaching, or was when it was killed, and incomplete attaches of
    /// killed processes.
    pub fn cut_short() -> Result<Vec<Listed>> {
        let mut paths = pins::entries(Stage::Leaving)?;
        paths.extend(pins::entries(Stage::CutShort)?);
        Self::open_all(paths)
    }

    /// Ports that a process is detaching, or was when it was killed, and attaches that are under
    /// way.
    pub fn unfinished() -> Result<Vec<Listed>> {
        let mut paths = pins::entries(Stage::Leaving)?;
        paths.extend(pins::entries(Stage::Arriving)?);
        Self::open_all(paths)
    }

    fn open_all(paths: Vec<PathBuf>) -> Result<Vec<Listed>> {
        let found = paths.into_iter().filter_map(|path| match Self::open_dir(&path) {
            Ok(port) => Some(Ok(Listed::Port(Box::new(port)))),
            Err(Error::NotAttached(_)) => None,
            Err(Error::Damaged { path, reason }) => {
                Some(Ok(Listed::Damaged(Damaged { path, reason })))
            }
            Err(error) => Some(Err(error)),
        });
        found.collect()
    }
}
