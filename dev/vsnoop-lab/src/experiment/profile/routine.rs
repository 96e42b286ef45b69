//! Functions of the BPF programs, by routine of Table I of the vSnoop report.

use serde::Deserialize;

use super::perf;

/// A routine, as experiments/profile.toml declares it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Routine {
    pub name: String,
    pub packets: Packets,
    /// The report's figures: one stream, 100 streams.
    pub paper_cycles: Option<[f64; 2]>,
    /// Functions of the BPF programs.
    #[serde(default)]
    functions: Vec<String>,
    /// Parts of the names of functions of the kernel.
    #[serde(default)]
    kernel_functions: Vec<String>,
}

/// The packets that a routine is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packets {
    ToVm,
    FromVm,
    Both,
}

impl Routine {
    /// Whether a function of the kernel, as perf calls it, belongs to the routine.
    pub fn has(&self, symbol: &str) -> bool {
        let Some(name) = perf::of_bpf(symbol) else {
            return self.kernel_functions.iter().any(|part| symbol.contains(part));
        };
        // Programs have the names that they are attached by.
        let name = name.strip_prefix("vsnoop_").unwrap_or(name);
        self.functions.iter().any(|function| function == name)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Settings;
    use super::*;
    use crate::experiment::declared::Experiment;
    use crate::experiment::options::Options;
    use vsnoop_testbed::workspace;

    pub fn routines() -> Vec<Routine> {
        let plan = Experiment::find("profile").unwrap().plan(&Options::default()).unwrap();
        plan.settings::<Settings>().unwrap().routine
    }

    fn find_routine(symbol: &str) -> Option<String> {
        routines().into_iter().find(|one| one.has(symbol)).map(|one| one.name)
    }

    #[test]
    fn functions_belong_to_routines() {
        let named = |name: &str| find_routine(&format!("bpf_prog_0123456789abcdef_{name}"));
        assert_eq!(named("to_vm").as_deref(), Some("ingress"));
        assert_eq!(named("vsnoop_from_vm").as_deref(), Some("egress"));
        assert_eq!(named("add_chunk").as_deref(), Some("hold"));
        assert_eq!(named("a_program_of_another"), None);
        assert_eq!(find_routine("__htab_map_lookup_elem").as_deref(), Some("lookup"));
        assert_eq!(find_routine("tcp_sendmsg"), None);
    }

    /// Functions that are not inlined have a name of their own in a profile.
    #[test]
    fn every_function_of_the_programs_belongs_to_a_routine() {
        let dir = workspace::root().unwrap().join("accel/bpf");
        let mut functions = Vec::new();
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            // These programs are on ports with downloads only, which the experiment has not.
            if path.file_name().unwrap().to_string_lossy().starts_with("split") {
                continue;
            }
            let text = std::fs::read_to_string(path).unwrap();
            let begin =
                |line: &&str| line.contains("__noinline ") || line.starts_with("static long ");
            let names = text.lines().filter(begin).filter_map(|line| {
                line.split('(').next()?.split([' ', '*']).next_back().map(str::to_owned)
            });
            functions.extend(names);
        }
        assert!(functions.len() > 30, "{functions:?}");
        for name in &functions {
            let symbol = format!("bpf_prog_0123456789abcdef_{name}");
            assert!(find_routine(&symbol).is_some(), "{name} belongs to no routine");
        }
        for name in routines().into_iter().flat_map(|routine| routine.functions) {
            let is_program = ["to_vm", "from_vm"].contains(&&*name);
            assert!(is_program || functions.contains(&name), "{name} is no function");
        }
    }
}
