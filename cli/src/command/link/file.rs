//! Path of a link's configuration.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use vsnoop_linkd::config::{self, is_link_name};

use crate::error::usage_error;

/// A word is the name of a file in [`config::DIRECTORY`].
pub fn file_of(link: &str) -> Result<PathBuf> {
    if link.contains('/') || link.ends_with(".toml") {
        return std::path::absolute(link).with_context(|| format!("find {link}"));
    }
    let file = Path::new(config::DIRECTORY).join(format!("{link}.toml"));
    if !is_link_name(link) || !file.exists() {
        return Err(usage_error(format!(
            "there is no {}; write one (docs/guide/links/configuration.md), or give the path of a file, with a '/'",
            file.display()
        )));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_file_and_a_word_is_a_name() {
        assert_eq!(file_of("/x/y.conf").unwrap(), Path::new("/x/y.conf"));
        let here = std::env::current_dir().unwrap();
        assert_eq!(file_of("a.toml").unwrap(), here.join("a.toml"));
        for word in ["no-such-link", "..", ""] {
            let error = file_of(word).unwrap_err();
            assert!(error.to_string().contains("/etc/vsnoop/link/"), "{error}");
            assert_eq!(crate::error::exit_code(&error), crate::error::EXIT_USAGE);
        }
    }
}
