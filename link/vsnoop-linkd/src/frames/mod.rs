//! Frames on their way through the link, and how each is compressed.

pub mod compression_policy;
pub mod frame;
