//! Refreshing output until Ctrl-C.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_host::units;

use super::fold;

/// A flag that Ctrl-C or SIGTERM sets, instead of ending the process.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Lets the signals only set the flag; a second one ends the process.
    pub fn catch_signals() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // Registered first, so that it reads the flag before the next action sets it.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag))
                .context("catch signals")?;
            signal_hook::flag::register(signal, Arc::clone(&flag)).context("catch signals")?;
        }
        Ok(Self(flag))
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps until `until`, less when interrupted.
    pub fn sleep_until(&self, until: Instant) {
        const STEP: Duration = Duration::from_millis(50);
        while !self.is_set() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(STEP));
        }
    }
}

/// Prints what `render` returns once, or with `every` (seconds) until Ctrl-C: in place on a
/// terminal, documents of JSON and otherwise one after the other.
pub fn run_every(
    every: Option<f64>,
    is_json: bool,
    mut render: impl FnMut() -> Result<String>,
) -> Result<()> {
    let Some(every) = every else {
        return print_text(&render()?);
    };
    let interrupt = Interrupt::catch_signals()?;
    while !interrupt.is_set() {
        let next = Instant::now() + Duration::from_secs_f64(every.max(0.05));
        let text = render()?;
        if is_json { print_text(&text) } else { refresh_screen(&text, false) }?;
        interrupt.sleep_until(next);
    }
    Ok(())
}

/// Replaces the contents of the screen by `text`: by as much as has room, or the last time by all
/// of it.
pub fn refresh_screen(text: &str, is_last: bool) -> Result<()> {
    let Some(rows) = fold::terminal_height() else { return print_text(text) };
    let text = if is_last { text.to_owned() } else { clip_rows(text, rows) };
    // Home, the text with the rest of each line cleared, then everything below cleared.
    let text = text.replace('\n', "\x1b[K\n");
    print_text(&format!("\x1b[H{text}\x1b[K\n\x1b[J"))
}

/// Does this text fit on the terminal? What is no terminal has room for all.
pub fn has_room(text: &str) -> bool {
    fold::terminal_height().is_none_or(|rows| text.lines().count() <= count_room(rows))
}

/// Two rows are below the text: the cursor is there.
fn count_room(rows: usize) -> usize {
    rows.saturating_sub(2).max(1)
}

/// The lines that fit on a screen of `rows` rows. More would scroll it, and leave the first ones of
/// each refresh behind.
fn clip_rows(text: &str, rows: usize) -> String {
    let room = count_room(rows);
    let count = text.lines().count();
    if count <= room {
        return text.to_owned();
    }
    let mut lines: Vec<_> = text.lines().take(room - 1).map(str::to_owned).collect();
    let hidden = units::plural((count - lines.len()) as u64, "more line");
    lines.push(format!(
        "... {hidden}: name fewer ports, enlarge the terminal, or leave out --watch"
    ));
    lines.join("\n")
}

static PRINTED: AtomicBool = AtomicBool::new(false);

/// Was anything printed by [`print_text`]?
pub fn has_printed() -> bool {
    PRINTED.load(Ordering::Relaxed)
}

/// To standard output; a reader that has gone away (`| head`) is no error.
pub fn print_text(text: &str) -> Result<()> {
    PRINTED.store(true, Ordering::Relaxed);
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => result.context("write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_shown_than_a_screen_has_room_for() {
        let text: Vec<_> = (0..40).map(|line| line.to_string()).collect();
        let text = text.join("\n");
        assert_eq!(clip_rows(&text, 42), text);
        let clipped = clip_rows(&text, 24);
        let lines: Vec<_> = clipped.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[20]), (22, "0", "20"));
        assert!(lines[21].starts_with("... 19 more lines"), "{clipped}");
        for rows in 0..3 {
            assert_eq!(clip_rows(&text, rows).lines().count(), 1);
        }
    }
}
