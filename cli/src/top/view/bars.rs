//! The lines above and below the table.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use vsnoop_host::units;

use super::super::columns::byte_rate;
use super::super::keys::LEGEND;
use super::super::model::{Flows, Model, Overlay};
use super::super::rows::{Change, Total};

/// The name of the program, how all ports are, and how often that is read.
pub fn draw_title(frame: &mut Frame, area: Rect, model: &Model) {
    let right = if model.is_paused {
        " PAUSED ".to_owned()
    } else {
        format!(" every {} ", units::duration(model.interval.as_nanos() as u64))
    };
    let width = usize::from(area.width);
    let parts = match &model.flows {
        Some(flows) => flows_parts(flows, model),
        None => total_parts(&model.total),
    };
    let mut text = " vsnoop top".to_owned();
    let mut left = width.saturating_sub(text.len() + right.len());
    for part in parts {
        if part.chars().count() + 3 > left {
            break;
        }
        left -= part.chars().count() + 3;
        text.push_str(&format!("   {part}"));
    }
    let bar = Style::new().add_modifier(Modifier::REVERSED);
    let right_style = if model.is_paused { bar.fg(Color::Yellow).bold() } else { bar };
    // A screen that is too narrow for both keeps the pause.
    let is_narrow = width < text.len() + right.len();
    let text = if is_narrow && model.is_paused { "" } else { &text };
    let right = if is_narrow && !model.is_paused { String::new() } else { right };
    let gap = width.saturating_sub(text.chars().count() + right.len());
    let line = Line::from(vec![
        Span::styled(format!("{text}{}", " ".repeat(gap)), bar.bold()),
        Span::styled(right, right_style),
    ]);
    frame.render_widget(Paragraph::new(line).style(bar), area);
}

/// The most important first.
fn total_parts(total: &Total) -> Vec<String> {
    let mut parts = vec![units::plural(total.ports as u64, "port")];
    if total.active != total.ports {
        parts[0].push_str(&format!(", {} active", total.active));
    }
    if let Some(change) = &total.change {
        parts.extend(change_parts(change));
    }
    if total.size_bytes > 0 {
        parts.push(format!("hold {}", units::bytes_part(total.used_bytes, total.size_bytes)));
    }
    if total.resets > 0 {
        parts.push(units::plural(total.resets, "reset"));
    }
    parts
}

fn change_parts(change: &Change) -> Vec<String> {
    let share =
        change.share().map_or(String::new(), |share| format!(" ({})", units::percent(share)));
    let mut parts = vec![format!("{}/s early{share}", byte_rate(change.early_rate()))];
    parts.extend(change.masked_ns().map(|ns| format!("masked {}", units::duration(ns))));
    parts
}

fn flows_parts(flows: &Flows, model: &Model) -> Vec<String> {
    let row = model.ports.all().iter().find(|row| row.id == flows.port);
    let vm = row.and_then(|row| row.vm.as_ref()).map_or(String::new(), |vm| format!(" ({vm})"));
    let state = if flows.is_gone { "gone" } else { row.map_or("gone", |row| row.state) };
    let mut parts = vec![format!("{}{vm} {state}", flows.name)];
    parts.push(units::plural(flows.list.all().len() as u64, "flow"));
    if let Some(change) = row.and_then(|row| row.change.as_ref()) {
        parts.extend(change_parts(change));
    }
    parts
}

/// Draws unusual states, and the filter.
pub fn draw_status(frame: &mut Frame, area: Rect, model: &mut Model) {
    let mut parts = Vec::new();
    let all = match &model.flows {
        Some(flows) => flows.list.all().len(),
        None => model.ports.all().len(),
    };
    let (filter, shown) = {
        let list = model.list();
        (list.filter().to_owned(), list.len())
    };
    if !filter.is_empty() {
        let text = format!("/{filter}: {shown} of {all}");
        parts.push(Span::styled(text, Style::new().fg(Color::Cyan)));
    }
    parts.extend(
        list_troubles(model)
            .into_iter()
            .map(|text| Span::styled(text, Style::new().fg(Color::Red))),
    );
    let mut line = Line::default();
    for part in parts {
        line.push_span(Span::raw(" "));
        line.push_span(part);
        line.push_span(Span::raw(" "));
    }
    frame.render_widget(Paragraph::new(line), area);
}

fn list_troubles(model: &Model) -> Vec<String> {
    let mut troubles = Vec::new();
    troubles.extend(model.error.clone());
    if model.flows.as_ref().is_some_and(|flows| flows.is_gone) {
        troubles.push("not attached any more; Esc goes back".into());
    }
    if let [first, more @ ..] = model.total.without_engine.as_slice() {
        let more =
            if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        troubles.push(format!("no engine serves {first}{more}"));
    }
    if !model.has_helper && model.total.ports > 0 {
        troubles.push("no helper runs".into());
    }
    if model.damaged > 0 {
        troubles.push(format!("{} damaged: see `vsnoop status`", model.damaged));
    }
    troubles
}

/// The legend of keys, or the filter that is edited.
pub fn draw_foot(frame: &mut Frame, area: Rect, model: &mut Model) {
    if let Overlay::Filter { .. } = model.overlay {
        return draw_prompt(frame, area, model.list().filter());
    }
    let mut line = Line::default();
    let mut left = usize::from(area.width);
    for (key, does) in LEGEND {
        let does = match (key, &model.flows) {
            ("Enter", Some(_)) => continue,
            ("q", Some(_)) => "quit  Esc back",
            ("p", _) if model.is_paused => "go on",
            _ => does,
        };
        let width = key.len() + does.len() + 4;
        if width > left {
            break;
        }
        left -= width;
        line.push_span(Span::raw(" "));
        line.push_span(Span::styled(key, Style::new().reversed()));
        line.push_span(Span::raw(format!(" {does}  ")));
    }
    frame.render_widget(Paragraph::new(line), area);
}

/// The end of the text stays visible.
fn draw_prompt(frame: &mut Frame, area: Rect, text: &str) {
    let room = usize::from(area.width).saturating_sub(2);
    let skip = text.chars().count().saturating_sub(room);
    let text: String = text.chars().skip(skip).collect();
    let column = area.x.saturating_add(1 + text.chars().count() as u16);
    frame.render_widget(Paragraph::new(format!("/{text}")), area);
    if !area.is_empty() {
        frame.set_cursor_position((column.min(area.right().saturating_sub(1)), area.y));
    }
}
