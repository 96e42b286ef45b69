//! nginx for a guest, from the distribution's own package.
//!
//! It serves files and takes them in by PUT (`ngx_http_dav_module`, which Debian builds in), with
//! the defaults of its package where no other value is needed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use vsnoop_guest::web;

use super::archive::Archive;
use super::packages::Source;

/// The first that has the program: Ubuntu's `nginx` once was a package without files.
const PACKAGES: [&str; 2] = ["nginx", "nginx-core"];
const PROGRAM: &str = "usr/sbin/nginx";

/// Workers have the guest's only user. A request's body is written to a file, which is renamed.
const CONFIGURATION: &str = "\
user root root;
worker_processes 1;
pid /run/nginx.pid;
events {}
http {
    access_log off;
    client_max_body_size 64m;
    server {
        listen 80;
        root /srv;
        location / { dav_methods PUT; }
    }
}
";

/// Puts the server, its configuration and a small page into a guest.
pub fn add(archive: &mut Archive, dir: &Path) -> Result<()> {
    archive.program("nginx", &program(dir)?)?;
    for directory in ["etc", "srv", "run", "var", "var/lib", "var/lib/nginx"] {
        archive.directory(directory)?;
    }
    // It looks its user up.
    archive.file("etc/passwd", b"root:x:0:0:root:/:/bin/false\n")?;
    archive.file("etc/group", b"root:x:0:\n")?;
    archive.file(relative(web::CONFIGURATION)?, CONFIGURATION.as_bytes())?;
    let page = Path::new(web::ROOT).join(web::PAGE);
    archive.file(relative(&page.to_string_lossy())?, &[b'.'; web::PAGE_BYTES as usize])
}

fn relative(path: &str) -> Result<&str> {
    path.strip_prefix('/').with_context(|| format!("{path} is not absolute"))
}

fn program(dir: &Path) -> Result<PathBuf> {
    let unpacked = dir.join("nginx");
    if !unpacked.is_dir() {
        let source = Source::own();
        let known = PACKAGES.into_iter().filter(|package| source.known(package));
        let known: Vec<_> = known.collect();
        ensure!(!known.is_empty(), "apt knows no package nginx: run `apt-get update` first");
        println!(
            "guest's web server: downloading {} (unpacked into build/guest, not installed)",
            known.join(", ")
        );
        source.unpack(&known, &unpacked, |staging| {
            fs::metadata(staging.join(PROGRAM)).map(drop).context("no nginx in its package")
        })?;
    }
    Ok(unpacked.join(PROGRAM))
}
