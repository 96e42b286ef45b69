//! vsnoop-flow
