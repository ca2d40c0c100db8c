//! The optimum of a fleet against HiGHS, which is told the problem by somebody else.
//!
//! `pointsman-bench solve --dump` writes problems as a pass states them, and the product's
//! answers; `highs/compare.py` makes linear programs of them and has SciPy's HiGHS solve those.
//! Larger fleets, for which HiGHS takes minutes, are named by `POINTSMAN_HIGHS_SIZES`
//! (`scripts/deep highs`).

use std::process::Command;
use std::time::Duration;

use pointsman_tests::locate::{binary, python, root};
use pointsman_tests::process::run;

/// HiGHS was seen to take 51 s for one problem of 100,1000,32 on a loaded machine.
const WATCHDOG: Duration = Duration::from_secs(3_600);
/// Four problems a size: like requests and separable ones, from nothing and with weights that
/// stand.
const PROBLEMS: usize = 4;

#[test]
fn fleets_cost_what_highs_says() {
    let sizes = std::env::var("POINTSMAN_HIGHS_SIZES").unwrap_or_else(|_| "20,200,8".to_owned());
    for size in sizes.split(';') {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("problems.jsonl");
        let mut dump = Command::new(binary("pointsman-bench"));
        dump.args(["solve", "--sizes", size, "--dump"]).arg(&file);
        let dumped = run(dump, WATCHDOG);
        assert_eq!(dumped.code, 0, "{size}: {dumped:?}");
        let mut compare = Command::new(python());
        compare
            .arg(root().join("tests/highs/compare.py"))
            .arg(&file);
        let compared = run(compare, WATCHDOG);
        println!("{}", compared.stdout);
        assert_eq!(compared.code, 0, "{size}: {compared:?}");
        assert_eq!(compared.stdout.lines().count(), PROBLEMS, "{compared:?}");
    }
}
