//! Parts of vsnoop-lab that experiments and tests share.

pub mod testbed;
