use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::longest;
use crate::top::keys::press_key;
use crate::top::reader::Reading;
use crate::top::sample::{FlowsSample, HoldSample, PortId, PortSample};
use crate::top::testing::{flow, port, sample};

/// Ports with traffic, read twice.
fn model(ports: Vec<PortSample>) -> Model {
    let mut model = Model::new(Duration::from_secs(1));
    let first = sample(ports);
    let mut second = first.clone();
    second.at += Duration::from_secs(1);
    for (port, times) in second.ports.iter_mut().zip(1..) {
        port.early_bytes += times << 20;
        port.to_vm_bytes += times << 21;
        port.masked_ns[25] += 10;
        port.flows = Some(times);
    }
    model.take_reading(Reading::Ports(first));
    model.take_reading(Reading::Ports(second));
    model
}

fn two() -> Model {
    let hold = HoldSample { used_bytes: 1 << 20, size_bytes: 16 << 20, engine_is_alive: true };
    let web = PortSample { vm: Some("web1".into()), hold: Some(hold), ..port(1, "tap0") };
    model(vec![web, PortSample { resets: 7, state: "paused", ..port(2, "tap1") }])
}

fn open_flows(model: &mut Model, count: u16) {
    model.open_details();
    let flows = Some((1..=count).map(flow).collect());
    let port = model.flows.as_ref().map_or(PortId(0), |flows| flows.port);
    model.take_reading(Reading::Flows(FlowsSample { port, at: Instant::now(), flows }));
}

/// The lines of a screen of this size.
fn draw_on(model: &mut Model, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(line).collect()
}

#[track_caller]
fn expect(lines: &[String], words: &[&str]) {
    let text = lines.join("\n");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
}

fn key(model: &mut Model, code: KeyCode) {
    press_key(model, KeyEvent::new(code, KeyModifiers::NONE));
}

#[test]
fn eighty_columns_have_all_that_says_who_gains() {
    let lines = draw_on(&mut two(), 80, 24);
    expect(
        &lines[..1],
        &["vsnoop top", "2 ports, 1 active", "3 MiB/s early (50 %)", "every 1.00 s"],
    );
    let headings = ["port", "state", "vm", "early/s\u{25bc}", "share", "masked", "hold", "flows"];
    expect(&lines[2..3], &headings);
    expect(&lines[3..4], &["tap1", "paused", "2 MiB", "50 %", "ms"]);
    expect(&lines[4..5], &["tap0", "active", "web1", "1 MiB", "1/16 MiB"]);
    expect(&lines[23..], &["q quit", "? help", "Enter flows", "s sort", "/ filter", "p pause"]);
}

#[test]
fn a_wide_screen_has_every_column_and_the_last_minutes_of_a_port() {
    let lines = draw_on(&mut two(), 120, 40);
    expect(&lines[2..3], &["new/s", "resets"]);
    expect(&lines, &["tap1: early/s of the last 1.00 s, at most 2 MiB"]);
    assert!(!lines[2].contains("netns"), "no port is in another one");
}

#[test]
fn a_screen_of_20_columns_and_5_rows_keeps_the_ports_and_how_to_quit() {
    let lines = draw_on(&mut two(), 20, 5);
    expect(&lines[1..4], &["port", "early/s", "tap0", "tap1", "2 MiB"]);
    expect(&lines[4..], &["q quit"]);
}

#[test]
fn any_size_is_drawn_in_any_state() {
    let keys = [
        KeyCode::Char('?'),
        KeyCode::Char('s'),
        KeyCode::Char('/'),
        KeyCode::Char('p'),
        KeyCode::End,
        KeyCode::Null,
    ];
    for (width, height) in (0..24).flat_map(|side| [(side, 40), (90, side), (side, side)]) {
        for code in keys {
            for has_flows in [false, true] {
                let mut model = two();
                if has_flows {
                    open_flows(&mut model, 50);
                }
                key(&mut model, code);
                draw_on(&mut model, width, height);
            }
        }
    }
}

#[test]
fn a_column_that_sorts_is_shown_on_a_narrow_screen_too() {
    let mut model = two();
    key(&mut model, KeyCode::Char('>'));
    key(&mut model, KeyCode::Char('>'));
    let lines = draw_on(&mut model, 24, 8);
    expect(&lines[2..3], &["port", "masked\u{25bc}"]);
}

#[test]
fn the_longest_values_are_cut_and_push_nothing_aside() {
    let mut model = model(vec![PortSample {
        netns: longest::identity().netns_name,
        vm: Some("v".repeat(300)),
        resets: u64::MAX,
        ..port(1, longest::INTERFACE)
    }]);
    expect(&draw_on(&mut model, 80, 24), &[longest::INTERFACE, "early/s", "1 MiB", "masked"]);
}

#[test]
fn a_thousand_ports_scroll_with_the_selection() {
    let mut model = model((1..=1000).map(|id| port(id, &format!("tap{id}"))).collect());
    expect(&draw_on(&mut model, 80, 24), &["1,000 ports", "tap1000 "]);
    key(&mut model, KeyCode::End);
    let lines = draw_on(&mut model, 80, 24);
    expect(&lines, &["tap1 "]);
    key(&mut model, KeyCode::PageUp);
    expect(&draw_on(&mut model, 80, 24), &["tap15 "]);
    let at_end: Vec<_> = lines.iter().filter(|line| line.starts_with("tap")).collect();
    assert_eq!(at_end.len(), 14, "the table is full: {lines:#?}");
}

#[test]
fn flows_have_their_port_in_the_title_and_escape_in_the_legend() {
    let mut model = two();
    model.ports.move_to(1);
    open_flows(&mut model, 3);
    let lines = draw_on(&mut model, 80, 24);
    expect(&lines[..1], &["tap0 (web1) active", "3 flows", "1 MiB/s early"]);
    expect(&lines[2..3], &["sender", "vm", "mode", "early/s", "on its way", "held"]);
    expect(&lines[3..6], &["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.2:80"]);
    expect(&lines[23..], &["Esc back"]);
    model.flows.as_mut().unwrap().is_gone = true;
    expect(&draw_on(&mut model, 80, 24), &["not attached any more; Esc goes back", "10.0.0.1:1"]);
}

#[test]
fn empty_tables_say_why() {
    let mut model = model(Vec::new());
    expect(&draw_on(&mut model, 80, 24), &["no port is attached; `vsnoop doctor`"]);
    let mut model = two();
    model.ports.set_filter("xyz".into());
    expect(&draw_on(&mut model, 80, 24), &["nothing contains \"xyz\"", "/xyz: 0 of 2"]);
    let mut model = two();
    model.open_details();
    expect(&draw_on(&mut model, 80, 24), &["reading ..."]);
    open_flows(&mut model, 0);
    expect(&draw_on(&mut model, 80, 24), &["no connection on record"]);
}

#[test]
fn what_is_unusual_is_said_above_the_table() {
    let mut model = two();
    model.error = Some("the disk is gone".into());
    model.has_helper = false;
    model.damaged = 2;
    model.total.without_engine = vec!["tap0".into(), "tap1".into()];
    let lines = draw_on(&mut model, 140, 24);
    let words = ["the disk is gone", "no engine serves tap0 and 1 more", "no helper runs"];
    expect(&lines[1..2], &words);
    expect(&lines[1..2], &["2 damaged: see `vsnoop status`"]);
}

#[test]
fn a_pause_is_said_on_the_narrowest_screen_and_in_the_legend() {
    let mut model = two();
    key(&mut model, KeyCode::Char('p'));
    expect(&draw_on(&mut model, 12, 5)[..1], &["PAUSED"]);
    expect(&draw_on(&mut model, 80, 24), &["PAUSED", "p go on"]);
}

#[test]
fn help_explains_keys_and_columns_and_the_menu_those_that_are_used() {
    let mut model = two();
    key(&mut model, KeyCode::Char('?'));
    expect(&draw_on(&mut model, 120, 40), &["Ctrl-C", "sort the other way", "who gains"]);
    key(&mut model, KeyCode::Char('x'));
    key(&mut model, KeyCode::Char('s'));
    let lines = draw_on(&mut model, 120, 40);
    expect(&lines, &["sort by", "median time by which"]);
    assert!(!lines.join("\n").contains("for --netns"));
}

#[test]
fn the_end_of_a_long_filter_stays_visible_while_it_is_edited() {
    let mut model = two();
    key(&mut model, KeyCode::Char('/'));
    for c in "a-long-text-that-ends-here".chars() {
        key(&mut model, KeyCode::Char(c));
    }
    expect(&draw_on(&mut model, 20, 10)[9..], &["that-ends-here"]);
}
