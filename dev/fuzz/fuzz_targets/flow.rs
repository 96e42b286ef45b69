//! The decision core (accel/flow/) under arbitrary segments from both sides: see
//! accel/vsnoop-flow/tests/arbitrary/machine.rs for what must hold.
//!
//!     cargo +nightly fuzz run flow
#![no_main]

#[path = "../../../accel/vsnoop-flow/tests/arbitrary/machine.rs"]
mod machine;
#[path = "../../../accel/vsnoop-flow/tests/arbitrary/tape.rs"]
mod tape;

libfuzzer_sys::fuzz_target!(|program: &[u8]| {
    machine::run(program, &mut machine::Seen::default());
});
