//! One module per command of the command line, and what several of them have in common: the host's
//! settings (`config`), and the holds of a port as they are now (`held`).

pub mod attach;
pub mod config;
pub mod detach;
pub mod doctor;
pub mod flows;
pub mod held;
pub mod incast;
pub mod link;
pub mod observe;
pub mod off;
pub mod pause;
pub mod set;
pub mod stats;
pub mod status;
