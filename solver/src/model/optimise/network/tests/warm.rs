//! From an earlier answer to the same optimum as from nothing.

use super::*;

/// What changes between two solves.
fn drift(rng: &mut StdRng, instance: &Instance, solved: &Solved) -> Instance {
    let mut next = instance.clone();
    match rng.random_range(0..6) {
        0 | 1 => {
            for source in &mut next.sources {
                source.demand = source.demand * rng.random_range(95..106) / 100;
            }
        }
        2 => {
            let lost = rng.random_range(0..next.engines.len());
            next.engines[lost].iter_mut().for_each(|r| r.width = 0);
        }
        3 => {
            let e = next.engines.len() as u32;
            let like = next.engines[0].clone();
            next.engines.push(if like.is_empty() {
                vec![rung(9 * ONE, ONE)]
            } else {
                like
            });
            next.groups.iter_mut().for_each(|g| g.push(e));
            for source in &mut next.sources {
                source.costs.push(rng.random_range(0..60 * ONE));
            }
        }
        4 => keep(&mut next, solved, rng.random_range(0..3) * ONE),
        _ => {
            let e = rng.random_range(0..next.engines.len());
            next.engines[e]
                .iter_mut()
                .for_each(|r| r.width = r.width / 2 + 3);
        }
    }
    next
}

/// Puts a price on leaving what an answer does.
pub(super) fn keep(instance: &mut Instance, solved: &Solved, movement: i64) {
    let demands: Vec<i64> = solved.basis.demand.clone();
    for (s, source) in instance.sources.iter_mut().enumerate() {
        source.parts.clear();
        for flow in solved.flows().iter().filter(|f| f.source as usize == s) {
            let group = &instance.groups[source.group as usize];
            let Ok(place) = group.binary_search(&flow.engine) else {
                continue;
            };
            let share = i128::from(flow.amount) * i128::from(source.demand);
            let width = (share / i128::from(demands[s].max(1))) as i64;
            let cost = source.costs[place] - movement;
            source.parts.push(Part {
                place: place as u32,
                width,
                cost,
            });
        }
    }
}

#[test]
fn a_thousand_drifts_end_where_a_cold_start_does() {
    let seed = 51;
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut warm_pivots, mut cold_pivots) = (0, 0);
    for case in 0..100 {
        let kind = KINDS[case % KINDS.len()];
        let mut instance = random(&mut rng, kind);
        let mut last = proven(&instance, None, "cold");
        for step in 0..10 {
            let next = drift(&mut rng, &instance, &last);
            let what = format!("seed {seed}, case {case}, step {step}, {kind:?}");
            let warm = proven(&next, Some(&last.basis), &what);
            let cold = proven(&next, None, &what);
            assert_eq!(warm.objective, cold.objective, "{what}");
            warm_pivots += warm.pivots;
            cold_pivots += cold.pivots;
            (instance, last) = (next, warm);
        }
    }
    println!("pivots: {warm_pivots} warm, {cold_pivots} cold");
    assert!(
        warm_pivots < cold_pivots,
        "{warm_pivots} warm, {cold_pivots} cold"
    );
}

#[test]
fn a_fleet_drifts_with_movement_priced() {
    let seed = 55;
    let mut rng = StdRng::seed_from_u64(seed);
    for case in 0..12 {
        let kind = KINDS[case % KINDS.len()];
        let mut instance = random_sized(&mut rng, kind, 80, 30);
        let mut last = proven(&instance, None, "cold");
        for step in 0..5 {
            for source in &mut instance.sources {
                source.demand = source.demand * rng.random_range(90..111) / 100;
            }
            keep(&mut instance, &last, ONE / 2);
            let what = format!("seed {seed}, case {case}, step {step}, {kind:?}");
            let warm = proven(&instance, Some(&last.basis), &what);
            let cold = proven(&instance, None, &what);
            assert_eq!(warm.objective, cold.objective, "{what}");
            let mut simplex = start::warm(&instance, &last.basis);
            sound(&simplex, &what);
            simplex.run(u64::MAX);
            sound(&simplex, &what);
            last = warm;
        }
    }
}

#[test]
fn an_optimum_started_from_itself_stays() {
    let mut rng = StdRng::seed_from_u64(52);
    for case in 0..120 {
        let mut instance = random(&mut rng, Kind::Smooth);
        instance.sources.iter_mut().for_each(|s| s.parts.clear());
        let first = proven(&instance, None, "first");
        let again = proven(&instance, Some(&first.basis), "again");
        assert_eq!(again.objective, first.objective);
        assert_eq!(
            again.pivots, again.idle_pivots,
            "case {case}: nothing moves"
        );
        // With a price on movement, what stands is all the more the best.
        keep(&mut instance, &first, ONE);
        let kept = proven(&instance, Some(&first.basis), "kept");
        assert_eq!(kept.flows(), first.flows(), "case {case}");
    }
}

#[test]
fn a_basis_of_other_numbers_is_renumbered() {
    let mut rng = StdRng::seed_from_u64(53);
    for _ in 0..60 {
        let instance = random(&mut rng, Kind::Smooth);
        let first = proven(&instance, None, "first");
        // The first engine and the first source are gone, the others move down by one.
        let down = |n: u32| n.checked_sub(1);
        let mut next = instance.clone();
        next.sources.remove(0);
        next.engines.remove(0);
        for source in &mut next.sources {
            let group = &instance.groups[source.group as usize];
            if group.first() == Some(&0) {
                source.costs.remove(0);
                source.parts.retain(|p| p.place > 0);
                source.parts.iter_mut().for_each(|p| p.place -= 1);
            }
        }
        for group in &mut next.groups {
            *group = group.iter().filter_map(|e| down(*e)).collect();
        }
        let basis = first.basis.renumbered(down, down, next.sources.len());
        assert_eq!(basis.demand, first.basis.demand[1..]);
        let warm = proven(&next, Some(&basis), "renumbered");
        assert_eq!(warm.objective, proven(&next, None, "cold").objective);
    }
}

#[test]
fn a_basis_of_nonsense_does_no_harm() {
    let mut rng = StdRng::seed_from_u64(54);
    for case in 0..200 {
        let instance = random(&mut rng, KINDS[case % KINDS.len()]);
        let mut any = || rng.random_range(0..9_u32);
        let mut flows: Vec<Flow> = (0..30)
            .map(|_| Flow {
                source: any(),
                engine: any(),
                amount: i64::from(any()) * 7 * ONE,
            })
            .collect();
        flows.sort_unstable();
        flows.dedup_by_key(|f| (f.source, f.engine));
        let demand = (0..9).map(|_| i64::from(any()) * 5 * ONE).collect();
        let warm = proven(&instance, Some(&Basis { flows, demand }), "nonsense");
        assert_eq!(
            warm.objective,
            proven(&instance, None, "cold").objective,
            "case {case}"
        );
    }
}
