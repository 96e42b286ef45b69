//! Runs programs of this host under another kernel: a machine that does a list of commands and
//! powers off.
//!
//! The programs and their shared libraries go into an initramfs whose init is a shell script; it
//! loads modules, runs the commands one after the other as root and prints a line before and after
//! each, by which their output and status are found on the console. The machine has no network, no
//! disk and nothing to do with the machines of [`crate::vm`]; it is emulated, so that it runs
//! wherever QEMU is. Its kernel is seldom that of the host, but its C library and commands are.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Result;

use super::Kernel;
use super::archive::{self, Archive};
use super::emulator::Emulator;

const MEMORY_MB: u32 = 1024;
/// Programs that the script itself needs, with their packages.
const TOOLS: [(&str, &str); 3] = [("sh", "dash"), ("mount", "mount"), ("insmod", "kmod")];
/// Begins each line of the script itself; the next word is its kind.
const MARK: &str = "vsnoop-lab-batch:";

/// A machine and its task.
pub struct Batch<'a> {
    pub kernel: &'a Kernel,
    /// Loaded with all that they need.
    pub modules: &'a [&'a str],
    /// Names in `/bin`, which is the machine's PATH, and the programs of this host behind them.
    pub programs: &'a [(&'a str, PathBuf)],
    /// Files of this host, which are at the same paths in the machine.
    pub files: &'a [&'a Path],
    /// Programs with their arguments.
    pub commands: &'a [&'a [&'a str]],
}

/// Result of a batch.
#[derive(Debug)]
pub struct Report {
    /// The output of the machine.
    pub console: String,
    /// The status of QEMU, if it ended by itself: 0 as well if the kernel panicked.
    pub status: Option<ExitStatus>,
}

/// Output of a command, stdout and stderr, and its exit status.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    pub output: String,
    pub status: i32,
}

impl Batch<'_> {
    /// Boots the machine and waits until it powers off; after `limit` it is killed.
    pub fn run(&self, limit: Duration) -> Result<Report> {
        let emulator = Emulator {
            kernel: &self.kernel.image,
            initramfs: &self.initramfs()?,
            memory_mb: MEMORY_MB,
            // A kernel that panics is not to boot again by itself, nor a machine that is done.
            options: &["-no-reboot".into()],
        };
        let (console, status) = emulator.run(limit, |_| {})?;
        Ok(Report { console, status })
    }

    fn initramfs(&self) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for dir in ["dev", "proc", "sys", "run", "tmp"] {
            archive.directory(dir)?;
        }
        archive.modules(self.kernel, self.modules)?;
        for (name, package) in TOOLS {
            archive.program(name, &archive::installed(name, package)?)?;
        }
        for (name, program) in self.programs {
            archive.program(name, program)?;
        }
        for file in self.files {
            archive.host_file(file)?;
        }
        archive.file("init", script(self.commands).as_bytes())?;
        archive.finish()
    }
}

impl Report {
    /// The kernel that ran, as `uname -r` gives it.
    pub fn release(&self) -> Option<&str> {
        self.console.lines().find_map(|line| marked(line, "kernel"))
    }

    /// Returns the output since the script's last line, with that line: a kernel that panicked says
    /// here why, and which command ran.
    pub fn end(&self) -> &str {
        &self.console[self.console.rfind(MARK).unwrap_or(0)..]
    }

    /// The command of this index, if it came to an end.
    pub fn command(&self, index: usize) -> Option<Ended> {
        let mut output = String::new();
        let mut begun = false;
        for line in self.console.lines() {
            if begun && let Some(status) = marked(line, "ended") {
                return Some(Ended { output, status: status.parse().ok()? });
            } else if begun {
                output += line;
                output.push('\n');
            }
            begun |= marked(line, "begins").is_some_and(|found| found == index.to_string());
        }
        None
    }
}

/// The rest of a line after the mark and this word.
fn marked<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    line.strip_prefix(MARK)?.trim_start().strip_prefix(word).map(str::trim)
}

/// The init. The output shows if a step fails, and the machine powers off in any case.
fn script(commands: &[&[&str]]) -> String {
    let mut script = String::from(
        "#!/bin/sh\n\
         export PATH=/bin\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs devtmpfs /dev\n\
         mount -t bpf bpf /sys/fs/bpf\n\
         while read -r module; do insmod \"/modules/$module\"; done < /modules/order\n\
         read -r release < /proc/sys/kernel/osrelease\n",
    );
    // Writing to a String cannot fail.
    let _ = writeln!(script, "echo \"{MARK} kernel $release\"");
    for (index, command) in commands.iter().enumerate() {
        let words: Vec<_> = command.iter().map(|word| quoted(word)).collect();
        let _ = writeln!(script, "echo '{MARK} begins {index}'");
        let _ = writeln!(script, "{} < /dev/null 2>&1", words.join(" "));
        // The last line of a program that died may lack its end.
        let _ = writeln!(script, "status=$?; echo; echo \"{MARK} ended $status\"");
    }
    // It takes a moment, in which the init must not end.
    script += "echo o > /proc/sysrq-trigger\nwhile :; do :; done\n";
    script
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn output_and_status_of_each_command_are_found() {
        let console = format!(
            "SeaBIOS\n{MARK} kernel 6.12.1\n{MARK} begins 0\na\nb\n\n{MARK} ended 0\n\
             {MARK} begins 1\n\n{MARK} ended 101\n{MARK} begins 2\nkilled while it"
        );
        let report = Report { console, status: None };
        assert_eq!(report.release(), Some("6.12.1"));
        assert_eq!(report.command(0), Some(Ended { output: "a\nb\n\n".into(), status: 0 }));
        assert_eq!(report.command(1), Some(Ended { output: "\n".into(), status: 101 }));
        assert_eq!(report.command(2), None);
        assert_eq!(report.command(3), None);
        assert_eq!(report.end(), format!("{MARK} begins 2\nkilled while it"));
    }

    #[test]
    fn words_reach_the_command_whole() {
        let commands: [&[&str]; 1] = [&["printf", "%s|", "a b", "it's", "$x", ""]];
        let script = script(&commands);
        let line = script.lines().find(|line| line.contains("printf")).unwrap();
        let output = Command::new("sh").args(["-c", line]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a b|it's|$x||");
    }
}
