//! `tests/README.md` against the code: every test that the page names exists, so that a renamed or
//! deleted one cannot go on being promised.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::collections::BTreeSet;
use std::path::Path;

use pointsman_tests::locate::root;

/// Entries about streaming, HTTP/1.1, HTTP/2 and JSON, each of which must have a row on the page.
const DATA_PLANE: [&str; 45] = [
    "a01", "a02", "a03", "a04", "a06", "a07", "a09", "a11", "a12", "a14", "a15", "b01", "b02",
    "b04", "b05", "b07", "b09", "b10", "b11", "b13", "b15", "b16", "b17", "b19", "b21", "c01",
    "c03", "c04", "c05", "c06", "c09", "c10", "c11", "c13", "c14", "c16", "d01", "d02", "d03",
    "d05", "d07", "d08", "d09", "d11", "d12",
];

/// Entries about the optimiser, each of which must have a row on the page.
const OPTIMISER: [&str; 11] = [
    "e22", "h01", "h02", "h04", "h06", "h07", "h08", "h09", "h11", "h12", "h14",
];

/// Entries about routing, load, retries, budgets and shedding: each must have a row on the page, or be
/// one that cannot happen here.
const GUARDRAILS: [&str; 25] = [
    "e01", "e02", "e04", "e05", "e06", "e08", "e09", "e10", "e12", "e13", "e15", "e17", "e18",
    "e19", "e20", "e21", "e22", "f01", "f02", "f03", "f05", "f06", "f07", "f09", "f11",
];

/// Entries about I/O and shared memory, each of which must have a test by its name.
const SYSTEM: [&str; 9] = [
    "i01", "i02", "i03", "i05", "i06", "i07", "i08", "i10", "i12",
];

#[test]
fn every_test_that_the_page_names_exists() {
    let page = std::fs::read_to_string(root().join("tests/README.md")).unwrap();
    let named: BTreeSet<&str> = page.split('`').filter(|word| is_case(word)).collect();
    assert!(named.len() > 100, "only {} tests are named", named.len());
    let mut existing = BTreeSet::new();
    for room in ["shm", "solver", "proxy", "bench", "tests"] {
        collect(&root().join(room), &mut existing);
    }
    let missing: Vec<&&str> = named
        .iter()
        .filter(|name| !existing.contains(**name))
        .collect();
    assert!(missing.is_empty(), "named and not there: {missing:?}");
    for entry in SYSTEM {
        let prefix = format!("{entry}_");
        let tests = existing
            .iter()
            .filter(|name| name.starts_with(&prefix))
            .count();
        assert!(tests > 0, "no test is named after {entry}");
    }
}

#[test]
fn every_entry_has_its_row_and_every_row_tests_of_its_entry() {
    let page = std::fs::read_to_string(root().join("tests/README.md")).unwrap();
    let mut rows = BTreeSet::new();
    for row in page.lines().filter(|line| line.contains(" | `")) {
        let entry = row.trim_start_matches("| ").split(' ').next().unwrap();
        let entry = entry.to_ascii_lowercase();
        if !is_case(&format!("{entry}__")) {
            continue;
        }
        let tests: Vec<&str> = row.split('`').filter(|word| is_case(word)).collect();
        // A test of two entries names both: `b04_b15_...`.
        let is_of = |name: &&&str| {
            let names = name
                .split('_')
                .take_while(|part| is_case(&format!("{part}__")));
            names.into_iter().any(|part| part == entry)
        };
        assert_eq!(
            tests.iter().filter(is_of).count(),
            tests.len(),
            "{entry} is said to be kept out by others' tests: {row}"
        );
        assert!(!tests.is_empty(), "{entry} names no test");
        assert!(rows.insert(entry), "two rows of one entry: {row}");
    }
    for entry in DATA_PLANE.into_iter().chain(OPTIMISER) {
        assert!(rows.contains(entry), "{entry} has no row");
    }
    let excused = excused(&page);
    assert!(excused.contains("j08"), "{excused:?}");
    for entry in GUARDRAILS {
        let has = (rows.contains(entry), excused.contains(entry));
        assert!(has.0 != has.1, "{entry}: a row, a reason why not: {has:?}");
    }
}

/// Entries of the page's last table, which says why they have no test.
fn excused(page: &str) -> BTreeSet<String> {
    let (_, table) = page.split_once("| entry | why |").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| "));
    let entries = rows.filter_map(|row| row.split_once(" | "));
    let entries = entries.filter(|(_, why)| why.len() > 20);
    let names = entries.flat_map(|(entries, _)| entries.split(", "));
    names.map(str::to_ascii_lowercase).collect()
}

/// Whether a word is a test's name that begins with an entry: `a01_...`.
fn is_case(word: &str) -> bool {
    let bytes = word.as_bytes();
    bytes.len() > 4
        && bytes[0].is_ascii_lowercase()
        && bytes[1].is_ascii_digit()
        && bytes[2].is_ascii_digit()
        && bytes[3] == b'_'
}

/// Names of all functions below a folder that look like cases.
fn collect(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text
                .split("fn ")
                .skip(1)
                .filter_map(|rest| rest.split('(').next());
            into.extend(names.filter(|name| is_case(name)).map(str::to_owned));
        }
    }
}
