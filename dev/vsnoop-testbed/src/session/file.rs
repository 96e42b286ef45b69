//! Files of what is to be undone.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// Writes a file as a whole or not at all.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(value).context("encode what is to be undone")?;
    let partial = path.with_extension("partial");
    fs::write(&partial, text).with_context(|| format!("write {}", partial.display()))?;
    fs::rename(&partial, path).with_context(|| format!("write {}", path.display()))
}
