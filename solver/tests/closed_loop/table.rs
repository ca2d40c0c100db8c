//! The table of loops in `MODEL.md`: every path names a test, and every test it names is there.

use std::fs;
use std::path::Path;

/// Rows of the table, each as its cells.
fn rows(text: &str) -> Vec<Vec<String>> {
    let from = text
        .find("## Loops and their dampers")
        .expect("the section");
    let lines = text[from..].lines();
    let table = lines.skip_while(|l| !l.starts_with('|'));
    let rows = table.take_while(|l| l.starts_with('|')).skip(2);
    let cells = |row: &str| {
        row.trim_matches('|')
            .split('|')
            .map(|c| c.trim().to_owned())
            .collect()
    };
    rows.map(cells).collect()
}

/// Names between backticks.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// All Rust text under a folder.
fn sources(folder: &Path, text: &mut String) {
    let entries = fs::read_dir(folder).expect("a folder");
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|e| e == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("text"));
        }
    }
}

#[test]
fn every_loop_names_the_tests_that_show_its_damper() {
    let solver = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = fs::read_to_string(solver.join("MODEL.md")).expect("MODEL.md");
    let mut text = String::new();
    for folder in ["src", "tests", "../proxy/src", "../proxy/tests"] {
        sources(&solver.join(folder), &mut text);
    }
    let rows = rows(&model);
    assert!(rows.len() >= 10, "{} paths", rows.len());
    for row in &rows {
        let [path, sign, delay, gain, damper, shown] = row.as_slice() else {
            panic!("not six cells: {row:?}");
        };
        for cell in [path, sign, delay, gain, damper] {
            assert!(!cell.is_empty(), "{path}: an empty cell");
        }
        let shown = names(shown);
        assert!(!shown.is_empty(), "{path}: no test is named");
        for name in shown {
            assert!(
                text.contains(&format!("fn {name}(")),
                "{path}: there is no test {name}"
            );
        }
    }
}
