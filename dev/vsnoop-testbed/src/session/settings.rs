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

/// Changes the setting at `path` for `holder` to what `value` makes of the present one. A value
/// that another run has set stays for this one, too, when that one ends.
pub fn change(
    dir: &Path,
    holder: &str,
    path: &Path,
    value: impl FnOnce(&str) -> String,
) -> Result<()> {
    let mut settings = read(dir);
    let before = value_of(path)?;
    let value = value(&before);
    let is_new = value != before;
    if !is_new && !settings.0.contains_key(path) {
        return Ok(());
    }
    let setting = settings.0.entry(path.to_owned());
    let setting = setting.or_insert_with(|| Setting { before, holders: BTreeSet::new() });
    setting.holders.insert(holder.to_owned());
    // Noted first, so that it is set back whatever comes between.
    write(dir, &settings)?;
    if is_new {
        fs::write(path, &value).with_context(|| format!("write {value} to {}", path.display()))?;
    }
    Ok(())
}

fn value_of(path: &Path) -> Result<String> {
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

    /// A directory with a setting in it.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str, value: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("settings-{name}-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("setting"), value).unwrap();
            Self(dir)
        }

        fn change(&self, holder: &str, value: impl FnOnce(&str) -> String) {
            change(&self.0, holder, &self.0.join("setting"), value).unwrap();
        }

        fn value(&self) -> String {
            value_of(&self.0.join("setting")).unwrap()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_last_run_that_ends_sets_back_what_the_first_one_found() {
        let dir = Dir::new("last", "1000\n");
        dir.change("a", |_| "20000".into());
        dir.change("b", |_| "30000".into());
        give_back(&dir.0, "a");
        assert_eq!(dir.value(), "30000");
        give_back(&dir.0, "b");
        assert_eq!(dir.value(), "1000");
        assert!(!dir.0.join(FILE).exists());
    }

    #[test]
    fn what_another_run_has_allowed_stays_until_the_last_one_that_needs_it_ends() {
        let dir = Dir::new("allowed", "reno cubic\n");
        let with = |name: &'static str| {
            move |allowed: &str| match allowed.contains(name) {
                true => allowed.to_owned(),
                false => format!("{allowed} {name}"),
            }
        };
        dir.change("a", with("bbr"));
        dir.change("b", with("bbr"));
        give_back(&dir.0, "a");
        assert_eq!(dir.value(), "reno cubic bbr");
        give_back(&dir.0, "b");
        assert_eq!(dir.value(), "reno cubic");
        dir.change("c", with("cubic"));
        assert!(!dir.0.join(FILE).exists(), "nothing was changed");
    }
}
