//! The help, and the menu of columns.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::super::keys::HELP;
use super::super::model::Model;

/// The keys, then the columns of the table.
pub fn draw_help(frame: &mut Frame, area: Rect, model: &mut Model) {
    let keys = HELP.iter().map(|(key, does)| key_line(key, does));
    let list = model.list();
    let columns = list.used_columns().into_iter().map(|column| {
        let (heading, meaning) = list.describe_column(column);
        key_line(heading, meaning)
    });
    let lines: Vec<_> = keys.chain([Line::default()]).chain(columns).collect();
    draw_popup(frame, area, " help: any key goes back ", lines, 0);
}

/// The columns to sort by; `cursor` is the chosen one.
pub fn draw_columns(frame: &mut Frame, area: Rect, model: &mut Model, cursor: usize) {
    let list = model.list();
    let lines = list.used_columns().into_iter().enumerate().map(|(place, column)| {
        let (heading, meaning) = list.describe_column(column);
        let line = key_line(heading, meaning);
        if place == cursor { line.style(Style::new().reversed()) } else { line }
    });
    let lines: Vec<_> = lines.collect();
    draw_popup(frame, area, " sort by: Enter, r reversed, Esc ", lines, cursor);
}

fn key_line(left: &'static str, right: &'static str) -> Line<'static> {
    Line::from(vec![Span::styled(format!("{left:<12} "), Style::new().bold()), Span::raw(right)])
}

/// A box in the middle, as large as its text or the screen; the line `keep` stays visible.
fn draw_popup(frame: &mut Frame, area: Rect, title: &'static str, lines: Vec<Line>, keep: usize) {
    let widest = lines.iter().map(Line::width).max().unwrap_or(0).max(title.len());
    let place = area.centered(
        Constraint::Length((widest as u16).saturating_add(4)),
        Constraint::Length((lines.len() as u16).saturating_add(2)),
    );
    let inside = usize::from(place.height).saturating_sub(2);
    let scroll = (keep + 1).saturating_sub(inside) as u16;
    let block = Block::bordered().title(title).padding(ratatui::widgets::Padding::horizontal(1));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(block).scroll((scroll, 0)), place);
}
