//! Colours.

use ratatui::style::{Color, Style};

use super::super::column::Tone;

/// The style of a value.
pub fn style_of(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Good => Style::new().fg(Color::Green),
        Tone::Unusual => Style::new().fg(Color::Yellow),
        Tone::Bad => Style::new().fg(Color::Red).bold(),
        Tone::Faint => Style::new().dim(),
    }
}
