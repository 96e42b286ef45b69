//! Starts an MPI program on machines of a stage.
//!
//! MPICH's process manager, hydra, has a server beside the first rank (`mpiexec`) and a proxy on
//! each machine, which starts its rank and calls the server over TCP. With the launcher `manual` it
//! prints the commands of the proxies, which the guests' agents start: no ssh, whose cryptography
//! would take a VM without CPU time some seconds for each program.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vsnoop_guest::control::Command;
use vsnoop_testbed::contained::last_lines;
use vsnoop_testbed::stage::{Stage, vm_address};
use vsnoop_testbed::wait::wait_until;

use crate::experiment::systems;

/// Machines with a rank each: the first ones.
pub const RANKS: usize = 4;

/// Far longer than a program takes when all machines share a core.
const LIMIT: Duration = Duration::from_secs(600);
/// Between two questions, which take time of the first rank's machine.
const PAUSE: Duration = Duration::from_millis(500);
const SERVER: &str = "mpiexec";
const PROXY: &str = "proxy";
/// Begins the lines that hydra prints: the command of a proxy each, and an end.
const HYDRA: &str = "HYDRA_LAUNCH";
const COMMAND: &str = "HYDRA_LAUNCH: ";
const END: &str = "HYDRA_LAUNCH_END";

/// The output of a program, which says `end` when all of its ranks are done, and then waits for its
/// own.
pub fn run(stage: &Stage, program: &str) -> Result<String> {
    let ran = run_to_end(stage, program);
    let stopped = (0..RANKS).try_for_each(|machine| {
        // A program of a name that begins ends the one before it.
        let stop = |name| stage.vm(machine).command(&start(name, "true".into()));
        if machine == 0 {
            stop(SERVER)?;
        }
        stop(PROXY).map(drop)
    });
    ran.and_then(|output| stopped.map(|()| output))
        .with_context(|| format!("the MPI program {program:?}"))
}

fn run_to_end(stage: &Stage, program: &str) -> Result<String> {
    let server = stage.vm(0);
    let hosts: Vec<_> = (0..RANKS).map(|machine| vm_address(machine, false).to_string()).collect();
    // Without UCX's `self`, of which no rank has a use, and on the one device.
    let script = format!(
        "export UCX_TLS=tcp UCX_NET_DEVICES=eth0
         exec mpiexec.mpich -launcher manual -iface eth0 -hosts {} -n {RANKS} {program}",
        hosts.join(",")
    );
    server.command(&start(SERVER, script))?;
    let mut output = String::new();
    wait_until("hydra has named its proxies", LIMIT, || {
        let (status, text) = systems::ended(server, SERVER)?;
        output = text;
        ensure!(status.is_none(), "mpiexec ended with status {status:?}: {}", last_words(&output));
        Ok(output.contains(END))
    })?;
    let proxies = proxies(&output);
    ensure!(proxies.len() == RANKS, "hydra named {} proxies", proxies.len());
    for (machine, command) in proxies.iter().enumerate() {
        let script = format!("exec {command}");
        stage.vm(machine).command(&start(PROXY, script))?;
    }
    let waited = wait_until("the MPI program ends", LIMIT, || {
        std::thread::sleep(PAUSE);
        let (status, text) = systems::ended(server, SERVER)?;
        output = text;
        ensure!(status.is_none(), "it ended with status {status:?}");
        Ok(has_ended(&output))
    });
    waited.with_context(|| last_words(&output))?;
    Ok(output)
}

fn start(name: &str, script: String) -> Command {
    Command::Start { name: name.to_owned(), script }
}

/// The end of what the program itself has printed, for an error message.
pub fn last_words(output: &str) -> String {
    let lines = output.lines().filter(|line| !line.starts_with(HYDRA));
    last_lines(&lines.collect::<Vec<_>>().join("\n"))
}

fn has_ended(output: &str) -> bool {
    output.lines().any(|line| line == "end")
}

/// The commands of the proxies, in the order of their machines.
fn proxies(output: &str) -> Vec<&str> {
    output.lines().filter_map(|line| line.strip_prefix(COMMAND)).map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hydra_names_the_command_of_each_proxy() {
        let output = "HYDRA_LAUNCH: /usr/bin/hydra_pmi_proxy --proxy-id 0 \n\
                      HYDRA_LAUNCH: /usr/bin/hydra_pmi_proxy --proxy-id 1 \n\
                      HYDRA_LAUNCH_END\nbcast 1024 24.0\n";
        let expected =
            [0, 1].map(|machine| format!("/usr/bin/hydra_pmi_proxy --proxy-id {machine}"));
        assert_eq!(proxies(output), expected);
        assert!(!has_ended(output) && has_ended(&format!("{output}end\n")));
        assert_eq!(last_words(output), "bcast 1024 24.0");
        let begin = output.split_inclusive("END\n").next().unwrap();
        assert_eq!(last_words(begin), "it printed nothing");
    }
}
