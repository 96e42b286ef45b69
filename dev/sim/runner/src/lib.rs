//! Cells of a scenario in ns-3: which there are, what each gave, and the report of all.

pub mod cell;
pub mod figures;
pub mod record;
pub mod report;
pub mod scenario;
pub mod waits;
