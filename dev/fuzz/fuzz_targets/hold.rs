//! A flow with a hold (accel/flow/hold.h) under arbitrary segments from both sides and an engine
//! that writes arbitrary values: accel/vsnoop-flow/tests/arbitrary/held.rs states the invariants.
//!
//!     cargo +nightly fuzz run hold
#![no_main]

#[path = "../../../accel/vsnoop-flow/tests/arbitrary/held.rs"]
mod held;
#[path = "../../../accel/vsnoop-flow/tests/arbitrary/memory.rs"]
mod memory;
#[path = "../../../accel/vsnoop-flow/tests/arbitrary/tape.rs"]
mod tape;

libfuzzer_sys::fuzz_target!(|program: &[u8]| {
    held::run(program, &mut held::Seen::default());
});
