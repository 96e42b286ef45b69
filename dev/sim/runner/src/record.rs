//! results.json: written after each cell, so that an interrupted run goes on where it stopped.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cell::{Cell, Outcome};

const FILE: &str = "results.json";

/// A cell that was run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    #[serde(flatten)]
    pub cell: Cell,
    /// None: it took longer than a cell may, or it crashed.
    pub outcome: Option<Outcome>,
    pub wall_s: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: String,
    /// `lower` or `higher`.
    pub better: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub experiment: String,
    /// RFC 3339.
    pub started: String,
    pub environment: BTreeMap<String, Value>,
    pub cells: Vec<Done>,
    pub figures: Vec<Figure>,
}

pub struct Record {
    path: PathBuf,
    pub results: Results,
}

impl Record {
    /// Opens the record in `dir`: with the cells that it has, or empty if all run `again`.
    pub fn open(dir: &Path, again: bool, environment: BTreeMap<String, Value>) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let path = dir.join(FILE);
        let before = if again { None } else { fs::read_to_string(&path).ok() };
        let results = match before {
            Some(text) => serde_json::from_str(&text).with_context(|| {
                format!("{} is damaged: remove it, or run with --again", path.display())
            })?,
            None => Results {
                experiment: "sim".into(),
                started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
                environment,
                cells: Vec::new(),
                figures: Vec::new(),
            },
        };
        Ok(Self { path, results })
    }

    pub fn has(&self, cell: &Cell) -> bool {
        self.results.cells.iter().any(|done| done.cell == *cell)
    }

    pub fn push(&mut self, done: Done) -> Result<()> {
        self.results.cells.push(done);
        self.write()
    }

    /// A file is whole, or the one before.
    pub fn write(&self) -> Result<()> {
        let next = self.path.with_extension("json.next");
        let text = serde_json::to_string_pretty(&self.results)? + "\n";
        fs::write(&next, text).with_context(|| format!("cannot write {}", next.display()))?;
        fs::rename(&next, &self.path)
            .with_context(|| format!("cannot replace {}", self.path.display()))
    }
}
