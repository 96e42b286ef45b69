//! Draws what the model shows, on whatever room there is.
//!
//! From the top: a line on all ports, a line with what is unusual and the filter, the table, on a
//! high screen details of the selected port, and a legend of keys. A low screen keeps the table.

mod bars;
mod details;
mod popup;
mod table;
mod tone;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::widgets::{Paragraph, Wrap};

use super::list::{Browse, List, Row};
use super::model::{Model, Overlay};
use crate::output::table::NOTHING;

/// Rows of a screen from which it has the second line.
const STATUS_FROM: u16 = 8;
/// ... the legend.
const LEGEND_FROM: u16 = 4;
/// ... the details of a port, and their height.
const DETAILS_FROM: u16 = 20;
const DETAILS: u16 = 6;

/// Draws the whole screen.
pub fn draw(frame: &mut Frame, model: &mut Model) {
    let area = frame.area();
    if area.is_empty() {
        return;
    }
    let has_details = area.height >= DETAILS_FROM && model.flows.is_none();
    let [title, status, body, details, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(u16::from(area.height >= STATUS_FROM)),
        Constraint::Min(0),
        Constraint::Length(if has_details { DETAILS } else { 0 }),
        Constraint::Length(u16::from(area.height >= LEGEND_FROM)),
    ])
    .areas(area);
    bars::draw_title(frame, title, model);
    bars::draw_status(frame, status, model);
    body_of(frame, body, model);
    if has_details {
        details::draw(frame, details, model);
    }
    bars::draw_foot(frame, foot, model);
    match model.overlay.clone() {
        Overlay::Help => popup::draw_help(frame, area, model),
        Overlay::Columns { cursor } => popup::draw_columns(frame, area, model, cursor),
        Overlay::None | Overlay::Filter { .. } => {}
    }
}

fn body_of(frame: &mut Frame, area: Rect, model: &mut Model) {
    // One row is that of the headings.
    model.page = usize::from(area.height).saturating_sub(1);
    match &mut model.flows {
        Some(flows) if flows.list.all().is_empty() => {
            let text = match (flows.is_gone, flows.is_read) {
                (true, _) => format!("{} is not attached any more; Esc goes back", flows.name),
                (_, true) => "no connection on record".to_owned(),
                _ => "reading ...".to_owned(),
            };
            draw_notice(frame, area, &text);
        }
        Some(flows) => draw_list(frame, area, &mut flows.list),
        None if model.ports.all().is_empty() => draw_notice(frame, area, NOTHING),
        None => draw_list(frame, area, &mut model.ports),
    }
}

fn draw_list<R: Row>(frame: &mut Frame, area: Rect, list: &mut List<R>) {
    if list.len() == 0 {
        let text = format!("nothing contains \"{}\"; Esc ends the filter", list.filter());
        return draw_notice(frame, area, &text);
    }
    table::draw(frame, area, list);
}

fn draw_notice(frame: &mut Frame, area: Rect, text: &str) {
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
}

#[cfg(test)]
mod tests;
