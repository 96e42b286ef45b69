//! `vsnoop top` on a real terminal: that of tmux, whose screen is read.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_testbed::topology;

use crate::hold::network_with_hold;
use crate::sandbox::{PORT, TapHost, is_running, program, text, vsnoop, wait_until};
use crate::surroundings::put_on_record;

pub fn trials() -> Vec<Trial> {
    trials![
        top_shows_who_gains_and_the_flows_of_a_port,
        top_sorts_filters_pauses_and_explains_itself_by_keys,
        top_follows_ports_that_come_and_go_also_while_their_flows_are_shown,
        top_shows_the_flows_of_a_port_with_very_many,
        top_survives_a_terminal_that_becomes_small_and_large_again,
        top_leaves_the_terminal_as_it_was_when_it_quits_is_stopped_or_gets_a_signal,
        top_ends_with_its_terminal,
        top_prints_tables_where_there_is_no_terminal,
        top_refuses_json_and_ports_that_are_not_attached,
    ]
}

fn top_shows_who_gains_and_the_flows_of_a_port() -> Result<()> {
    let network = network_with_hold("gain")?;
    let mut pair = network.connect_to(5001)?;
    let host = network.topology.host.name();
    let screen = Tmux::start("gain", &format!("vsnoop --netns {host} top --interval 0.2"))?;
    screen.wait_for("the rate of early acknowledgements", |lines| {
        let _ = pair.exchange(10_000);
        let row = lines.iter().find(|line| line.starts_with(topology::PORT));
        row.is_some_and(|row| row.contains("active") && row.contains("KiB") && row.contains('%'))
    })?;
    screen.keys(&["Enter"])?;
    screen.wait_for("the flow", |lines| {
        let _ = pair.exchange(10_000);
        let row = lines.iter().find(|line| line.contains(":5001"));
        row.is_some_and(|row| row.contains("KiB")) && has(lines, "1 flow ")
    })?;
    screen.keys(&["Escape"])?;
    screen.wait_for("the ports", |lines| has(lines, "every 200 ms") && !has(lines, ":5001"))?;
    screen.quit()?;
    network.detach()
}

fn top_sorts_filters_pauses_and_explains_itself_by_keys() -> Result<()> {
    let host = TapHost::new("keys")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let screen = Tmux::start("keys", &format!("vsnoop --netns {} top", host.netns.name()))?;
    screen.wait_for("the port", |lines| has(lines, PORT) && has(lines, "early/s\u{25bc}"))?;
    screen.keys(&["<"])?;
    screen.wait_for("another column", |lines| !has(lines, "early/s\u{25bc}"))?;
    screen.keys(&["s"])?;
    screen.wait_for("the menu", |lines| has(lines, "sort by") && has(lines, "name of the tap"))?;
    screen.keys(&["k", "k", "k", "k", "k", "k", "Enter"])?;
    screen.wait_for("the order by name", |lines| has(lines, "port\u{25b2}"))?;
    screen.keys(&["r"])?;
    screen.wait_for("the order reversed", |lines| has(lines, "port\u{25bc}"))?;
    screen.keys(&["/", "n", "o", "Enter"])?;
    screen.wait_for("nothing", |lines| has(lines, "nothing contains \"no\""))?;
    screen.keys(&["Escape"])?;
    screen.wait_for("the port again", |lines| has(lines, PORT))?;
    screen.keys(&["?"])?;
    screen.wait_for("the help", |lines| has(lines, "Ctrl-C"))?;
    // Not Escape, which together with the next key would be Alt.
    screen.keys(&["x", "p"])?;
    screen.wait_for("the pause", |lines| has(lines, "PAUSED") && !has(lines, "Ctrl-C"))?;
    host.vsnoop(["detach", PORT])?.ok()?;
    screen.keys(&["p"])?;
    screen.wait_for("what is new", |lines| has(lines, "no port is attached"))?;
    screen.keys(&["C-c"])?;
    screen.expect_ended(0)
}

fn top_follows_ports_that_come_and_go_also_while_their_flows_are_shown() -> Result<()> {
    let host = TapHost::new("come")?;
    let netns = host.netns.name();
    let screen = Tmux::start("come", &format!("vsnoop --netns {netns} top --interval 0.2"))?;
    screen.wait_for("that there is none", |lines| has(lines, "no port is attached"))?;
    host.vsnoop(["attach", PORT, "--observe"])?.ok()?;
    screen.wait_for("the port", |lines| has(lines, PORT) && has(lines, "observing"))?;
    screen.keys(&["Enter"])?;
    screen.wait_for("its flows", |lines| has(lines, "no connection on record"))?;
    host.vsnoop(["detach", PORT])?.ok()?;
    screen.wait_for("that it has gone", |lines| has(lines, "is not attached any more"))?;
    screen.keys(&["Escape"])?;
    screen.wait_for("that there is none", |lines| has(lines, "no port is attached"))?;
    host.vsnoop(["attach", PORT])?.ok()?;
    screen.wait_for("the port", |lines| has(lines, PORT) && has(lines, "active"))?;
    vsnoop(["off", "--all"])?.ok()?;
    screen.wait_for("that there is none", |lines| has(lines, "no port is attached"))?;
    screen.quit()
}

fn top_shows_the_flows_of_a_port_with_very_many() -> Result<()> {
    const FLOWS: u32 = 100_000;
    let host = TapHost::new("many")?;
    host.vsnoop(["attach", PORT, "--max-flows", "120000"])?.ok()?;
    put_on_record(&host, FLOWS)?;
    let screen = Tmux::start("many", &format!("vsnoop --netns {} top", host.netns.name()))?;
    screen.wait_for("their number", |lines| has(lines, "100,000"))?;
    screen.keys(&["Enter"])?;
    screen
        .wait_for("the flows", |lines| has(lines, "100,000 flows") && has(lines, "10.0.0.0:0"))?;
    screen.keys(&["End"])?;
    screen.wait_for("the last one", |lines| has(lines, "10.1.134.159:0"))?;
    screen.keys(&["/", "1", "3", "4", ".", "1", "5", "8", "Enter"])?;
    screen.wait_for("another one", |lines| has(lines, "10.1.134.158:0") && has(lines, "2 of"))?;
    screen.quit()?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn top_survives_a_terminal_that_becomes_small_and_large_again() -> Result<()> {
    let host = TapHost::new("size")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let screen = Tmux::start("size", &format!("vsnoop --netns {} top", host.netns.name()))?;
    screen.wait_for("the port", |lines| has(lines, PORT) && has(lines, "masked"))?;
    for (overlay, title) in [("j", "q quit"), ("?", "help:"), ("s", "sort by:")] {
        screen.keys(&[overlay])?;
        screen.wait_for("it", |lines| has(lines, title))?;
        for size in [["20", "5"], ["1", "1"], ["200", "60"]] {
            screen.tmux(&["resize-window", "-t", "0", "-x", size[0], "-y", size[1]])?;
            // A key comes when the last size is drawn.
            screen.wait_for("the new size", |lines| match size[0] {
                "20" => lines.len() <= 5,
                "200" => has(lines, title),
                _ => true,
            })?;
        }
        screen.keys(&["Escape"])?;
        screen.wait_for("every column", |lines| {
            let is_alone = !has(lines, "help:") && !has(lines, "sort by:");
            is_alone && has(lines, "new/s") && has(lines, PORT)
        })?;
    }
    screen.tmux(&["resize-window", "-t", "0", "-x", "20", "-y", "5"])?;
    screen.wait_for("what fits", |lines| {
        lines.len() <= 5 && has(lines, PORT) && has(lines, "q quit")
    })?;
    screen.quit()?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn top_leaves_the_terminal_as_it_was_when_it_quits_is_stopped_or_gets_a_signal() -> Result<()> {
    let host = TapHost::new("modes")?;
    let command = format!("vsnoop --netns {} top", host.netns.name());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT] {
        let screen = Tmux::start("modes", &command)?;
        screen.wait_for("the view", |lines| has(lines, "vsnoop top"))?;
        ensure!(screen.ask("#{alternate_on}")? == "1", "it is not on a screen of its own");
        kill(screen.pid()?, signal)?;
        screen.expect_ended(0)?;
    }
    let screen = Tmux::start("modes", &command)?;
    screen.wait_for("the view", |lines| has(lines, "vsnoop top"))?;
    screen.keys(&["C-z"])?;
    screen.wait_for("that it is stopped", |lines| !has(lines, "every"))?;
    ensure!(screen.ask("#{alternate_on}")? == "0", "its screen is still there");
    fs::write(format!("{}/continue", screen.directory), "")?;
    screen.wait_for("the view again", |lines| has(lines, "vsnoop top"))?;
    screen.quit()?;
    let screen = Tmux::start("modes", &format!("{command} --for 0.3"))?;
    screen.expect_ended(0)
}

fn top_ends_with_its_terminal() -> Result<()> {
    let host = TapHost::new("gone")?;
    let netns = host.netns.name();
    let screen = Tmux::start("hangup", &format!("vsnoop --netns {netns} top"))?;
    screen.wait_for("the view", |lines| has(lines, "vsnoop top"))?;
    let pid = screen.pid()?.as_raw();
    screen.tmux(&["kill-server"])?;
    wait_until("it has ended", || Ok(!is_running(pid)))
}

fn top_prints_tables_where_there_is_no_terminal() -> Result<()> {
    let host = TapHost::new("plain2")?;
    let none = host.vsnoop(["top", "--interval", "0.1"])?.ok()?;
    ensure!(none.out.contains("no port is attached"), "{none:?}");
    host.vsnoop(["attach", PORT])?.ok()?;
    let one = host.vsnoop(["top", "--interval", "0.1"])?.ok()?.out;
    ensure!(one.matches("early/s").count() == 1 && one.contains(PORT), "{one}");
    ensure!(one.contains("1 port, 1 active") && !one.contains('\x1b'), "{one}");
    ensure!(one.lines().all(|line| line.chars().count() <= 100), "{one}");
    // A busy machine may have no time for a second one.
    wait_until("it prints several tables", || {
        let several = host.vsnoop(["top", "--interval", "0.1", "--for", "3"])?.ok()?.out;
        Ok(several.matches("early/s").count() > 1)
    })?;
    // On a terminal, too.
    let netns = host.netns.name();
    let screen = Tmux::start("once", &format!("vsnoop --netns {netns} top --once"))?;
    screen.wait_for("the table", |lines| has(lines, PORT) && has(lines, "1 port, 1 active"))?;
    screen.expect_ended(0)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}

fn top_refuses_json_and_ports_that_are_not_attached() -> Result<()> {
    let host = TapHost::new("refuse")?;
    let ran = host.vsnoop(["top", "--json"])?;
    ensure!(ran.code == 2 && ran.failure()?["kind"] == "usage", "{ran:?}");
    ensure!(ran.err.contains("stats --watch --json"), "{ran:?}");
    host.vsnoop(["top", PORT])?.failed(39, &[PORT, "not attached"])?;
    let ran = host.vsnoop(["top", "--interval", "0"])?;
    ensure!(ran.code == 2 && ran.err.contains("0.1 or more"), "{ran:?}");
    Ok(())
}

fn has(lines: &[String], words: &str) -> bool {
    lines.iter().any(|line| line.contains(words))
}

/// A terminal with a shell that runs one command, and says how it ended and whether the terminal's
/// modes are those from before.
struct Tmux {
    directory: String,
}

impl Tmux {
    /// 100 columns and 30 rows. `command` may begin with `vsnoop`.
    fn start(role: &str, command: &str) -> Result<Self> {
        let directory = format!("/run/top-{role}");
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory)?;
        let path = |name| format!("{directory}/{name}");
        // With job control, so that Ctrl-Z has a shell to return to. It continues the command when
        // the file `continue` is there.
        let script = format!(
            "set -m\nstty -g >{before}\nsh -c 'echo $$ >{pid}; exec {program}{arguments}'\n\
             code=$?\nif kill -0 $(cat {pid}) 2>/dev/null; then\n\
             until [ -e {go} ]; do sleep 0.1; done\nfg >/dev/null; code=$?\nfi\n\
             stty -g >{after}\necho $code >{code}\nsleep 1000\n",
            before = path("before"),
            after = path("after"),
            code = path("code"),
            go = path("continue"),
            pid = path("pid"),
            program = program(),
            arguments = command.strip_prefix("vsnoop").unwrap_or(command),
        );
        fs::write(path("script"), script)?;
        let tmux = Self { directory };
        let shell = format!("sh {}/script", tmux.directory);
        tmux.tmux(&["new-session", "-d", "-x", "100", "-y", "30", &shell])?;
        Ok(tmux)
    }

    /// A command of tmux, of a server of this test's own.
    fn tmux(&self, arguments: &[&str]) -> Result<String> {
        let mut tmux = Command::new("tmux");
        let tmux = tmux.args(["-u", "-f", "/dev/null"]).args(arguments).env_remove("TMUX");
        let tmux = tmux.env("TMUX_TMPDIR", &self.directory).env("LC_ALL", "C.UTF-8");
        let output = tmux.output().context("tmux, which scripts/setup.sh installs")?;
        ensure!(output.status.success(), "tmux {arguments:?}: {}", text(&output.stderr));
        Ok(text(&output.stdout))
    }

    /// The value of one of tmux's formats.
    fn ask(&self, format: &str) -> Result<String> {
        self.tmux(&["display-message", "-p", format])
    }

    fn keys(&self, keys: &[&str]) -> Result<()> {
        self.tmux(&[&["send-keys"], keys].concat()).map(drop)
    }

    fn lines(&self) -> Result<Vec<String>> {
        Ok(self.tmux(&["capture-pane", "-p"])?.lines().map(str::to_owned).collect())
    }

    fn wait_for(&self, what: &str, mut shows: impl FnMut(&[String]) -> bool) -> Result<()> {
        let mut last = Vec::new();
        let waited = wait_until(&format!("the screen shows {what}"), || {
            last = self.lines()?;
            Ok(shows(&last))
        });
        waited.with_context(|| last.join("\n"))
    }

    fn pid(&self) -> Result<Pid> {
        Ok(Pid::from_raw(self.read("pid")?.parse()?))
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = format!("{}/{name}", self.directory);
        Ok(fs::read_to_string(&path).context(path)?.trim().to_owned())
    }

    fn quit(&self) -> Result<()> {
        self.keys(&["q"])?;
        self.expect_ended(0)
    }

    /// It has ended with this code, and the terminal is as before.
    fn expect_ended(&self, code: i32) -> Result<()> {
        wait_until("top has ended", || Ok(self.read("code").is_ok_and(|text| !text.is_empty())))
            .with_context(|| self.lines().unwrap_or_default().join("\n"))?;
        ensure!(self.read("code")? == code.to_string(), "exit code {}", self.read("code")?);
        ensure!(self.read("before")? == self.read("after")?, "modes of the terminal have changed");
        ensure!(self.ask("#{alternate_on} #{cursor_flag}")? == "0 1", "its screen is still there");
        Ok(())
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // Its server may have ended.
        let _ = self.tmux(&["kill-server"]);
    }
}
