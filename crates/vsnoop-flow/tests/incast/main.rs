//! Incast control (flow/incast.h): its rules one by one, what holds under any events, and how it
//! does in a simulated network.

mod case;
mod host;
mod properties;
mod rounds;
mod rules;
mod sim;
