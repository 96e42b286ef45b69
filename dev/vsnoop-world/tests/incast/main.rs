//! Incast control (accel/flow/incast.h), as the programs of accel/bpf/ do it: its rules one by one,
//! its invariants under any events, and its results in a simulated network.

mod answers;
mod case;
mod hooks;
mod ignored;
mod properties;
mod rounds;
mod rules;
mod sim;
mod trains;
