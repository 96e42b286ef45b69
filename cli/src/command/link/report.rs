//! The report of a link in the background to the command that started it.

use serde::{Deserialize, Serialize};

/// The result of its start.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    Up { warnings: Vec<String> },
    Failed { message: String, exit_code: u8 },
}
