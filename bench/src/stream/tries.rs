//! A window measured until it is kept: the quietest of its tries.
//!
//! What a try is and when another one is worth its time are the caller's; this only chooses. A
//! try that fails costs nothing but itself where an earlier one succeeded.

use super::ledger::Taken;
use super::plan::Verdict;

/// Measures by `measure`, which is told the number of the try, until `judge` keeps a window.
///
/// # Errors
/// Why the first try failed. A later one that fails is told on stderr, and the quietest of those
/// before it is kept as noisy.
pub(super) async fn quietest(
    mut measure: impl AsyncFnMut(u32) -> anyhow::Result<Taken>,
    judge: impl Fn(&Taken, u32) -> Verdict,
) -> anyhow::Result<Taken> {
    let mut best: Option<Taken> = None;
    let mut tries = 0;
    loop {
        tries += 1;
        let taken = match (measure(tries).await, best.take()) {
            (Ok(taken), earlier) => {
                let verdict = judge(&taken, tries);
                let quieter = match earlier {
                    Some(earlier) if earlier.others_cores <= taken.others_cores => earlier,
                    _ => taken.clone(),
                };
                match verdict {
                    Verdict::Redo => {
                        best = Some(quieter);
                        continue;
                    }
                    Verdict::Keep => return Ok(Taken { tries, ..taken }),
                    Verdict::KeepNoisy => quieter,
                }
            }
            (Err(error), Some(earlier)) => {
                eprintln!("try {tries} failed, an earlier one is kept: {error:#}");
                earlier
            }
            (Err(error), None) => return Err(error),
        };
        return Ok(Taken {
            tries,
            noisy: true,
            ..taken
        });
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    /// What is kept of tries in which others used so many cores, where `None` is one that fails.
    fn kept(others: &[Option<f64>]) -> anyhow::Result<Taken> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let measure = async |number: u32| {
            let Some(others_cores) = others[number as usize - 1] else {
                bail!("try {number} broke")
            };
            Ok(Taken {
                others_cores,
                ops: u64::from(number),
                ..Taken::default()
            })
        };
        let judge = |taken: &Taken, tries| match (taken.others_cores > 0.15, tries) {
            (false, _) => Verdict::Keep,
            (true, 3..) => Verdict::KeepNoisy,
            (true, _) => Verdict::Redo,
        };
        runtime.block_on(quietest(measure, judge))
    }

    /// The try that was kept, of how many, and whether it is noisy.
    fn figures(taken: &Taken) -> (u64, u32, bool) {
        (taken.ops, taken.tries, taken.noisy)
    }

    #[test]
    fn a_quiet_try_is_kept_and_else_the_quietest() {
        assert_eq!(figures(&kept(&[Some(0.1)]).unwrap()), (1, 1, false));
        let second = kept(&[Some(0.4), Some(0.1)]).unwrap();
        assert_eq!(figures(&second), (2, 2, false));
        let noisy = kept(&[Some(0.4), Some(0.2), Some(0.3)]).unwrap();
        assert_eq!(figures(&noisy), (2, 3, true));
    }

    #[test]
    fn a_try_that_fails_leaves_those_before_it() {
        let first = kept(&[Some(0.4), None]).unwrap();
        assert_eq!(figures(&first), (1, 2, true));
        let second = kept(&[Some(0.4), Some(0.2), None]).unwrap();
        assert_eq!(figures(&second), (2, 3, true));
        assert_eq!(kept(&[None]).unwrap_err().to_string(), "try 1 broke");
    }
}
