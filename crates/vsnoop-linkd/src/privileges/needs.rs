//! What a link does while it runs that needs a privilege, beside what all links do.

#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// It attaches hooks to taps that come later.
    pub diverts: bool,
    /// It opens sockets at a port that not everybody may open.
    pub binds_low_port: bool,
}
