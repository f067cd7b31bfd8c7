#![no_main]

#[path = "../checks/keeper_folder.rs"]
mod keeper_folder;

libfuzzer_sys::fuzz_target!(|data: &[u8]| keeper_folder::check(data));
