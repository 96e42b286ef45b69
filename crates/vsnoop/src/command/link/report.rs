//! What a link in the background tells the command that started it.

use serde::{Deserialize, Serialize};

/// What a link in the background says of its start.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    Up { warnings: Vec<String> },
    Failed { message: String, exit_code: u8 },
}
