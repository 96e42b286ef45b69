//! Settings of the kernel that runs change for all: the first run notes the value, the last one to
//! end restores it.
//!
//! All functions are called with the lock of [`super::Session`] held.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::file::write_json;

const FILE: &str = "settings.json";

/// By the path of the setting.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Settings(BTreeMap<PathBuf, Setting>);

#[derive(Debug, Serialize, Deserialize)]
struct Setting {
    before: String,
    /// Runs that need it, by the names of their directories.
    holders: BTreeSet<String>,
}

/// Changes the setting at `path` for `holder`.
pub fn change(dir: &Path, holder: &str, path: &Path, value: &str) -> Result<()> {
    let mut settings = read(dir);
    let before = value_of(path)?;
    let setting = settings.0.entry(path.to_owned());
    let setting = setting.or_insert_with(|| Setting { before, holders: BTreeSet::new() });
    setting.holders.insert(holder.to_owned());
    // Noted first, so that it is set back whatever comes between.
    write(dir, &settings)?;
    fs::write(path, value).with_context(|| format!("write {value} to {}", path.display()))
}

pub fn value_of(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

/// Restores the settings that only `holder` needs.
pub fn give_back(dir: &Path, holder: &str) {
    let mut settings = read(dir);
    settings.0.retain(|path, setting| {
        setting.holders.remove(holder);
        if !setting.holders.is_empty() {
            return true;
        }
        if let Err(error) = fs::write(path, &setting.before) {
            eprintln!("{} is not set back to {}: {error}", path.display(), setting.before);
        }
        false
    });
    let kept = match settings.0.is_empty() {
        true => fs::remove_file(dir.join(FILE)).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error.into()),
        }),
        false => write(dir, &settings),
    };
    if let Err(error) = kept {
        eprintln!("settings of the kernel: {error:#}");
    }
}

fn read(dir: &Path) -> Settings {
    let text = fs::read(dir.join(FILE)).ok();
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

fn write(dir: &Path, settings: &Settings) -> Result<()> {
    write_json(&dir.join(FILE), settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_run_that_ends_sets_back_what_the_first_one_found() {
        let dir = std::env::temp_dir().join(format!("settings-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let setting = dir.join("backlog");
        fs::write(&setting, "1000\n").unwrap();
        change(&dir, "a", &setting, "20000").unwrap();
        change(&dir, "b", &setting, "30000").unwrap();
        give_back(&dir, "a");
        assert_eq!(value_of(&setting).unwrap(), "30000");
        give_back(&dir, "b");
        assert_eq!(value_of(&setting).unwrap(), "1000");
        assert!(!dir.join(FILE).exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
