//! Budgets in injected time: what is earned, what is held, and what the sum over shards comes to.

use super::*;

const S: u64 = 1_000_000_000;
const A: ClassSlot = ClassSlot(0);
const B: ClassSlot = ClassSlot(9);

fn taken(budgets: &mut RetryBudgets, utilisation: f64, now_ns: u64) -> usize {
    (0..10_000)
        .take_while(|_| budgets.take(A, utilisation, now_ns))
        .count()
}

#[test]
fn the_fraction_is_calm_then_falls_in_a_line_to_nothing() {
    for (utilisation, expected) in [
        (0.0, 0.2),
        (0.6, 0.2),
        (0.775, 0.105),
        (0.95, 0.01),
        (0.9500001, 0.0),
        (1.5, 0.0),
        (f64::INFINITY, 0.0),
        (f64::NAN, 0.0),
        (-1.0, 0.2),
    ] {
        let found = fraction(utilisation);
        assert!((found - expected).abs() < 1e-12, "{utilisation}: {found}");
    }
}

#[test]
fn f03_a_burst_of_failures_gets_its_fraction_and_the_floor() {
    let (mut budgets, board) = (RetryBudgets::default(), RetryBoard::default());
    for _ in 0..1_000 {
        budgets.earn(A, 0.0, 0);
    }
    // All fail at once: each asks when its retry is decided on.
    let retried = |_: &i32| budgets.take(A, 0.0, 0) || board.borrow_token(0.0);
    assert_eq!((0..1_000).filter(retried).count(), 203);
}

#[test]
fn f03_after_a_quiet_time_the_floor_is_there_and_nothing_has_piled_up() {
    let (mut budgets, board) = (RetryBudgets::default(), RetryBoard::default());
    let mut floor = RetryFloor::new(0);
    for _ in 0..1_000 {
        budgets.earn(A, 0.0, 0);
    }
    while board.borrow_token(0.0) {}
    // The sentinel looks on through ten idle minutes.
    for second in 1..=600 {
        if floor.is_due(board.floor(), second * S) {
            board.lend();
        }
    }
    let now_ns = 600 * S;
    for _ in 0..10 {
        budgets.earn(A, 0.0, now_ns);
    }
    let retried = |_: &i32| budgets.take(A, 0.0, now_ns) || board.borrow_token(0.0);
    assert_eq!((0..5).filter(retried).count(), 5);
    assert!(!budgets.take(A, 0.0, now_ns) && !board.borrow_token(0.0));
}

#[test]
fn f03_a_budget_of_nothing_retries_nothing() {
    let (mut budgets, board) = (RetryBudgets::default(), RetryBoard::default());
    for _ in 0..1_000 {
        budgets.earn(A, 0.96, 0);
    }
    assert!(!budgets.take(A, 0.96, 0));
    assert!(!board.borrow_token(0.96));
}

#[test]
fn one_request_alone_can_be_retried_on_any_shard() {
    let board = RetryBoard::default();
    for _ in 0..3 {
        let mut budgets = RetryBudgets::default();
        budgets.earn(A, 0.0, 0);
        assert!(!budgets.take(A, 0.0, 0));
        assert!(board.borrow_token(0.9));
    }
    assert!(!board.borrow_token(0.0));
}

#[test]
fn at_most_ten_seconds_of_fill_are_held() {
    let mut budgets = RetryBudgets::default();
    // 10 a second for a minute without a failure.
    for second in 0..60 {
        for _ in 0..10 {
            budgets.earn(A, 0.5, second * S);
        }
    }
    assert_eq!(taken(&mut budgets.clone(), 0.5, 59 * S), 20);
    // The oldest nine of the ten seconds are over.
    assert_eq!(taken(&mut budgets.clone(), 0.5, 68 * S), 2);
    assert_eq!(taken(&mut budgets, 0.5, 69 * S), 0);
}

#[test]
fn what_was_earned_in_calm_is_not_spent_in_a_rush() {
    let mut budgets = RetryBudgets::default();
    for _ in 0..1_000 {
        budgets.earn(A, 0.0, 0);
    }
    // 200 were earned; at 0.95 the same attempts are worth 10.
    assert_eq!(taken(&mut budgets.clone(), 0.95, 0), 10);
    assert_eq!(taken(&mut budgets, 0.96, 0), 0);
    // Nothing comes back when it is calm again, but what is earned from then on.
    for _ in 0..10 {
        budgets.earn(A, 0.0, 0);
    }
    assert_eq!(taken(&mut budgets, 0.0, 0), 2);
}

#[test]
fn a_class_spends_only_what_it_has_earned() {
    let mut budgets = RetryBudgets::default();
    for _ in 0..100 {
        budgets.earn(B, 0.0, 0);
    }
    assert_eq!(taken(&mut budgets, 0.0, 0), 0);
    assert_eq!((0..100).filter(|_| budgets.take(B, 0.0, 0)).count(), 20);
}

#[test]
fn shards_together_stay_below_the_fraction_and_the_floor() {
    let board = RetryBoard::default();
    let mut floor = RetryFloor::new(0);
    let mut shards: Vec<RetryBudgets> = (0..16).map(|_| RetryBudgets::default()).collect();
    let (mut requests, mut retries) = (0u32, 0u32);
    // 64 a second over 16 shards, at 0.95, every one of which fails, and each retry again.
    for second in 0..120 {
        if floor.is_due(board.floor(), second * S) {
            board.lend();
        }
        for shard in &mut shards {
            for _ in 0..4 {
                requests += 1;
                shard.earn(A, 0.95, second * S);
                while shard.take(A, 0.95, second * S) || board.borrow_token(0.95) {
                    retries += 1;
                }
            }
        }
    }
    assert_eq!(requests, 7_680);
    assert!(
        retries <= requests / 100,
        "{retries} retries of {requests} requests"
    );
}

#[test]
fn the_floor_gives_its_first_tokens_and_one_a_period() {
    let board = RetryBoard::default();
    let mut floor = RetryFloor::new(0);
    let mut borrowed = 0;
    // Asked for without pause, for an hour, with looks ten times a second.
    for tick in 0..36_000u64 {
        if floor.is_due(board.floor(), tick * S / 10) {
            board.lend();
        }
        borrowed += u32::from(board.borrow_token(0.0));
    }
    assert_eq!(borrowed, 3 + 119);
    // Untouched for an hour it holds three, and then not four at once.
    for tick in 36_000..72_000u64 {
        if floor.is_due(board.floor(), tick * S / 10) {
            board.lend();
        }
    }
    assert_eq!(board.floor(), 3);
    assert!(board.borrow_token(0.0));
    assert!(!floor.is_due(board.floor(), 72_000 * S / 10 + 29 * S));
    assert!(!board.borrow_token(0.91) && !board.borrow_token(f64::NAN));
}

#[test]
fn a_clock_that_steps_back_earns_and_forgets_nothing() {
    let mut budgets = RetryBudgets::default();
    for _ in 0..10 {
        budgets.earn(A, 0.0, 50 * S);
    }
    assert_eq!(taken(&mut budgets, 0.0, 0), 2);
}
