//! Incast control (flow/incast.h): its rules one by one, its invariants under any events, and its
//! results in a simulated network.

mod case;
mod host;
mod properties;
mod rounds;
mod rules;
mod sim;
