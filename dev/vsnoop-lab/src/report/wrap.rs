//! Text in lines of a width.

/// Lines of at most `columns`, but for single words that are longer.
pub fn wrapped(text: &str, columns: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is a first line");
        let width = last.chars().count() + 1 + word.chars().count();
        if !last.is_empty() && width > columns {
            lines.push(word.to_owned());
        } else {
            let blank = if last.is_empty() { "" } else { " " };
            *last += &format!("{blank}{word}");
        }
    }
    lines.join("\n")
}
