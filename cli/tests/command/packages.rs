//! Packages beside the Debian package: the archive, the files of the container image, and the
//! capabilities with which the manifest runs them.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use caps::{CapSet, Capability};
use libtest_mimic::Trial;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;
use vsnoop_testbed::workspace;

use crate::hold::ConfigFile;
use crate::sandbox::{PORT, TapHost, text, vsnoop, wait_until};
use crate::{skipped, trial};

const MANIFEST: &str = "deploy/kubernetes/daemonset.yaml";
pub const UNIT: &str = "deploy/vsnoop.service";

const CONFIG_MAP: &str = "deploy/kubernetes/configmap.yaml";
/// Exposure that `systemd-analyze security` finds at most, in tenths.
const EXPOSURE: &str = "43";

/// Fetched by `sh scripts/check-deploy.sh`.
const VALIDATOR: &str = "build/kubernetes/bin/kubernetes-validate";

pub fn trials() -> Vec<Trial> {
    let mut trials = trials![
        the_manifest_gives_the_capabilities_of_the_unit,
        the_config_map_has_a_good_configuration,
        the_archive_has_what_make_install_installs,
        an_upgrade_to_another_layout_detaches_by_the_old_program_and_no_other_does,
        the_service_attaches_with_the_files_and_capabilities_of_the_container,
    ];
    let manifests = trial("the_manifests_are_what_kubernetes_takes", the_manifests_are_valid);
    let has_schemas = workspace::root().is_ok_and(|root| root.join(VALIDATOR).exists());
    trials.push(match has_schemas {
        true => manifests,
        false => skipped(manifests, &format!("no {VALIDATOR}: sh scripts/check-deploy.sh")),
    });
    let exposure = trial("the_unit_has_a_small_exposure", the_unit_has_a_small_exposure);
    let has_systemd = Command::new("systemd-analyze").arg("--version").output().is_ok();
    let taken = trial("the_unit_is_what_systemd_takes", the_unit_is_what_systemd_takes);
    trials.extend([exposure, taken].map(|trial| match has_systemd {
        true => trial,
        false => skipped(trial, "no systemd-analyze: of the package systemd"),
    }));
    trials
}

/// systemd ignores what it does not know, and says so.
fn the_unit_is_what_systemd_takes() -> Result<()> {
    let root = workspace::root()?;
    let unit = fs::read_to_string(root.join(UNIT))?;
    let program = root.join("target/release/vsnoop");
    let (here, installed) = (program.display().to_string(), "/usr/local/sbin/vsnoop");
    ensure!(unit.contains(&format!("ExecReload={installed} reload")), "{unit}");
    let dir = Path::new("/run/vsnoop-unit");
    fs::create_dir_all(dir)?;
    let verify = |unit: &str| {
        let file = dir.join("vsnoop.service");
        fs::write(&file, unit.replace(installed, &here))?;
        let mut command = Command::new("systemd-analyze");
        let output = command.args(["verify", "--man=no"]).arg(&file).output()?;
        anyhow::Ok(format!("{}{}", text(&output.stdout), text(&output.stderr)))
    };
    let said = verify(&unit)?;
    let of_wrong = verify(&unit.replace("OOMScoreAdjust", "OOMScoreAdjusted"))?;
    fs::remove_dir_all(dir)?;
    ensure!(said.is_empty(), "{said}");
    ensure!(of_wrong.contains("OOMScoreAdjusted"), "it finds no fault: {of_wrong}");
    Ok(())
}

fn the_unit_has_a_small_exposure() -> Result<()> {
    let output = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE])
        .arg(workspace::root()?.join(UNIT))
        .output()?;
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success() && said.contains("Overall exposure level"), "{said}");
    Ok(())
}

/// For the oldest and the newest version that has a schema; one that has an unknown field is not.
fn the_manifests_are_valid() -> Result<()> {
    let root = workspace::root()?;
    let check = root.join("scripts/check-deploy.sh");
    let output = Command::new("sh").arg(check).output()?;
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success() && said.contains("is good for Kubernetes"), "{said}");
    let manifest = fs::read_to_string(root.join(MANIFEST))?;
    let wrong = Path::new("/run/vsnoop-manifest.yaml");
    fs::write(wrong, manifest.replacen("hostNetwork:", "hostNetworks:", 1))?;
    let mut validate = Command::new(root.join(VALIDATOR));
    let output = validate.arg("--strict").arg(wrong).output()?;
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    ensure!(!output.status.success() && said.contains("hostNetworks"), "{said}");
    Ok(())
}

fn the_manifest_gives_the_capabilities_of_the_unit() -> Result<()> {
    let of_unit = of_unit()?;
    let given = capabilities()?.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    ensure!(given == of_unit, "{given:?} and {of_unit:?}");
    Ok(())
}

fn the_config_map_has_a_good_configuration() -> Result<()> {
    let map = fs::read_to_string(workspace::root()?.join(CONFIG_MAP))?;
    let (_, block) = map.split_once("  vsnoop.toml: |\n").context("it has no vsnoop.toml")?;
    let lines: Vec<_> = block.lines().map_while(|line| line.strip_prefix("    ")).collect();
    ensure!(lines.len() == block.lines().count(), "more follows the file: {block}");
    let file = "/run/vsnoop-configmap.toml";
    fs::write(file, lines.join("\n"))?;
    let checked = vsnoop(["check", file, "--json"])?.json()?;
    ensure!(checked["result"] == "good" && checked["tables"][0]["name"] == "kubevirt", "{checked}");
    Ok(())
}

/// The capabilities of the unit.
pub fn of_unit() -> Result<BTreeSet<String>> {
    let unit = fs::read_to_string(workspace::root()?.join(UNIT))?;
    let lines = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    Ok(lines.flat_map(str::split_whitespace).map(str::to_owned).collect())
}

/// The capabilities that the manifest adds to none, as `- NET_ADMIN`.
fn capabilities() -> Result<Vec<Capability>> {
    let manifest = fs::read_to_string(workspace::root()?.join(MANIFEST))?;
    let (before, after) = manifest.split_once("add:\n").context("it adds no capability")?;
    ensure!(before.contains("drop: [\"ALL\"]"), "it drops not all");
    let names = after.lines().map_while(|line| line.trim().strip_prefix("- "));
    names.map(|name| Ok(format!("CAP_{name}").parse()?)).collect()
}

fn the_archive_has_what_make_install_installs() -> Result<()> {
    // With the program that is there: `make test-package` has the static one. Not in build/, where
    // the user may have an archive.
    let dir = Path::new("/run/vsnoop-tarball");
    let said = pack("target/release/vsnoop", dir)?;
    let archive = said.split_whitespace().find(|word| word.ends_with(".tar.xz")).context("none")?;
    ensure!(Path::new(archive).starts_with(dir), "{archive} is elsewhere");
    let version = concat!("/vsnoop-", env!("CARGO_PKG_VERSION"), "-linux-");
    ensure!(archive.contains(version), "{archive} is of another version");
    let output = Command::new("tar").arg("-tf").arg(archive).output()?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    fs::remove_dir_all(dir)?;
    let listed = text(&output.stdout);
    let files: BTreeSet<&str> =
        listed.lines().filter_map(|line| Some(line.split_once("/usr/local/")?.1)).collect();
    for file in [
        "sbin/vsnoop",
        "lib/systemd/system/vsnoop.service",
        "share/man/man8/vsnoop-attach.8",
        "share/doc/vsnoop/docs/reference/command.md",
        "share/doc/vsnoop/deploy/vsnoop.toml",
        "share/bash-completion/completions/vsnoop",
    ] {
        ensure!(files.contains(file), "{file} is not in {listed}");
    }
    Ok(())
}

/// preinst asks the installed program for its ABI; a stand-in for that notes how it is called.
fn an_upgrade_to_another_layout_detaches_by_the_old_program_and_no_other_does() -> Result<()> {
    let dir = Path::new("/run/vsnoop-preinst");
    let sbin = dir.join("sbin");
    fs::create_dir_all(&sbin)?;
    let calls = dir.join("calls");
    let stand_in = format!(
        "#!/bin/sh\necho \"$*\" >>{}\n[ \"$1\" = --version ] || exit 1\n\
         echo 'vsnoop 1.2.3 (ABI 41)'\n",
        calls.display()
    );
    fs::write(sbin.join("vsnoop"), stand_in)?;
    fs::set_permissions(sbin.join("vsnoop"), Permissions::from_mode(0o755))?;
    let preinst = fs::read_to_string(workspace::root()?.join("deploy/debian/preinst"))?;
    ensure!(preinst.contains("abi=#ABI#"), "scripts/deb.sh has nothing to replace: {preinst}");
    let script = dir.join("preinst");
    // The directory of the stand-in lies on that of the host, in a mount namespace.
    let enter = format!("mount --bind {} /usr/sbin && exec sh \"$@\"", sbin.display());
    let called = |abi: &str, action: &str| -> Result<String> {
        fs::write(&calls, "")?;
        fs::write(&script, preinst.replace("#ABI#", abi))?;
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", &enter, "sh"])
            .arg(&script)
            .args([action, "1.2.2"])
            .output()?;
        ensure!(output.status.success(), "{action}, ABI {abi}: {}", text(&output.stderr));
        Ok(text(&fs::read(&calls)?))
    };
    let (same, other, first) =
        (called("41", "upgrade")?, called("42", "upgrade")?, called("42", "install")?);
    fs::remove_dir_all(dir)?;
    ensure!(same == "--version", "the same layout: {same}");
    // Its failures do not stop the upgrade, and it may be too old for the option.
    let calls = "--version\ndetach --all --until-start\ndetach --all\noff --all";
    ensure!(other == calls, "another layout: {other}");
    ensure!(first.is_empty(), "nothing was installed: {first}");
    Ok(())
}

/// Runs scripts/tarball.sh, and returns its output.
fn pack(program: &str, dir: &Path) -> Result<String> {
    let output = Command::new("sh")
        .args(["scripts/tarball.sh", program])
        .env("VSNOOP_TARBALL_DIR", dir)
        // What is in the archive counts here, not how small it is.
        .env("XZ_OPT", "-0")
        .current_dir(workspace::root()?)
        .env_remove("MAKEFLAGS")
        .output()?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    Ok(text(&output.stdout))
}

fn the_service_attaches_with_the_files_and_capabilities_of_the_container() -> Result<()> {
    let root = workspace::root()?;
    let made =
        Command::new("sh").args(["scripts/image.sh", "files"]).current_dir(&root).output()?;
    ensure!(made.status.success(), "{}", text(&made.stderr));
    let files = Mounted::on(root.join("build/image/files"))?;
    let host = TapHost::new("pod")?;
    let before = host.state()?;
    let config = ConfigFile::new(&host, "[[port]]\nhold = \"1M\"\n")?;
    let service = Contained::start(&files.root, &["--config", &config.path], host.netns.name())?;
    wait_until("the tap is attached", || {
        let status = host.vsnoop(["status", "--json"])?.json()?;
        let port = &status["ports"][0];
        Ok(port["state"] == "active" && port["attached_by"] == "service")
    })?;
    wait_until("helper and engine run", || {
        let status = host.vsnoop(["status", "--json"])?.json()?;
        Ok(status["helper"]["running"] == true && status["engine"]["running"] == true)
    })?;
    let status: Value = vsnoop(["status", "--service", "--json"])?.json()?;
    ensure!(status["pid"] == service.0.id(), "{status}");
    drop(service);
    host.vsnoop(["detach", PORT])?.ok()?;
    wait_until("nothing is left", || Ok(host.state()? == before))
}

/// The files of the image with what a container runtime mounts into them.
struct Mounted {
    root: PathBuf,
}

impl Mounted {
    const PLACES: [&str; 3] = ["run", "sys", "proc"];

    fn on(root: PathBuf) -> Result<Self> {
        let this = Self { root };
        let none: Option<&str> = None;
        for place in Self::PLACES {
            let from = Path::new("/").join(place);
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(&from), &this.root.join(place), none, flags, none)
                .with_context(|| format!("mount {place}"))?;
        }
        Ok(this)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for place in Self::PLACES {
            // Helper and engine may still end there.
            let _ = umount2(&self.root.join(place), MntFlags::MNT_DETACH);
        }
    }
}

/// `vsnoop run` in the files of the image, with the capabilities of the manifest; killed when
/// dropped.
struct Contained(Child);

impl Contained {
    fn start(root: &Path, options: &[&str], netns: &str) -> Result<Self> {
        let given = capabilities()?;
        let dropped: Vec<_> = caps::all().into_iter().filter(|cap| !given.contains(cap)).collect();
        let mut command = Command::new("/usr/sbin/vsnoop");
        command.args(["--netns", netns]).args(options).arg("run").stdin(Stdio::null());
        let root = root.to_owned();
        let enter = move || {
            nix::unistd::chroot(&root)?;
            nix::unistd::chdir("/")?;
            for cap in &dropped {
                // A kernel without this capability has nothing to drop.
                if caps::has_cap(None, CapSet::Bounding, *cap).unwrap_or(false) {
                    caps::drop(None, CapSet::Bounding, *cap).map_err(std::io::Error::other)?;
                }
            }
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made; the only other allocation, of
        // an error, ends the child.
        unsafe { command.pre_exec(enter) };
        Ok(Self(command.spawn().context("start the service in the files of the image")?))
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
