//! One test for each rule of the engine's decisions, frame by frame. The stream begins shortly before its
//! sequence numbers wrap.

mod case;
mod chain;
mod flow;
mod recovery;
mod view;
