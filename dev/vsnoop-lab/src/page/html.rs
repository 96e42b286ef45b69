//! Reports in Markdown as parts of a page.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html};

/// The HTML of a text whose plots are in a directory; they are put in as SVG.
pub fn render(markdown: &str, plots: &Path) -> Result<String> {
    let mut events = Vec::new();
    let mut parser = Parser::new_ext(markdown, Options::ENABLE_TABLES);
    while let Some(event) = parser.next() {
        let Event::Start(Tag::Image { dest_url, .. }) = event else {
            events.push(event);
            continue;
        };
        let path = plots.join(&*dest_url);
        let svg = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        events.push(Event::Html(format!("<figure>{svg}</figure>").into()));
        // The words that stand for the image.
        parser.by_ref().find(|event| *event == Event::End(TagEnd::Image));
    }
    let mut text = String::new();
    html::push_html(&mut text, events.into_iter());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_its_plots_inside() {
        let dir = std::env::temp_dir().join(format!("vsnoop-lab-html-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("p.svg"), "<svg>drawn</svg>").unwrap();
        let page = render("| a & b |\n|---|\n| `x < y` |\n\n![plot](p.svg)\n", &dir);
        let missing = render("![plot](q.svg)", &dir);
        fs::remove_dir_all(&dir).unwrap();
        let page = page.unwrap();
        for expected in ["<figure><svg>drawn</svg></figure>", "a &amp; b", "<code>x &lt; y</code>"]
        {
            assert!(page.contains(expected), "{expected} is not in {page}");
        }
        assert!(!page.contains("<img") && missing.is_err(), "{page}");
    }
}
