//! `solve` from its command line: every row, every figure, and the form of the last line.

use serde_json::Value;

use crate::support::bench;

/// The JSON lines of a run.
fn lines(arguments: &[&str]) -> Vec<Value> {
    let output = bench(&[&["solve"], arguments].concat()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_quick_run_measures_everything() {
    let lines = lines(&["--quick", "--json"]);
    let [detail, last] = &lines[..] else {
        panic!("two lines, not {}", lines.len());
    };
    assert_eq!(last.as_object().unwrap().len(), 1);
    let rows = last["rows"].as_array().unwrap();
    let names: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| {
            (
                row["size"].as_str().unwrap(),
                row["method"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("3,3,1", "network"),
        ("3,3,1", "lp"),
        ("10,50,4", "network"),
        ("10,50,4", "lp"),
    ];
    assert_eq!(names, expected);
    for row in rows {
        let keys: Vec<&str> = row
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let expected = [
            "cold_ms",
            "gap",
            "lost_ms",
            "memory_mib",
            "method",
            "moved_ms",
            "size",
            "tick_ms",
            "warm_ms",
        ];
        assert_eq!(keys, expected);
        let figure = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
        for key in ["cold_ms", "warm_ms", "lost_ms", "moved_ms"] {
            assert!(figure(key) > 0.0, "{row}");
        }
        // General programs are not asked for a whole pass.
        match row["method"].as_str() {
            Some("network") => assert!(figure("tick_ms") > 0.0, "{row}"),
            _ => assert!(row["tick_ms"].is_null(), "{row}"),
        }
        assert!(figure("gap").abs() < 1e-6, "{row}");
        assert!(figure("memory_mib") >= 0.0, "{row}");
    }
    assert_eq!(detail["unlike"].as_array().unwrap().len(), 4);
    assert_eq!(detail["simplex_alone"].as_array().unwrap().len(), 2);
    // What is no time is judged here too.
    let bars = detail["bars"].as_array().unwrap();
    let exact = bars.iter().filter(|bar| bar["worst"].is_null());
    let of_time = |bar: &&Value| {
        let what = bar["what"].as_str().unwrap();
        what.ends_with(", ns") || what.starts_with("a pass")
    };
    let mut judged = 0;
    for bar in exact.filter(|bar| !of_time(bar)) {
        assert_eq!(bar["met"], true, "{bar}");
        judged += 1;
    }
    assert!(judged >= 7, "{bars:?}");
}

#[test]
fn a_dump_holds_four_problems_with_their_answers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("problems.jsonl");
    let path = file.to_str().unwrap();
    assert!(lines(&["--sizes", "4,12,2", "--dump", path]).is_empty());
    let text = std::fs::read_to_string(&file).unwrap();
    let problems: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<&str> = problems
        .iter()
        .map(|p| p["name"].as_str().unwrap())
        .collect();
    let expected = [
        "4,12,2 alike cold",
        "4,12,2 alike moved",
        "4,12,2 scaled cold",
        "4,12,2 scaled moved",
    ];
    assert_eq!(names, expected);
    for problem in &problems {
        assert_eq!(problem["sources"].as_array().unwrap().len(), 8);
        assert_eq!(problem["engines"].as_array().unwrap().len(), 12);
        let stands = problem["name"].as_str().unwrap().ends_with("moved");
        let source = &problem["sources"][0];
        assert_eq!(source["previous"].is_array(), stands);
        let sum = |key: &str| {
            let shares = source[key].as_array().unwrap().iter();
            shares.map(|share| share.as_f64().unwrap()).sum::<f64>()
        };
        assert!((sum("shares") + sum("shed") - 1.0).abs() < 1e-9);
    }
}
