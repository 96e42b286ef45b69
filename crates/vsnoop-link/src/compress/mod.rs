//! Payload made smaller where that pays.
