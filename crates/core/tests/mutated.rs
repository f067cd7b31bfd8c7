//! Cursors and ids from clients, over mutated real ones: the check of the fuzz target, with fixed seeds.

#[path = "../../../fuzz/checks/cursors.rs"]
mod cursors;
#[path = "../../../fuzz/checks/mutate.rs"]
mod mutate;

fn inputs() -> [Vec<u8>; 5] {
    let inputs = ["1:42", "0:0", "18446744073709551615:18446744073709551615", "ses_01-x.y:z", "007:0012"];
    inputs.map(|text| text.as_bytes().to_vec())
}

#[test]
fn golden_seeds_of_cursors() {
    mutate::compare_with_seeds("cursors", &inputs());
}

#[test]
fn mutated_cursors_are_taken_for_what_they_say_or_refused() {
    mutate::run(&inputs(), 200_000, cursors::check);
}
