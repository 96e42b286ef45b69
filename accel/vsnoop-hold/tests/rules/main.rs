//! One test for each rule of the engine's decisions, frame by frame. The stream begins shortly
//! before its sequence numbers wrap.

mod case;
mod chain;
mod confirm;
mod engine;
mod flow;
mod frame;
mod path;
mod recovery;
mod run_time;
mod view;
