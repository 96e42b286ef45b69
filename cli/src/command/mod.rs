//! One module per command of the command line.

pub mod attach;
pub mod check;
pub mod detach;
pub mod doctor;
pub mod flows;
pub mod incast;
#[cfg(feature = "link")]
pub mod link;
pub mod manual;
pub mod observe;
pub mod off;
pub mod pause;
pub mod reload;
pub mod run;
pub mod set;
pub mod stats;
pub mod status;
pub mod top;
