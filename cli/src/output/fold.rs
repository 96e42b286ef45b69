//! Lines of at most [`WIDTH`] columns, or the width of the terminal.

use terminal_size::{Height, Width, terminal_size_of};

/// A wider terminal is not used: long lines are hard to read.
pub const WIDTH: usize = 100;
/// No table fits a narrower terminal.
const LEAST_WIDTH: usize = 40;

/// Columns of standard output.
pub fn terminal_width() -> usize {
    let terminal = terminal_size_of(std::io::stdout());
    terminal.map_or(WIDTH, |(Width(width), _)| usize::from(width).clamp(LEAST_WIDTH, WIDTH))
}

/// Rows of standard output; `None` if it is no terminal.
pub fn terminal_height() -> Option<usize> {
    terminal_size_of(std::io::stdout()).map(|(_, Height(height))| height.into())
}

/// Wraps the lines that are too long.
pub fn fold_text(text: &str) -> String {
    let lines: Vec<_> = text.lines().flat_map(|line| wrap_line(line, terminal_width())).collect();
    lines.join("\n")
}

/// Wraps between words. A command between backticks is one word, so that it can be pasted; it is
/// never broken, and neither is a word that is longer than a line.
pub fn wrap_line(text: &str, width: usize) -> Vec<String> {
    // A heading, which a table has laid out.
    let is_formatted = text.starts_with('\x1b');
    if is_formatted || text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let mut lines = vec![String::new()];
    for word in split_words(text) {
        let line = lines.last().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(last) if line == 0 => last.push_str(word),
            Some(last) if line + 1 + word.chars().count() <= width => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Splits at blanks that are not between backticks.
pub fn split_words(text: &str) -> impl Iterator<Item = &str> {
    let mut is_command = false;
    let words = text.split(move |c: char| {
        is_command ^= c == '`';
        c == ' ' && !is_command
    });
    words.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_wrap_between_words_and_commands_stay_whole() {
        assert_eq!(wrap_line("short  line", 20), ["short  line"]);
        let text = "port a is gone; `vsnoop detach a` cleans up";
        assert_eq!(wrap_line(text, 20), ["port a is gone;", "`vsnoop detach a`", "cleans up"]);
        assert_eq!(wrap_line("a /much/too/long b", 6), ["a", "/much/too/long", "b"]);
    }
}
