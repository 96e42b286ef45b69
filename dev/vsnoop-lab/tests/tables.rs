//! Tables of samples, as reports have them.

use vsnoop_lab::results::table::{Style, grid};

#[test]
fn numbers_and_their_heads_stand_to_the_right() {
    let row = |fields: [&str; 4]| fields.map(str::to_owned).to_vec();
    let rows = vec![row(["10 KB", "7", "ms", "-"]), row(["1 MB", "1234", "ms", "noise (1-2)"])];
    let text = grid(Style::Markdown, &["size", "p50\nms", "unit", "ratio"], 1, rows);
    let expected = "\
| size  | p50 ms | unit |       ratio |
|-------|-------:|------|------------:|
| 10 KB |      7 | ms   |           - |
| 1 MB  |   1234 | ms   | noise (1-2) |";
    assert_eq!(text, expected);
}
