//! Super-packets cut into segments and merged again, fragments, the MSS.
