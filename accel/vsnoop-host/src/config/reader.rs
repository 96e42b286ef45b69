//! The text of the host's configuration, and errors about it.

use std::path::Path;

use vsnoop_config::Fault;

use crate::error::{self, usage};

pub struct Reader<'a> {
    pub file: &'a Path,
    pub text: &'a str,
}

impl vsnoop_config::Reader for Reader<'_> {
    type Error = error::Error;

    fn contents(&self) -> &str {
        self.text
    }

    fn fault(&self, offset: usize, fault: Fault) -> error::Error {
        usage(format!("{}, {}: {fault}", self.file.display(), self.place(offset)))
    }
}
