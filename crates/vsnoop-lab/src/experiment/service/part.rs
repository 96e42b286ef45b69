//! The parts of the experiment.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The service, helper and engine are killed under load.
    Kills,
    /// Very many short connections.
    Connections,
    /// Taps come and go.
    Taps,
    /// A scrape by Prometheus, and a refresh of `vsnoop top`.
    Scrape,
    /// A machine migrates while clients upload to it.
    Migrations,
}

impl Part {
    pub const ALL: [Self; 5] =
        [Self::Kills, Self::Connections, Self::Taps, Self::Scrape, Self::Migrations];

    /// The configuration of its samples; those of migrations have that of `migrate`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kills => "kills",
            Self::Connections => "connections",
            Self::Taps => "taps",
            Self::Scrape => "scrape",
            Self::Migrations => "migrations",
        }
    }
}
