#![no_main]

#[path = "../checks/keeper_frames.rs"]
mod keeper_frames;

libfuzzer_sys::fuzz_target!(|data: &[u8]| keeper_frames::check(data));
