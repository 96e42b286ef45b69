//! A lab that is interrupted, even twice, restores the settings of the host.

use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::Net;
use vsnoop_testbed::session::{PREFIX, Session};

/// Makes this program a lab.
const LAB: &str = "--lab";
/// Runs it with a network namespace and a /run of its own, and prints what it leaves there.
const HOST: &str = "mount -t tmpfs run /run && mkdir /run/netns || exit
    setting=/proc/sys/net/ipv4/tcp_fin_timeout
    echo 61 >$setting
    \"$@\"
    echo left: $(cat $setting) $(ls /run/netns /run/vsnoop-lab)";

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some(LAB) {
        return lab();
    }
    let test = || two_signals().map_err(|error| Failed::from(format!("{error:#}")));
    let trial = Trial::test("two_signals_leave_neither_setting_nor_namespace_behind", test);
    let trial = match nix::unistd::geteuid().is_root() {
        true => trial,
        false => trial.with_kind("skipped: needs root").with_ignored_flag(true),
    };
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit()
}

fn lab() -> Result<()> {
    interrupt::install()?;
    let mut session = Session::begin()?;
    session.set_sysctl("net.ipv4.tcp_fin_timeout", "17")?;
    let _netns = Net::new(PREFIX).host("vm")?;
    println!("{}", std::process::id());
    while !interrupt::interrupted() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // A step of clearing up, which takes its time.
    stdin().read_line(&mut String::new())?;
    Ok(())
}

fn two_signals() -> Result<()> {
    let mut host = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private", "sh", "-c", HOST, "sh"])
        .arg(std::env::current_exe()?)
        .arg(LAB)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("unshare")?;
    let mut out = BufReader::new(host.stdout.take().context("no standard output")?);
    let mut err = BufReader::new(host.stderr.take().context("no standard error")?);
    let mut line = String::new();
    out.read_line(&mut line)?;
    let lab = Pid::from_raw(line.trim().parse().with_context(|| format!("no id: {line:?}"))?);
    for _ in 0..2 {
        kill(lab, Signal::SIGINT)?;
        // What it says of the signal, or the end.
        err.read_line(&mut line)?;
    }
    // It may be gone.
    let _ = host.stdin.take().context("no standard input")?.write_all(b"\n");
    let mut left = String::new();
    out.read_to_string(&mut left)?;
    host.wait()?;
    ensure!(left.trim() == "left: 61 /run/netns: /run/vsnoop-lab: lock", "{left}");
    Ok(())
}
