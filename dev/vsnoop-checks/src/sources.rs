//! The sources of the project: files by their language.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The language of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    RustOrC,
    /// Shell or TOML.
    Script,
    Markdown,
}

impl Language {
    /// That of a file, by its name.
    pub fn from_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "rs" | "c" | "h" => Some(Self::RustOrC),
            "sh" | "toml" => Some(Self::Script),
            "md" => Some(Self::Markdown),
            _ => None,
        }
    }
}

/// The sources below a directory, without those of builds, results of runs and hidden directories.
pub fn sources(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            let is_source = directory.ends_with("src");
            let is_built =
                !is_source && ["target", "build", "results"].iter().any(|one| name == *one);
            if !is_built && !name.to_string_lossy().starts_with('.') {
                found.extend(sources(&path)?);
            }
        } else if Language::from_path(&path).is_some() {
            found.push(path);
        }
    }
    Ok(found)
}
