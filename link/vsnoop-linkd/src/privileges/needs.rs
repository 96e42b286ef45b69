//! Actions of a running link that need privileges beyond those of all links.

#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// It attaches hooks to taps that come later.
    pub diverts: bool,
    /// It opens sockets at a port that not everybody may open.
    pub binds_low_port: bool,
}
