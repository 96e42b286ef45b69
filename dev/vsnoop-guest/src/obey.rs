//! The control channel: reads commands from the second serial port and answers each.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::termios::{FlushArg, SetArg, cfmakeraw, tcflush, tcgetattr, tcsetattr};
use vsnoop_guest::control::{self, Command, Reply};
use vsnoop_guest::server::Counts;
use vsnoop_guest::tcp_counts::TcpCounts;

use crate::ends::Ends;
use crate::load::Load;
use crate::power::power_off;
use crate::programs::Programs;
use crate::{files, firewall, upload};

/// Opens the channel: only then may the host hear that the guest is ready.
pub fn open() -> Result<File> {
    let device = File::options()
        .read(true)
        .write(true)
        .open(control::DEVICE)
        .with_context(|| format!("open {}", control::DEVICE))?;
    // Raw: a terminal would echo our answers back as commands.
    let mut settings = tcgetattr(&device).context("read the port's settings")?;
    cfmakeraw(&mut settings);
    tcsetattr(&device, SetArg::TCSANOW, &settings).context("make the port raw")?;
    // Drops what the firmware and the driver's probing left in the port.
    tcflush(&device, FlushArg::TCIOFLUSH).context("empty the port")?;
    Ok(device)
}

/// Returns only with an error.
pub fn serve(device: File, counts: &Counts) -> Result<()> {
    let mut state =
        State { load: Load::new(), ends: Ends::default(), programs: Programs::default() };
    let mut answers = device.try_clone().context("second handle of the port")?;
    for line in BufReader::new(device).lines() {
        let line = line.context("read a command")?;
        if line.trim().is_empty() {
            continue;
        }
        let reply = serde_json::from_str(&line)
            .context("not a command")
            .and_then(|command| obey(command, &mut state, counts))
            .unwrap_or_else(|error| Reply::Failed { message: format!("{error:#}") });
        let mut text = serde_json::to_string(&reply).context("encode an answer")?;
        text.push('\n');
        answers.write_all(text.as_bytes()).context("write an answer")?;
    }
    anyhow::bail!("the port was closed")
}

/// State that commands have set up.
struct State {
    load: Load,
    ends: Ends,
    programs: Programs,
}

fn obey(command: Command, state: &mut State, counts: &Counts) -> Result<Reply> {
    let State { load, ends, programs } = state;
    match command {
        Command::Ping => (),
        Command::Calibrate => {
            load.stop();
            return Ok(Reply::Calibrated { iterations_per_ms: load.calibrate() });
        }
        Command::Load { share, period_ms } => load.start(share, period_ms)?,
        Command::Firewall { drop_percent } => firewall::drop_percent(drop_percent)?,
        Command::Stats => {
            let mut stats = counts.stats();
            stats.firewall_drops = firewall::drops();
            return Ok(Reply::Stats(stats));
        }
        Command::TcpCounts => return Ok(Reply::TcpCounts(TcpCounts::read()?)),
        Command::Sysctl { key, value } => set_sysctl(&key, &value)?,
        Command::Web => files::serve()?,
        Command::Start { name, script } => programs.start(&name, &script)?,
        Command::Ended { name } => return programs.ended(&name),
        Command::VerifyFile { name, seed, size_bytes } => files::verify(&name, seed, size_bytes)?,
        Command::Upload { server, size_bytes, seed } => {
            return Ok(Reply::Uploaded(upload::upload(server, size_bytes, seed)?));
        }
        Command::OpenRounds { to, congestion_control } => {
            ends.open(&to, congestion_control.as_deref())?;
        }
        Command::ListenForRounds { first, count, congestion_control } => {
            ends.listen(first, count, congestion_control)?;
        }
        Command::AcceptRounds => ends.accept()?,
        Command::Round { senders, bytes, limit_ms } => {
            return ends.round(senders, bytes, Duration::from_millis(limit_ms));
        }
        Command::AskEndlessly { number } => ends.ask_endlessly(number)?,
        Command::TakeIn { duration_ms } => {
            return ends.take_in(Duration::from_millis(duration_ms));
        }
        Command::CloseRounds => ends.close(),
        Command::PowerOff => power_off(),
    }
    Ok(Reply::Done)
}

fn set_sysctl(key: &str, value: &str) -> Result<()> {
    let path = Path::new("/proc/sys").join(key.replace('.', "/"));
    std::fs::write(&path, value).with_context(|| format!("set {} to {value}", path.display()))
}
