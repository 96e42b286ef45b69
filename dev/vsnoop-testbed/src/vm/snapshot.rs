//! Snapshots of a running machine, and the way back to one: QEMU's own, in a file of its own.
//!
//! A machine that is rolled back has the TCP of the moment of the snapshot, and its peers have not.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::Vm;
use super::qmp::Qmp;
use crate::interrupt;

const FILE: &str = "snapshots";
const FILE_NODE: &str = "snapshots-file";
const NODE: &str = "snapshots";
const TAG: &str = "only";
const JOB: &str = "snapshot";
/// The size of the disk, which stays empty: a machine's state stands behind it.
const DISK_BYTES: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

impl Vm {
    /// Takes a snapshot, the first time with a new file for it; the machine runs on.
    pub fn snapshot(&self) -> Result<()> {
        let file = self.dir.join(FILE);
        let mut qmp = self.qmp()?;
        if !file.exists() {
            make_node(&mut qmp, &file).context("make a file for snapshots")?;
        } else {
            job(&mut qmp, "snapshot-delete", json!({ "tag": TAG, "devices": [NODE] }))?;
        }
        job(&mut qmp, "snapshot-save", json!({ "tag": TAG, "vmstate": NODE, "devices": [NODE] }))
            .with_context(|| format!("take a snapshot of {}", self.name))
    }

    /// Goes back to the last snapshot; the machine runs on from there.
    pub fn roll_back(&self) -> Result<()> {
        let mut qmp = self.qmp()?;
        job(&mut qmp, "snapshot-load", json!({ "tag": TAG, "vmstate": NODE, "devices": [NODE] }))
            .with_context(|| format!("roll {} back", self.name))?;
        // libvirt does so, too: the machine stands still if it did so when QEMU began.
        qmp.execute("cont", &json!({})).map(drop)
    }
}

fn make_node(qmp: &mut Qmp, file: &Path) -> Result<()> {
    let plain = json!({ "driver": "file", "filename": file });
    let mut create = plain.clone();
    create["size"] = 0.into();
    job(qmp, "blockdev-create", json!({ "options": create }))?;
    let mut add = plain;
    add["node-name"] = FILE_NODE.into();
    qmp.execute("blockdev-add", &add)?;
    let image = json!({ "driver": "qcow2", "file": FILE_NODE, "size": DISK_BYTES });
    job(qmp, "blockdev-create", json!({ "options": image }))?;
    let add = json!({ "driver": "qcow2", "node-name": NODE, "file": FILE_NODE });
    qmp.execute("blockdev-add", &add).map(drop)
}

/// Runs a job of QEMU to its end.
fn job(qmp: &mut Qmp, command: &str, mut arguments: Value) -> Result<()> {
    arguments["job-id"] = JOB.into();
    qmp.execute(command, &arguments)?;
    let since = Instant::now();
    loop {
        interrupt::check()?;
        let jobs = qmp.execute("query-jobs", &json!({}))?;
        let job = jobs.as_array().into_iter().flatten().find(|job| job["id"] == JOB);
        let job = job.with_context(|| format!("QEMU has no job of {command}"))?;
        if job["status"] == "concluded" {
            let error = job["error"].clone();
            qmp.execute("job-dismiss", &json!({ "id": JOB }))?;
            if !error.is_null() {
                bail!("{command}: {error}");
            }
            return Ok(());
        }
        ensure!(since.elapsed() < PATIENCE, "{command} does not end: {job}");
        std::thread::sleep(POLL);
    }
}
