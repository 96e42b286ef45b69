//! Errors with their causes.

use std::error::Error;

/// One of another crate.
pub type BoxedError = Box<dyn Error + Send + Sync>;

/// An error and its causes, as people read them.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
