//! vsnoop-frame
