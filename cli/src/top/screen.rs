//! The terminal, and the loop.

use std::fs::File;
use std::io::{self, IsTerminal, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, raise};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};

use super::keys::{self, Effect};
use super::model::Model;
use super::reader::Reader;
use super::source::Source;
use super::view;

/// A reading, a signal or the end of the time is noticed within this time; a key at once.
const LOOK: Duration = Duration::from_millis(50);

/// Shows the view on the terminal until a key, a signal, or the end of `duration`.
///
/// On return, also with an error or a panic, the terminal is as before.
pub fn run_screen(source: Source, interval: Duration, duration: Option<Duration>) -> Result<()> {
    let end = duration.map(|duration| Instant::now() + duration);
    let signals = Signals::catch()?;
    let mut reader = Reader::start(source, interval)?;
    let mut screen = Screen::open()?;
    let mut model = Model::new(interval);
    let mut is_changed = true;
    while !signals.ended() && end.is_none_or(|end| Instant::now() < end) {
        loop {
            match reader.readings.try_recv() {
                Ok(reading) => model.take_reading(reading),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => bail!("the thread that reads has ended"),
            }
            is_changed = true;
        }
        if is_changed {
            screen.terminal.draw(|frame| view::draw(frame, &mut model)).context("draw")?;
            is_changed = false;
        }
        if !screen.wait_for_input(LOOK)? {
            return Ok(());
        }
        while event::poll(Duration::ZERO).context("wait for a key")? {
            is_changed = true;
            match take_event(&mut model, &event::read().context("read a key")?) {
                Effect::None => {}
                Effect::Redraw => screen.terminal.clear().context("clear the screen")?,
                Effect::Suspend => screen.suspend()?,
                Effect::Quit => return Ok(()),
            }
            reader.wish(model.wish());
        }
    }
    Ok(())
}

/// A key acts; any other event is a change of the size, for which it is enough to draw.
fn take_event(model: &mut Model, event: &Event) -> Effect {
    match event {
        Event::Key(key) => keys::press_key(model, *key),
        _ => Effect::None,
    }
}

/// Flags of signals that end the view.
struct Signals(Arc<AtomicBool>);

impl Signals {
    /// The signals only set a flag, each time: a process that ended at the second one would leave
    /// the terminal as it is.
    fn catch() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
            signal_hook::flag::register(signal, Arc::clone(&flag)).context("catch signals")?;
        }
        Ok(Self(flag))
    }

    fn ended(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The terminal in raw mode and on its alternate screen, until this is dropped.
struct Screen {
    terminal: DefaultTerminal,
    /// Where keys come from, as crossterm finds it.
    keys: OwnedFd,
}

impl Screen {
    fn open() -> Result<Self> {
        let keys = open_keys().context("find the terminal; `vsnoop top --once` needs none")?;
        // It restores the terminal before a panic prints its message, too.
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self { terminal, keys }),
            Err(error) => {
                ratatui::restore();
                Err(error).context("prepare the terminal; `vsnoop top --once` needs none")
            }
        }
    }

    /// Waits for a key, a signal, or this time. `false`: the terminal has gone. crossterm would
    /// read from it for ever.
    fn wait_for_input(&self, most: Duration) -> Result<bool> {
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        let mut polled = [PollFd::new(self.keys.as_fd(), PollFlags::POLLIN)];
        let most = PollTimeout::try_from(most).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, most) {
            Ok(_) => Ok(!polled[0].revents().is_some_and(|found| found.intersects(gone))),
            Err(Errno::EINTR) => Ok(true),
            Err(errno) => Err(errno).context("wait for a key"),
        }
    }

    /// Gives the terminal back until the shell continues the process.
    fn suspend(&mut self) -> Result<()> {
        self.terminal.show_cursor().context("show the cursor")?;
        ratatui::restore();
        raise(Signal::SIGTSTP).context("stop")?;
        enable_raw_mode().context("prepare the terminal")?;
        execute!(stdout(), EnterAlternateScreen).context("prepare the terminal")?;
        self.terminal.clear().context("clear the screen")
    }
}

/// Standard input, if it is a terminal.
fn open_keys() -> io::Result<OwnedFd> {
    let input = io::stdin();
    match input.is_terminal() {
        true => input.as_fd().try_clone_to_owned(),
        false => File::open("/dev/tty").map(OwnedFd::from),
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing.
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::File;
    use std::io::Read;
    use std::process::{Command, Stdio};
    use std::sync::mpsc;
    use std::thread;

    use nix::pty::{Winsize, openpty};
    use nix::sys::termios::tcgetattr;

    use super::*;

    const NAME: &str = "top::screen::tests::a_panic_restores_the_terminal_and_then_says_why";
    /// Set for the process that panics.
    const PANIC: &str = "VSNOOP_TEST_PANICS";

    #[test]
    fn a_panic_restores_the_terminal_and_then_says_why() {
        if env::var_os(PANIC).is_some() {
            let _screen = Screen::open().unwrap();
            panic!("on purpose");
        }
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let before = tcgetattr(&pty.slave).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        // It may write more than the terminal takes before it is read.
        let (send, receive) = mpsc::channel();
        let mut master = File::from(pty.master);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = master.read(&mut bytes) {
                send.send(bytes[..count].to_vec()).unwrap();
            }
        });
        let status = Command::new(env::current_exe().unwrap())
            .args(["--exact", "--nocapture", NAME])
            .env(PANIC, "1")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .status()
            .unwrap();
        assert!(!status.success(), "it did not panic");
        assert_eq!(tcgetattr(&pty.slave).unwrap(), before);
        drop(pty.slave);
        // The end of the last copy of the slave ends the master, too.
        let bytes: Vec<u8> = receive.iter().flatten().collect();
        let text = String::from_utf8_lossy(&bytes);
        let entered = text.find("\x1b[?1049h").expect("it has a screen of its own");
        let left = text.find("\x1b[?1049l").expect("it leaves that screen");
        let said = text.find("on purpose").expect("it says why");
        assert!(entered < left && left < said, "{text:?}");
    }
}
