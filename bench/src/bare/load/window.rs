//! When a run's windows begin and end.

use std::io::BufRead;

use super::Args;

/// Who says when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// One window, after a while.
    Timed {
        /// From when all are under way.
        warmup_ns: u64,
        /// How long.
        window_ns: u64,
    },
    /// One window, until all requests are answered.
    Requests,
    /// The standard input.
    Control,
}

/// What is to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// A window begins.
    Begin,
    /// The window ends.
    End,
    /// The run ends.
    Quit,
}

impl Plan {
    /// The plan that the arguments ask for.
    pub(super) fn of(args: &Args) -> Self {
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        match (args.control, args.requests) {
            (true, _) => Self::Control,
            (_, Some(_)) => Self::Requests,
            _ => Self::Timed {
                warmup_ns: ns(args.warmup),
                window_ns: ns(args.window),
            },
        }
    }

    /// What a timed plan wants next: `open_ns` is when all were under way, `began_ns` when the
    /// window began, and the order stands for the instant beside it.
    pub(super) fn next(self, open_ns: Option<u64>, began_ns: Option<u64>) -> Option<(u64, Order)> {
        let Self::Timed {
            warmup_ns,
            window_ns,
        } = self
        else {
            return None;
        };
        match (open_ns, began_ns) {
            (None, _) => None,
            (Some(open_ns), None) => Some((open_ns + warmup_ns, Order::Begin)),
            (_, Some(began_ns)) => Some((began_ns + window_ns, Order::End)),
        }
    }
}

/// The orders that came on the standard input, which must be ready; its end is one to quit.
pub(super) fn read_orders() -> Vec<Result<Order, String>> {
    let mut input = std::io::stdin().lock();
    // One read of what is there: a line is written at once by whoever controls this.
    let text = match input.fill_buf() {
        Ok(bytes) if !bytes.is_empty() => String::from_utf8_lossy(bytes).into_owned(),
        _ => return vec![Ok(Order::Quit)],
    };
    input.consume(text.len());
    text.lines().map(order).collect()
}

fn order(line: &str) -> Result<Order, String> {
    match line.trim() {
        "begin" => Ok(Order::Begin),
        "end" => Ok(Order::End),
        "quit" => Ok(Order::Quit),
        other => Err(format!("{other:?} is none of begin, end, quit")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timed_plan_warms_up_once_all_are_under_way() {
        let plan = Plan::Timed {
            warmup_ns: 10,
            window_ns: 30,
        };
        assert_eq!(plan.next(None, None), None);
        assert_eq!(plan.next(Some(5), None), Some((15, Order::Begin)));
        assert_eq!(plan.next(Some(5), Some(16)), Some((46, Order::End)));
        assert_eq!(Plan::Control.next(Some(5), None), None);
    }

    #[test]
    fn orders_are_words() {
        assert_eq!(order(" begin"), Ok(Order::Begin));
        assert!(order("stop").unwrap_err().contains("stop"));
    }
}
