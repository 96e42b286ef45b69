//! The decision core (flow/) under arbitrary segments from both sides: see
//! crates/vsnoop-flow/tests/arbitrary/machine.rs for what must hold.
//!
//!     cargo +nightly fuzz run flow
#![no_main]

#[path = "../../crates/vsnoop-flow/tests/arbitrary/machine.rs"]
mod machine;
#[path = "../../crates/vsnoop-flow/tests/arbitrary/tape.rs"]
mod tape;

libfuzzer_sys::fuzz_target!(|program: &[u8]| {
    machine::run(program, &mut machine::Seen::default());
});
