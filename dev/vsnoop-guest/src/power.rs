//! The end of the machine.

use nix::sys::reboot::{RebootMode, reboot};

pub fn power_off() -> ! {
    nix::unistd::sync();
    let Err(error) = reboot(RebootMode::RB_POWER_OFF);
    println!("vsnoop-guest: power off: {error}");
    // Process 1 must not return: the kernel would panic.
    loop {
        std::thread::park();
    }
}
