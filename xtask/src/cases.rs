//! `docs/cases.md`: each fault of the public list stands there once, with tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The page.
const PAGE: &str = "docs/cases.md";
/// The numbers of the cases, as ranges: their list is sparse.
const NUMBERS: [(u32, u32); 14] = [
    (1, 10),
    (18, 23),
    (29, 33),
    (37, 41),
    (45, 55),
    (63, 74),
    (83, 91),
    (98, 105),
    (111, 116),
    (121, 126),
    (131, 141),
    (150, 154),
    (159, 162),
    (165, 169),
];
/// Columns of a row: case, fault, tests, what protects us, how it was seen to fail.
const COLUMNS: usize = 5;

/// Complaints about the page, in the order of its lines.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let Ok(page) = fs::read_to_string(root.join(PAGE)) else { return vec![format!("{PAGE}: is missing")] };
    check_page(&page, |test| exists(root, test))
}

fn check_page(page: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut missing: BTreeSet<u32> = NUMBERS.iter().flat_map(|(first, last)| *first..=*last).collect();
    for (index, line) in page.lines().enumerate() {
        let Some(row) = line.strip_prefix('|').and_then(|row| row.strip_suffix('|')) else { continue };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let Some(number) = cells.first().and_then(|cell| cell.parse::<u32>().ok()) else { continue };
        let mut complain = |words: String| complaints.push(format!("{PAGE}:{}: {words}", index + 1));
        if !missing.remove(&number) {
            complain(format!("case {number} is no case, or stands here twice"));
        }
        if cells.len() != COLUMNS || cells.iter().any(|cell| cell.is_empty()) {
            complain(format!("case {number} wants {COLUMNS} cells that say something"));
        }
        let tests: Vec<&str> = cells.get(2).map_or("", |cell| *cell).split('`').skip(1).step_by(2).collect();
        if tests.is_empty() {
            complain(format!("case {number} names no test"));
        }
        for test in tests.into_iter().filter(|test| !exists(test)) {
            complain(format!("case {number} names a test that does not exist: {test}"));
        }
    }
    complaints.extend(missing.iter().map(|number| format!("{PAGE}: case {number} is missing")));
    complaints
}

/// Whether there is a test of this name, `package[::binary] module::function`, by its sources: the function stands, as a
/// test, in a file of the package (and of the binary), and its module's last name is a module there.
fn exists(root: &Path, test: &str) -> bool {
    let Some((binary, path)) = test.split_once(' ') else { return false };
    let (package, target) = binary.split_once("::").unwrap_or((binary, ""));
    let folder = root.join("crates").join(package.strip_prefix("mainstay-").unwrap_or(package));
    let function = path.rsplit("::").next().unwrap_or(path);
    let modules: Vec<&str> = path.split("::").filter(|part| *part != function).collect();
    let roots = match target {
        "" => vec![folder.join("src")],
        target => vec![folder.join("tests").join(target), folder.join("tests").join(format!("{target}.rs"))],
    };
    roots.iter().any(|root| stands_below(root, function, &modules))
}

/// Looks through a file, or a folder of them.
fn stands_below(path: &Path, function: &str, modules: &[&str]) -> bool {
    if path.is_dir() {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        return entries.into_iter().any(|entry| stands_below(&entry.path(), function, modules));
    }
    let shown = path.display().to_string();
    // `tests` is a module within a file, every other one a file or a folder.
    let in_its_module = modules.iter().filter(|module| **module != "tests").all(|module| {
        path.iter().any(|part| part == *module || part.to_str() == Some(&format!("{module}.rs")))
    });
    shown.ends_with(".rs")
        && in_its_module
        && fs::read_to_string(path).is_ok_and(|text| defines(&text, function))
}

/// Whether a source has this function as a test.
fn defines(text: &str, function: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let named = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        let is_it = named.and_then(|rest| rest.split_once('(')).is_some_and(|(name, _)| name == function);
        // Its attribute stands within the few lines before.
        is_it && lines[at.saturating_sub(4)..at].iter().any(|before| before.contains("test"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_held_to_its_list() {
        let row = |number: u32| format!("| {number} | a fault | `a b::c` | a reason | not yet |\n");
        let numbers = NUMBERS.iter().flat_map(|(first, last)| *first..=*last);
        let page: String = numbers.map(row).collect();
        assert_eq!(page.lines().count(), 103);
        assert_eq!(check_page(&page, |_| true), Vec::<String>::new());
        assert_eq!(check_page(&page, |_| false).len(), 103, "tests that do not exist");
        assert_eq!(
            check_page(&page.replace("| 7 |", "| 11 |"), |_| true).len(),
            2,
            "no case, and one missing"
        );
        assert_eq!(check_page(&page.replacen("| a reason |", "|  |", 1), |_| true).len(), 1, "an empty cell");
        assert_eq!(check_page(&page.replacen("`a b::c`", "none", 1), |_| true).len(), 1, "no test");
    }

    #[test]
    fn a_test_is_known_by_its_function_and_its_attribute() {
        let text = "#[test]\nfn one() {}\n\n#[tokio::test]\nasync fn two() {}\n\n\n\n\n\nfn three() {}\n";
        assert!(defines(text, "one") && defines(text, "two"));
        assert!(!defines(text, "three") && !defines(text, "on"));
    }
}
