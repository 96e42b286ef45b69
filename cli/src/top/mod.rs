//! `vsnoop top`: a view of ports, and of the flows of one port, that refreshes itself.
//!
//! A thread of its own reads (`reader`, `source`, `holders`), at most one sample ahead, so that a
//! slow read delays no key. Each reading takes the same few maps of each port; records of flows are
//! read for the port that is shown, and for a bounded number of others, whose flows are counted in
//! turn. `rows` makes the values of an interval of two samples, `columns` defines each
//! column, `list` sorts, filters and selects.
//!
//! `model` is what is shown: it takes samples, and keys by `keys`, and does no input or output.
//! `view` draws it on any buffer. `screen` owns the terminal and runs the loop around them, `plain`
//! prints tables where there is no terminal.

mod column;
mod columns;
mod holders;
mod keys;
mod list;
mod model;
mod plain;
mod reader;
mod rows;
mod sample;
mod screen;
mod source;
#[cfg(test)]
mod testing;
mod view;

pub use plain::run_plain as print;
pub use screen::run_screen as show;
pub use source::Source;
