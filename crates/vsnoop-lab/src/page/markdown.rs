//! A report in Markdown as a part of the page.

use std::io;

use anyhow::{Context, Result};
use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

use super::escape::escaped;

/// Sections that are folded.
const FOLDED: [&str; 3] = ["Method", "Environment", "Figures"];

/// Headings go one level down, sections of [`FOLDED`] can be unfolded, and images are put in by
/// `plot`, which gives the SVG of a name.
pub fn html(markdown: &str, plot: impl Fn(&str) -> io::Result<String>) -> Result<String> {
    let mut part = Part { events: Vec::new(), folded: false, in_cell: false };
    let mut events = Parser::new_ext(markdown, Options::ENABLE_TABLES);
    while let Some(event) = events.next() {
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                let title = text_until_end(&mut events);
                part.heading(level, title);
            }
            Event::Start(Tag::Image { dest_url, .. }) => {
                let name = text_until_end(&mut events);
                let svg = plot(&dest_url).with_context(|| format!("read {dest_url}"))?;
                part.push(format!("<figure aria-label=\"{name}\">{svg}</figure>"));
            }
            // Wide tables are scrolled by themselves.
            Event::Start(Tag::Table(columns)) => {
                part.push("<div class=\"wide\">".into());
                part.events.push(Event::Start(Tag::Table(columns)));
            }
            Event::End(TagEnd::Table) => {
                part.events.push(event);
                part.push("</div>".into());
            }
            Event::Start(Tag::TableCell) => {
                part.events.push(event);
                part.in_cell = true;
            }
            Event::End(TagEnd::TableCell) => {
                part.events.push(event);
                part.in_cell = false;
            }
            Event::Text(words) if part.in_cell => part.events.push(Event::Text(foldable(&words))),
            other => part.events.push(other),
        }
    }
    part.end_fold();
    let mut text = String::new();
    html::push_html(&mut text, part.events.into_iter());
    Ok(text)
}

struct Part<'a> {
    events: Vec<Event<'a>>,
    /// Within a section that is folded.
    folded: bool,
    /// Within a cell of a table.
    in_cell: bool,
}

/// Words of a cell that is narrow: a number keeps its unit, `timeouts/round` may be broken.
fn foldable(words: &str) -> CowStr<'static> {
    let mut text = words.replace('/', "/\u{200b}");
    for unit in ["%", "B", "KB", "MB", "ms", "s", "Mb/\u{200b}s"] {
        for digit in '0'..='9' {
            let (breaks, keeps) = (format!("{digit} {unit}"), format!("{digit}\u{a0}{unit}"));
            text = text.replace(&breaks, &keeps);
        }
    }
    text.into()
}

impl Part<'_> {
    fn push(&mut self, html: String) {
        self.events.push(Event::Html(CowStr::from(html)));
    }

    fn heading(&mut self, level: HeadingLevel, title: String) {
        self.end_fold();
        if FOLDED.contains(&title.as_str()) {
            self.folded = true;
            self.push(format!("<details><summary>{title}</summary>\n"));
        } else {
            let level = level as u8 + 1;
            self.push(format!("<h{level}>{title}</h{level}>\n"));
        }
    }

    fn end_fold(&mut self) {
        if std::mem::take(&mut self.folded) {
            self.push("</details>\n".into());
        }
    }
}

/// The words of a heading or of an image.
fn text_until_end(events: &mut Parser) -> String {
    let mut text = String::new();
    for event in events {
        match event {
            Event::End(TagEnd::Heading(_) | TagEnd::Image) => break,
            Event::Text(words) | Event::Code(words) => text += &escaped(&words),
            _ => (),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "# Title & more\n\n| a | b |\n|---|---|\n| 1 | `x < y` |\n\n![p](p.svg)\n\n\
        ## Method\n\nSomehow.\n\n## Figures\n\nNone.\n";

    fn plot(name: &str) -> io::Result<String> {
        match name {
            "p.svg" => Ok("<svg>drawn</svg>".into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    #[test]
    fn a_report_has_its_plots_inside_and_its_method_folded() {
        let html = html(REPORT, plot).unwrap();
        for expected in [
            "<h2>Title &amp; more</h2>",
            "<code>x &lt; y</code>",
            "<figure aria-label=\"p\"><svg>drawn</svg></figure>",
            "<details><summary>Method</summary>\n<p>Somehow.</p>\n</details>",
            "<details><summary>Figures</summary>\n<p>None.</p>\n</details>",
        ] {
            assert!(html.contains(expected), "{expected} is not in {html}");
        }
        assert!(!html.contains("<img"), "{html}");
    }

    #[test]
    fn a_number_keeps_its_unit_in_a_narrow_column() {
        let html = html("| a/b |\n|---|\n| 64 KB each |\n\n64 KB\n", plot).unwrap();
        assert!(html.contains("a/\u{200b}b") && html.contains("64\u{a0}KB each"), "{html}");
        assert!(html.contains("<p>64 KB</p>"), "{html}");
    }

    #[test]
    fn a_plot_that_is_not_there_is_an_error() {
        assert!(html("![q](q.svg)", plot).is_err());
    }
}
