#![no_main]

#[path = "../checks/import_file.rs"]
mod import_file;

libfuzzer_sys::fuzz_target!(|data: &[u8]| import_file::check(data));
