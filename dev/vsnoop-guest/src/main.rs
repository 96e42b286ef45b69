//! `/init` of a lab guest.
//!
//! It mounts what it needs, loads the modules of the initramfs in the order that the image lists,
//! gives its interfaces their addresses from the kernel's command line, changes into the root file
//! system of its disk if it has one, starts the transfer server and then obeys the control channel
//! until the machine is powered off. An error before that is printed on the console and powers the
//! machine off.

mod boot;
mod ends;
mod files;
mod firewall;
mod load;
mod obey;
mod power;
mod programs;
mod root;
mod upload;

use std::sync::Arc;

use anyhow::{Context, Result};
use vsnoop_guest::server;

fn run() -> Result<()> {
    boot::mount_all()?;
    boot::load_modules()?;
    boot::configure_network()?;
    root::enter().context("change into the root file system of the disk")?;
    let counts = Arc::new(server::Counts::default());
    server::start(Arc::clone(&counts)).context("start the transfer server")?;
    let channel = obey::open()?;
    println!("vsnoop-guest: ready");
    obey::serve(channel, &counts).context("control channel")
}

fn main() {
    if std::process::id() != 1 {
        eprintln!("vsnoop-guest is the init of a lab guest and runs only as process 1");
        std::process::exit(2);
    }
    if let Err(error) = run() {
        println!("vsnoop-guest: {error:#}");
    }
    power::power_off();
}
