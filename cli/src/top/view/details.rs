//! The selected port in the last minutes.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::widgets::{Block, Borders, RenderDirection, Sparkline};
use vsnoop_host::units;

use super::super::columns::byte_rate;
use super::super::model::Model;

/// A bar for each interval: bytes acknowledged early per second, the latest at the right.
pub fn draw(frame: &mut Frame, area: Rect, model: &Model) {
    let Some(row) = model.ports.selected_row() else { return };
    let mut rates = model.history(row.id);
    rates.reverse();
    rates.truncate(area.width.into());
    let most = rates.iter().copied().max().unwrap_or(0);
    let vm = row.vm.as_ref().map_or(String::new(), |vm| format!(" ({vm})"));
    let time = units::duration((model.interval * rates.len() as u32).as_nanos() as u64);
    let title = format!(
        " {}{vm}: early/s of the last {time}, at most {} ",
        row.name,
        byte_rate(most as f64)
    );
    let block = Block::new().borders(Borders::TOP).title(title);
    let bars = Sparkline::default()
        .block(block)
        .direction(RenderDirection::RightToLeft)
        .style(Style::new().fg(Color::Green))
        .max(most.max(1))
        .data(rates);
    frame.render_widget(bars, area);
}
