//! Keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::list::Browse;
use super::model::{Model, Overlay};

/// The loop's next action after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    None,
    Quit,
    /// Draw the screen anew: something else has written to the terminal.
    Redraw,
    /// Ctrl-Z: stop the process until the shell continues it.
    Suspend,
}

/// Keys and what they do, for the help.
pub const HELP: [(&str, &str); 13] = [
    ("q, Ctrl-C", "quit"),
    ("Up Down j k", "select a row"),
    ("PgUp PgDn", "a page further"),
    ("Home End g G", "the first or last row"),
    ("Enter", "the flows of the selected port"),
    ("Esc", "back; ends the filter first"),
    ("s", "sort by a column, from a menu"),
    ("< >", "sort by the column before, or after"),
    ("r", "sort the other way round"),
    ("/", "filter: name, VM, namespace, state; address, mode"),
    ("p, Space", "pause"),
    ("Ctrl-L", "draw the screen anew"),
    ("?", "this help"),
];

/// The legend at the foot: the most important first.
pub const LEGEND: [(&str, &str); 8] = [
    ("q", "quit"),
    ("?", "help"),
    ("Enter", "flows"),
    ("s", "sort"),
    ("r", "reverse"),
    ("/", "filter"),
    ("p", "pause"),
    ("<>", "column"),
];

/// Does what a key stands for.
pub fn press_key(model: &mut Model, key: KeyEvent) -> Effect {
    if key.kind == KeyEventKind::Release {
        return Effect::None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Effect::Quit,
            KeyCode::Char('z') => Effect::Suspend,
            KeyCode::Char('l') => Effect::Redraw,
            _ => Effect::None,
        };
    }
    match model.overlay.clone() {
        Overlay::None => return press_in_table(model, key.code),
        Overlay::Help => {
            if key.code == KeyCode::Char('q') {
                return Effect::Quit;
            }
            model.overlay = Overlay::None;
        }
        Overlay::Columns { cursor } => press_in_menu(model, key.code, cursor),
        Overlay::Filter { before } => press_in_filter(model, key.code, before),
    }
    Effect::None
}

fn press_in_table(model: &mut Model, key: KeyCode) -> Effect {
    let page = model.page.max(1) as isize;
    match key {
        KeyCode::Char('q') => return Effect::Quit,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => model.overlay = Overlay::Help,
        KeyCode::Char('s') => model.overlay = Overlay::Columns { cursor: sorted_place(model) },
        KeyCode::Char('/') => {
            model.overlay = Overlay::Filter { before: model.list().filter().to_owned() };
        }
        KeyCode::Char('<' | ',') | KeyCode::Left => sort_beside(model, -1),
        KeyCode::Char('>' | '.') | KeyCode::Right => sort_beside(model, 1),
        KeyCode::Char('r') => model.list().reverse(),
        KeyCode::Char('p' | ' ') => model.is_paused = !model.is_paused,
        KeyCode::Enter => model.open_details(),
        KeyCode::Esc | KeyCode::Backspace => model.go_back(),
        KeyCode::Up | KeyCode::Char('k') => model.list().move_by(-1),
        KeyCode::Down | KeyCode::Char('j') => model.list().move_by(1),
        KeyCode::PageUp => model.list().move_by(-page),
        KeyCode::PageDown => model.list().move_by(page),
        KeyCode::Home | KeyCode::Char('g') => model.list().move_to(0),
        KeyCode::End | KeyCode::Char('G') => model.list().move_to(usize::MAX),
        _ => {}
    }
    Effect::None
}

/// Position of the sorting column among those that are used.
fn sorted_place(model: &mut Model) -> usize {
    let list = model.list();
    let sorted_by = list.sorted_by();
    list.used_columns().iter().position(|column| *column == sorted_by).unwrap_or(0)
}

fn sort_beside(model: &mut Model, step: isize) {
    let place = sorted_place(model).saturating_add_signed(step);
    sort_by_place(model.list(), place);
}

fn sort_by_place(list: &mut dyn Browse, place: usize) {
    let used = list.used_columns();
    let column = used.get(place).or(used.last()).copied();
    if let Some(column) = column.filter(|column| *column != list.sorted_by()) {
        list.sort_by(column);
    }
}

fn press_in_menu(model: &mut Model, key: KeyCode, cursor: usize) {
    let last = model.list().used_columns().len().saturating_sub(1);
    model.overlay = match key {
        KeyCode::Up | KeyCode::Char('k' | '<') => {
            Overlay::Columns { cursor: cursor.saturating_sub(1) }
        }
        KeyCode::Down | KeyCode::Char('j' | '>') => {
            Overlay::Columns { cursor: (cursor + 1).min(last) }
        }
        KeyCode::Char('r') => {
            sort_by_place(model.list(), cursor);
            model.list().reverse();
            Overlay::None
        }
        KeyCode::Enter | KeyCode::Char(' ') => {
            sort_by_place(model.list(), cursor);
            Overlay::None
        }
        KeyCode::Esc | KeyCode::Char('q' | 's') => Overlay::None,
        _ => Overlay::Columns { cursor },
    };
}

fn press_in_filter(model: &mut Model, key: KeyCode, before: String) {
    let mut text = model.list().filter().to_owned();
    match key {
        KeyCode::Enter => {
            model.overlay = Overlay::None;
            return;
        }
        KeyCode::Esc => {
            model.overlay = Overlay::None;
            text = before;
        }
        KeyCode::Backspace => drop(text.pop()),
        KeyCode::Char(c) => text.push(c),
        _ => return,
    }
    model.list().set_filter(text);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::top::reader::Reading;
    use crate::top::testing::{port, sample};

    fn model() -> Model {
        let mut model = Model::new(Duration::from_secs(1));
        let names = ["tap0", "tap1", "web0"];
        let ports = names.iter().zip(1..).map(|(name, id)| port(id, name)).collect();
        model.take_reading(Reading::Ports(sample(ports)));
        model
    }

    fn press_all(model: &mut Model, text: &str) {
        for c in text.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                c => KeyCode::Char(c),
            };
            assert_eq!(press_key(model, KeyEvent::new(code, KeyModifiers::NONE)), Effect::None);
        }
    }

    fn shown(model: &Model) -> Vec<&str> {
        model.ports.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn q_and_control_c_quit_but_not_inside_a_filter() {
        let mut model = model();
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        let q = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
        assert_eq!(press_key(&mut model, q), Effect::Quit);
        press_all(&mut model, "/q");
        assert_eq!(model.ports.filter(), "q");
        assert_eq!(press_key(&mut model, control_c), Effect::Quit);
        press_all(&mut model, "\x1b?");
        assert_eq!(press_key(&mut model, q), Effect::Quit);
    }

    #[test]
    fn a_filter_acts_while_it_is_edited_and_escape_brings_the_one_before_back() {
        let mut model = model();
        press_all(&mut model, "/tap1x\x08");
        assert_eq!(shown(&model), ["tap1"]);
        press_all(&mut model, "\n/\x08\x08\x08\x08w");
        assert_eq!(shown(&model), ["web0"]);
        press_all(&mut model, "\x1b");
        assert_eq!((shown(&model), model.ports.filter()), (vec!["tap1"], "tap1"));
        press_all(&mut model, "\x1b");
        assert_eq!(shown(&model).len(), 3);
    }

    #[test]
    fn columns_beside_sort_and_those_without_a_value_are_skipped() {
        let mut model = model();
        press_all(&mut model, "<<<<<<<<");
        assert_eq!(model.ports.sorted_by(), 0);
        assert_eq!(shown(&model), ["tap0", "tap1", "web0"]);
        press_all(&mut model, "r");
        assert_eq!(shown(&model), ["web0", "tap1", "tap0"]);
        press_all(&mut model, ">");
        let (heading, _) = model.ports.describe_column(model.ports.sorted_by());
        assert_eq!(heading, "state", "netns is not used");
        press_all(&mut model, ">>>>>>>>>>>>>>>>>>>>");
        assert_eq!(model.ports.describe_column(model.ports.sorted_by()).0, "resets");
    }

    #[test]
    fn the_menu_chooses_a_column_or_leaves_all_as_it_was() {
        let mut model = model();
        let before = model.ports.sorted_by();
        press_all(&mut model, "skk\x1b");
        assert_eq!((model.ports.sorted_by(), &model.overlay), (before, &Overlay::None));
        press_all(&mut model, "skkkkkkkk\n");
        assert_eq!((model.ports.sorted_by(), model.ports.is_descending()), (0, false));
        press_all(&mut model, "sr");
        assert!(model.ports.is_descending());
    }

    #[test]
    fn enter_opens_the_selected_port_and_escape_returns_to_it() {
        let mut model = model();
        press_all(&mut model, "jj\n");
        assert_eq!(model.flows.as_ref().unwrap().name, "web0");
        press_all(&mut model, "/x\n\x1b");
        assert!(model.flows.is_some(), "the filter ends first");
        press_all(&mut model, "\x1b");
        assert!(model.flows.is_none());
        assert_eq!(model.ports.cursor(), 2);
    }
}
