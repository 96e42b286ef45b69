//! A port whose pins another program has removed, entirely or in part: what can still be done by
//! the descriptors that were open before.

use vsnoop_flow::types::{policy, port_run};

use crate::error::{Error, Result};
use crate::pins;
use crate::port::Port;
use crate::programs;

impl Port {
    /// Are its hooks on the tap, while no port is listed in its place and none is being detached?
    /// Asked of a port that [`Port::list`] does not have. Assumed if a link does not tell.
    pub fn is_orphaned(&self) -> bool {
        !matches!(self.links_are_off(), Ok(true)) && !pins::is_leaving(self.id())
    }

    /// Is a hook off the tap, as the open links show?
    pub fn links_are_off(&self) -> Result<bool> {
        for link in self.links() {
            let info = link.info().map_err(Error::bpf(self.doing("ask about a link")))?;
            if info.ifindex == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// No new early ACKs; those given out are honoured. No other process writes the settings.
    pub fn pause_orphan(&self) -> Result<()> {
        let before = self.raw_policy()?;
        if before.run == port_run::PORT_OBSERVE {
            return Ok(());
        }
        self.write_policy(&policy { run: port_run::PORT_PAUSED, ..before })
    }

    /// Takes the hooks off, and removes the pins that are left.
    pub fn take_links_off(&self) -> Result<()> {
        let mut result = Ok(());
        // In the order of [`pins::LINKS`].
        for link in self.links() {
            let off = link.detach().map_err(Error::bpf(self.doing("take a hook off")));
            result = result.and(off);
        }
        if self.is_there() {
            result = result.and(programs::remove(self.dir()));
        }
        result
    }

    fn doing(&self, what: &str) -> String {
        format!("{what} of {}", self.dir().display())
    }
}
