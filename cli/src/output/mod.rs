//! Output: lines that fit the terminal, tables, histograms, JSON, and refreshing.

pub mod bars;
pub mod fold;
pub mod gain;
pub mod hint;
pub mod histogram;
pub mod hold;
pub mod report;
pub mod table;
pub mod watch;
