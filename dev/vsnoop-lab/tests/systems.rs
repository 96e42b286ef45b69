//! Guests made of packages: what they run, and what is said when one cannot be made.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use vsnoop_guest::control::{Command, Reply};
use vsnoop_testbed::contained::{self, Network, Sandbox};
use vsnoop_testbed::guest::{self, System};
use vsnoop_testbed::session::Session;
use vsnoop_testbed::vm::{self, Vm};
use vsnoop_testbed::wait::wait_until;

/// Far longer than it takes on a slow machine.
const LIMIT: Duration = Duration::from_secs(300);

type Test = fn() -> Result<()>;

fn main() -> std::process::ExitCode {
    let mut arguments = Arguments::from_args();
    // One of the tests has a PATH of its own.
    arguments.test_threads = Some(1);
    let tests: [(&str, Test); 4] = [
        ("a_guest_runs_programs_of_its_packages_and_leaves_its_disk_as_it_is", guest_of_packages),
        ("the_error_of_a_system_that_cannot_be_made_says_why", not_made),
        ("a_system_has_the_tarballs_of_its_sources", sources),
        ("a_contained_program_ends_with_all_that_it_started", contained_ends),
    ];
    let is_root = nix::unistd::geteuid().is_root();
    let trials = tests.map(|(name, test)| {
        let run = move || test().map_err(|error| Failed::from(format!("{error:#}")));
        let able = is_root && (name != tests[0].0 || vm::require_qemu().is_ok());
        let kind = if able { "" } else { "skipped: needs root and QEMU" };
        Trial::test(name, run).with_kind(kind).with_ignored_flag(!able)
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

fn guest_of_packages() -> Result<()> {
    let made = guest::prepare_system(&System::for_tests())?;
    let session = Session::begin()?;
    let accelerator = vm::choose_accelerator(&made.image, &session.scratch())?;
    let mut vm =
        Vm::start("vslab-system", &made.image, accelerator, &[], &session.scratch().join("vm"))?;
    vm.wait_ready(LIMIT)?;
    // The setup has made the file; nc came as a package.
    let script =
        "cat /etc/file /etc/made; nc -h 2>&1 | head -n 1; id -un; echo changed >/etc/made; exit 3";
    let (status, output) = run(&vm, script)?;
    ensure!(status == 3, "it ended with {status}: {output}");
    let lines: Vec<_> = output.lines().collect();
    let [file, made_by_setup, nc, user] = lines[..] else { bail!("it printed {output:?}") };
    ensure!(file == "as it is" && made_by_setup == "by the setup" && user == "root", "{output}");
    ensure!(nc.starts_with("OpenBSD netcat"), "{output}");
    ensure!(run(&vm, "cat /etc/made")? == (0, "changed\n".into()), "a change is lost");
    let second =
        Vm::start("vslab-second", &made.image, accelerator, &[], &session.scratch().join("vm2"));
    let mut second = second?;
    second.wait_ready(LIMIT)?;
    ensure!(run(&second, "cat /etc/made")? == (0, "by the setup\n".into()), "the disk is changed");
    ensure!(!made.tree.join("etc/made").exists(), "the setup ran in the clients' directory");
    Ok(())
}

/// The status and the output of a script in a guest.
fn run(vm: &Vm, script: &str) -> Result<(i32, String)> {
    let name = "script".to_owned();
    vm.command(&Command::Start { name: name.clone(), script: script.into() })?;
    let mut ended = None;
    wait_until("a script in the guest ends", LIMIT, || {
        let reply = vm.command(&Command::Ended { name: name.clone() })?;
        let Reply::Ended { status, output } = reply else { bail!("the guest answered {reply:?}") };
        ended = status.map(|status| (status, output));
        Ok(ended.is_some())
    })?;
    ended.context("it ended without a status")
}

/// A directory that is removed.
struct Directory(PathBuf);

impl Directory {
    /// One whose `bin` is searched for programs first.
    fn with_programs(name: &str) -> Result<Self> {
        let dir = Self(std::env::temp_dir().join(format!("vsnoop-{name}-{}", std::process::id())));
        let bin = dir.0.join("bin");
        fs::create_dir_all(&bin)?;
        let path = std::env::var("PATH")?;
        // SAFETY: the only thread that reads or writes the environment meanwhile.
        unsafe { std::env::set_var("PATH", format!("{}:{path}", bin.display())) };
        Ok(dir)
    }

    fn program(&self, name: &str, script: &str) -> Result<()> {
        let program = self.0.join("bin").join(name);
        fs::write(&program, format!("#!/bin/sh\n{script}\n"))?;
        Ok(fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Another program stands for mmdebstrap, and fails as that does.
fn not_made() -> Result<()> {
    let dir = Directory::with_programs("fake")?;
    let system = System { name: "fake".into(), ..System::for_tests() };
    let complaint = |installer: &str| -> Result<String> {
        dir.program("mmdebstrap", installer)?;
        match guest::make_system(&dir.0, &system) {
            Ok(_) => bail!("it was made by {installer:?}"),
            Err(error) => Ok(format!("{error:#}")),
        }
    };
    let told = complaint("echo 'E: Unable to locate package nothing-such'; exit 1")?;
    ensure!(told.contains("Unable to locate package nothing-such"), "{told}");
    let told = complaint("echo 'write error: No space left on device'; exit 1")?;
    ensure!(told.contains("the disk is full"), "{told}");
    // It has made a directory, which the setup cannot use, and which is not to stay.
    let told = complaint("for last; do :; done; mkdir -p \"$last/etc\"; exit 1")?;
    ensure!(told.contains("it printed nothing"), "{told}");
    ensure!(left(&dir.0.join("systems"))? == ["fake.log"], "{:?}", left(&dir.0.join("systems")));
    Ok(())
}

/// Other programs stand for mmdebstrap and apt-get.
fn sources() -> Result<()> {
    let dir = Directory::with_programs("sources")?;
    dir.program("mmdebstrap", "for last; do :; done; mkdir -p \"$last/etc\"")?;
    let apt_get = |download: &str| {
        let script = format!(
            "for last; do :; done
             case \"$*\" in
             *indextargets*) echo file:/mirror/ ;;
             *' source '*) {download} ;;
             *) grep -q '^deb-src .* file:/mirror/ ' \"${{2#*=}}\" ;;
             esac"
        );
        dir.program("apt-get", &script)
    };
    let sources = vec!["hello".to_owned()];
    let (name, files, setup) = ("fake".to_owned(), [].into(), String::new());
    let mut system = System { name, sources, files, setup, ..System::for_tests() };
    apt_get("echo content >\"${last}_1.orig.tar.gz\"")?;
    let made = guest::make_system(&dir.0, &system)?;
    let tarball = fs::read_to_string(made.tree.join("usr/local/src/hello_1.orig.tar.gz"))?;
    ensure!(tarball == "content\n", "{tarball}");
    let systems = dir.0.join("systems");
    ensure!(left(&systems)?.len() == 3, "more than a tree, a disk, a log: {:?}", left(&systems));
    apt_get("echo content >\"${last}_2.orig.tar.gz\"; exit 100")?;
    system.sources = vec!["other".into()];
    let Err(error) = guest::make_system(&dir.0, &system) else { bail!("it was made") };
    ensure!(format!("{error:#}").contains("the source of other"), "{error:#}");
    ensure!(left(&systems)? == ["fake.log"], "{:?}", left(&systems));
    Ok(())
}

fn left(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().into_string()));
    let names = entries.collect::<Result<Vec<_>>>()?;
    names.into_iter().map(|name| name.ok().context("a name")).collect()
}

fn contained_ends() -> Result<()> {
    let dir = Directory(std::env::temp_dir().join(format!("vsnoop-ends-{}", std::process::id())));
    fs::create_dir_all(&dir.0)?;
    let fifo = dir.0.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU)?;
    // The grandchild holds the writing end open until it is killed.
    let script = format!("sh -c 'exec sleep 100000' >{} & sleep 100000", fifo.display());
    let sandbox = Sandbox { network: Network::None, root: None };
    let program = contained::start(&sandbox, &script, None)?;
    // Opens when the grandchild has opened its end.
    let mut reader = fs::File::open(&fifo)?;
    drop(program);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut rest)?;
    ensure!(rest.is_empty(), "somebody wrote {rest:?}");
    Ok(())
}
