//! Packages of the distribution, downloaded with apt and unpacked, never installed.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result, ensure};

/// Keys of Debian's releases, on machines of Debian.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// This package is not available on this machine.
#[derive(Debug)]
pub struct Unavailable(String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

pub(super) fn unavailable(reason: impl Into<String>) -> Error {
    Unavailable(reason.into()).into()
}

/// Where apt finds packages.
pub struct Source {
    /// Each of apt's commands gets these.
    options: Vec<OsString>,
}

impl Source {
    /// Uses this machine's configuration.
    pub fn own() -> Self {
        Self { options: Vec::new() }
    }

    /// A suite of Debian, from the mirror that this machine uses, and only that suite. Its lists
    /// are fetched into the directory `dir`; apt's own ones stay as they are.
    pub fn suite(dir: &Path, suite: &str) -> Result<Self> {
        Self::listed(dir, "deb", suite)
    }

    /// Fetches lists of source packages, and is otherwise like [`Self::suite`].
    pub fn sources(dir: &Path, suite: &str) -> Result<Self> {
        Self::listed(dir, "deb-src", suite)
    }

    /// `kind`: of the packages, as sources.list(5) names it.
    fn listed(dir: &Path, kind: &str, suite: &str) -> Result<Self> {
        let mirror = mirror()?;
        fs::create_dir_all(dir.join("lists/partial"))
            .with_context(|| format!("create {}", dir.display()))?;
        let sources = dir.join("sources.list");
        let line = format!("{kind} [signed-by={KEYRING}] {mirror} {suite} main\n");
        fs::write(&sources, line).with_context(|| format!("write {}", sources.display()))?;
        let settings = [
            ("Dir::Etc::sourcelist", sources),
            ("Dir::Etc::sourceparts", "/dev/null".into()),
            ("Dir::State::lists", dir.join("lists")),
            // Its index of packages is of these lists only.
            ("Dir::Cache", dir.to_owned()),
        ];
        let option = |(name, value): (&str, PathBuf)| {
            let mut setting = OsString::from(format!("{name}="));
            setting.push(value);
            ["-o".into(), setting]
        };
        let source = Self { options: settings.into_iter().flat_map(option).collect() };
        let status = source
            .apt_get(&["update"])
            // Else a mirror that cannot be reached is only a warning.
            .args(["-o", "APT::Update::Error-Mode=any"])
            .status()
            .map_err(|error| unavailable(format!("cannot run apt-get ({error})")))?;
        if !status.success() {
            return Err(unavailable(format!("apt-get could not fetch the lists of {suite}")));
        }
        Ok(source)
    }

    /// Does apt know a package of this name?
    pub fn known(&self, package: &str) -> bool {
        self.apt_cache("show", package)
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Names of packages that begin so.
    pub fn names(&self, begin: &str) -> Result<Vec<String>> {
        let text = self.text("pkgnames", begin)?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Names of packages that this one depends on.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let text = self.text("depends", package)?;
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(names.map(str::to_owned).collect())
    }

    /// Downloads packages and unpacks them all into the new directory `to`. It appears at once, and
    /// only if `check` finds in it what is needed.
    pub fn unpack(
        &self,
        packages: &[&str],
        to: &Path,
        check: impl Fn(&Path) -> Result<()>,
    ) -> Result<()> {
        let staging = to.with_extension("partial");
        if staging.exists() {
            fs::remove_dir_all(&staging)
                .with_context(|| format!("remove {}", staging.display()))?;
        }
        let debs = staging.join("debs");
        self.fetch(&["download"], packages, &debs, &packages.join(", "))?;
        for entry in fs::read_dir(&debs).context("list the downloaded packages")? {
            let path = entry.context("list the downloaded packages")?.path();
            let status = Command::new("dpkg-deb")
                .arg("-x")
                .args([&path, &staging])
                .status()
                .context("run dpkg-deb")?;
            ensure!(status.success(), "dpkg-deb could not unpack {}", path.display());
        }
        // Packages and documentation are no longer needed.
        fs::remove_dir_all(&debs).context("remove the downloaded packages")?;
        let _ = fs::remove_dir_all(staging.join("usr/share"));
        check(&staging)?;
        fs::rename(&staging, to).with_context(|| format!("rename to {}", to.display()))
    }

    /// Downloads the upstream tarballs of source packages into the directory `to`. apt compares
    /// them with the checksums of its signed lists.
    pub fn tarballs(&self, packages: &[String], to: &Path) -> Result<()> {
        let what = format!("the source of {}", packages.join(", "));
        self.fetch(&["source", "--download-only", "--tar-only"], packages, to, &what)
    }

    /// Has apt-get put files of packages into the directory `to`. `what`: they are, for the error.
    fn fetch(
        &self,
        command: &[&str],
        packages: &[impl AsRef<OsStr>],
        to: &Path,
        what: &str,
    ) -> Result<()> {
        fs::create_dir_all(to).with_context(|| format!("create {}", to.display()))?;
        let status =
            self.apt_get(command).args(packages).current_dir(to).status().context("run apt-get")?;
        if status.success() {
            return Ok(());
        }
        Err(unavailable(format!("apt-get could not download {what}: is there a network?")))
    }

    fn apt_get(&self, command: &[&str]) -> Command {
        let mut apt = Command::new("apt-get");
        apt.args(&self.options).args(["-o", "APT::Sandbox::User=root", "-qq"]).args(command);
        apt
    }

    fn apt_cache(&self, command: &str, package: &str) -> Command {
        let mut apt = Command::new("apt-cache");
        apt.args(&self.options).args([command, package]).stderr(Stdio::null());
        apt
    }

    /// Returns the output of apt-cache.
    fn text(&self, command: &str, package: &str) -> Result<String> {
        let output = self
            .apt_cache(command, package)
            .output()
            .map_err(|error| unavailable(format!("cannot run apt-cache ({error})")))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The mirror of Debian that apt uses here.
fn mirror() -> Result<String> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI)"])
        .args(["Created-By: Packages", "Origin: Debian", "Component: main"])
        .stderr(Stdio::null())
        .output()
        .map_err(|error| unavailable(format!("cannot run apt-get ({error})")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let is_archive = |uri: &&str| !uri.trim_end_matches('/').ends_with("-security");
    let mirror = text.lines().find(is_archive).map(str::to_owned);
    mirror.ok_or_else(|| unavailable("apt uses no mirror of Debian here"))
}
