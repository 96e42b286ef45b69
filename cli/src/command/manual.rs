//! `vsnoop man` and `vsnoop completions`: files that `make install` installs, generated from the
//! definition of the command line.
//!
//! The manual is divided as that of git and ip: vsnoop(8) is an overview, and each verb has a page,
//! such as vsnoop-attach(8).

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::Cli;

const SECTION: &str = "8";

/// Exit codes: a code, or the first and the last of several, and their meaning.
const EXIT_STATUS: [(&str, &str); 14] = [
    ("0", "Done."),
    (
        "1",
        "Failure at run time; also pause when bytes are on their way, and off when something stays.",
    ),
    ("2", "Wrong arguments, or an error in a configuration file."),
    ("3", "The host or the port is unfit in another way than those below."),
    ("31", "The port, the uplink or an interface does not exist."),
    ("32", "The port is not a tap."),
    ("33", "The port is attached already."),
    ("34", "A configured queue discipline, or another program, is on the port."),
    ("35", "The kernel lacks something, or refused the programs."),
    ("36", "Root is needed."),
    ("37", "There is no BPF file system at /sys/fs/bpf."),
    ("38", "Pinned state is of another version, or damaged; vsnoop off --all removes it."),
    ("39", "The port is not attached, or the uplink has no incast control."),
    ("40, 41", "A link of this name is up already, or is not up."),
];

const FILES: [(&str, &str); 4] = [
    ("/etc/vsnoop/vsnoop.toml", "Settings of the host: what holds may take, and incast control."),
    ("/etc/vsnoop/link/NAME.toml", "Configuration of a link."),
    ("/sys/fs/bpf/vsnoop", "Pinned programs and maps of attached ports."),
    (
        "share/doc/vsnoop",
        "Below /usr or /usr/local: the documents that these pages name, such as docs/reference/command.md.",
    ),
];

pub fn write_pages(dir: &Path) -> Result<u8> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for page in list_pages()? {
        let path = dir.join(page.name);
        fs::write(&path, page.text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(0)
}

pub fn print_completions(shell: Shell) -> Result<u8> {
    io::stdout()
        .write_all(&render_completions(shell))
        .context("cannot write to standard output")?;
    Ok(0)
}

fn render_completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut keep_visible(&Cli::command()), "vsnoop", &mut script);
    script
}

/// The command line without hidden commands and options, which clap_complete would offer.
fn keep_visible(command: &clap::Command) -> clap::Command {
    let mut copy = clap::Command::new(command.get_name().to_owned());
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        copy = copy.version(version.to_owned());
    }
    copy.args(command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned())
        .subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(keep_visible))
}

/// A manual page.
struct Page {
    /// Name of its file.
    name: String,
    text: Vec<u8>,
}

fn list_pages() -> Result<Vec<Page>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, None, &mut pages)?;
    Ok(pages)
}

/// The page of a command, and those of its subcommands. `above`: the page that lists this one.
fn add_pages(command: &clap::Command, above: Option<&str>, pages: &mut Vec<Page>) -> Result<()> {
    // clap_mangen's own synopsis omits the values of options.
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let command = command.clone().override_usage(usage).subcommand_help_heading("COMMANDS");
    let man = Man::new(command.clone())
        .section(SECTION)
        .source(concat!("vsnoop ", env!("CARGO_PKG_VERSION")))
        .manual("vsnoop");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    man.render_options_section(&mut text)?;
    let mut end = Roff::new();
    match above {
        None => {
            add_list(&mut end, "EXIT STATUS", &EXIT_STATUS);
            add_list(&mut end, "FILES", &FILES);
        }
        Some(above) => {
            end.control("SH", ["SEE ALSO"]);
            end.text([bold(above), roman(format!("({SECTION})"))]);
        }
    }
    end.to_writer(&mut text)?;
    pages.push(Page { name: man.get_filename(), text });
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        add_pages(sub, Some(name), pages)?;
    }
    Ok(())
}

fn add_list(page: &mut Roff, heading: &str, items: &[(&str, &str)]) {
    page.control("SH", [heading]);
    for (item, meaning) in items {
        page.control("TP", []).text([bold(*item)]).text([roman(*meaning)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::exit_name;

    /// Page names of all commands that are not hidden.
    fn names(command: &clap::Command, name: &str) -> Vec<String> {
        let mut all = vec![format!("{name}.{SECTION}")];
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            all.extend(names(sub, &format!("{name}-{}", sub.get_name())));
        }
        all
    }

    fn text(page: &Page) -> String {
        String::from_utf8(page.text.clone()).unwrap().replace("\\-", "-")
    }

    #[test]
    fn each_command_has_a_page_and_stands_in_the_one_above() {
        let pages = list_pages().unwrap();
        let found: Vec<_> = pages.iter().map(|page| page.name.clone()).collect();
        assert_eq!(found, names(&Cli::command(), "vsnoop"));
        assert!(found.iter().any(|name| name == "vsnoop-link-up.8"));
        let first = text(&pages[0]);
        for name in &found[1..] {
            let reference = format!("{}({SECTION})", name.trim_end_matches(".8"));
            let is_verb = reference.matches('-').count() == 1;
            assert_eq!(first.contains(&reference), is_verb, "{reference}");
        }
    }

    #[test]
    fn a_page_has_the_options_and_nothing_hidden() {
        let pages = list_pages().unwrap();
        let attach = text(pages.iter().find(|page| page.name == "vsnoop-attach.8").unwrap());
        for part in ["<PORT>... [OPTIONS]", "--hold", "--ahead", "--netns"] {
            assert!(attach.contains(part), "{part} is not in:\n{attach}");
        }
        assert!(!attach.contains("buf-size"), "{attach}");
    }

    #[test]
    fn exit_codes_of_the_manual_are_those_of_errors() {
        let codes = EXIT_STATUS.iter().flat_map(|(codes, _)| codes.split(", "));
        let codes: Vec<u8> = codes.map(|code| code.parse().unwrap()).collect();
        for code in 1..=u8::MAX {
            let has_name = code == 1 || exit_name(code) != exit_name(1);
            assert_eq!(codes.contains(&code), has_name, "{code}");
        }
    }

    #[test]
    fn completions_offer_each_command_and_nothing_hidden() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(render_completions(shell)).unwrap();
            for part in ["attach", "doctor", "keygen", "hold", "netns"] {
                assert!(script.contains(part), "{shell}: {part}");
            }
            for part in ["engine", "helper", "buf-size"] {
                assert!(!script.contains(part), "{shell}: {part}");
            }
        }
    }
}
