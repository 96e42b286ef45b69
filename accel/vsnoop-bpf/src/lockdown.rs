//! Lockdown (kernel_lockdown(7)): what the kernel refuses even to root.

use std::fs;

/// Its level, `integrity` or `confidentiality`; `None`: nothing is refused.
pub fn lockdown() -> Option<String> {
    level(&fs::read_to_string("/sys/kernel/security/lockdown").ok()?)
}

/// "none [integrity] confidentiality"
fn level(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (level, _) = rest.split_once(']')?;
    (level != "none").then(|| level.to_owned())
}

/// Says that `what` was refused, with the lockdown level that may be the reason.
pub(crate) fn under(what: &str, level: Option<&str>) -> String {
    level.map_or_else(
        || what.to_owned(),
        |level| format!("{what} (it is locked down: {level}, see kernel_lockdown(7))"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_is_the_word_in_brackets() {
        assert_eq!(level("[none] integrity confidentiality\n"), None);
        assert_eq!(level("none [integrity] confidentiality\n"), Some("integrity".into()));
        assert_eq!(level("none integrity [confidentiality]\n"), Some("confidentiality".into()));
        assert_eq!(level(""), None);
    }

    #[test]
    fn a_refusal_names_it() {
        let text = under("program to_vm", Some("confidentiality"));
        assert!(text.contains("to_vm") && text.contains("locked down: confidentiality"), "{text}");
        assert_eq!(under("program to_vm", None), "program to_vm");
    }
}
