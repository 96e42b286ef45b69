//! Checks the configuration that commands read, and the one of the service if that is another.

use std::path::Path;

use vsnoop_host::config::{Config, FILE};
use vsnoop_host::error::{self, Unfit, with_causes};

use super::{Check, Level};
use crate::tables;

/// `attach` and `vsnoop run` refuse a configuration with an error.
pub fn of_host(config: &error::Result<Config>) -> Check {
    check_config("configuration", Level::Fail, config)
}

/// `service`: the file of a service that runs, which goes on in spite of an error. `chosen`: that
/// of `--config`. `None` if both are the same.
pub fn of_service(service: Option<&Path>, chosen: Option<&Path>) -> Option<Check> {
    let file = service.filter(|file| *file != chosen.unwrap_or(Path::new(FILE)))?;
    Some(check_config("service", Level::Warn, &Config::read(Some(file))))
}

/// `fault`: the level of an error.
fn check_config(name: &'static str, fault: Level, config: &error::Result<Config>) -> Check {
    let (level, detail) = match config {
        Ok(config) if config.is_there => {
            let names: Vec<_> = config.ports.iter().map(|port| port.name.as_str()).collect();
            (Level::Ok, format!("{}; {}", config.file.display(), tables::render_table(&names)))
        }
        Ok(config) => (Level::Ok, format!("no {}: defaults", config.file.display())),
        Err(error) => (fault, with_causes(error)),
    };
    Check { name, level, detail, unfit: Unfit::Other }
}
