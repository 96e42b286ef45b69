//! Text of others, for a log and a terminal.

/// Longer ones are cut.
const CHARS: usize = 200;

/// A text without control characters, and not too long.
pub fn make_printable(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(CHARS) {
        match c {
            '"' | '\'' | '\\' => shown.push(c),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_terminal_that_is_not_text() {
        assert_eq!(make_printable("\"a\"\x1b[2J\nb"), "\"a\"\\u{1b}[2J\\nb");
        assert_eq!(make_printable(&"x".repeat(1000)).len(), CHARS);
    }
}
