#![no_main]

#[path = "../checks/cursors.rs"]
mod cursors;

libfuzzer_sys::fuzz_target!(|data: &[u8]| cursors::check(data));
