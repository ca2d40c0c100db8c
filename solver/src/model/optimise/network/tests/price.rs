//! Prices against differences of the smallest unit.

use super::*;

#[test]
fn prices_equal_finite_differences() {
    let seed = 61;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut checks = 0;
    for case in 0..240 {
        let kind = KINDS[case % KINDS.len()];
        let instance = random(&mut rng, kind);
        let solved = proven(&instance, None, "base");
        let found = prices(&instance, &solved);
        let mut differs = |what: String, expected: i64, change: &dyn Fn(&mut Instance)| {
            let mut other = instance.clone();
            change(&mut other);
            let other = proven(&other, Some(&solved.basis), &what).objective;
            let what = format!("seed {seed}, case {case}, {kind:?}: {what}");
            assert_eq!(other - solved.objective, i128::from(expected), "{what}");
            checks += 1;
        };
        for s in 0..instance.sources.len() {
            let more = found.demand_more[s];
            differs(format!("source {s} more"), more, &|i| {
                i.sources[s].demand += 1
            });
            if let Some(less) = found.demand_less[s] {
                differs(format!("source {s} less"), -less, &|i| {
                    i.sources[s].demand -= 1
                });
            }
        }
        for e in 0..instance.engines.len() {
            let last = instance.engines[e].len().wrapping_sub(1);
            if let Some(more) = found.capacity_more[e] {
                differs(format!("engine {e} more"), -more, &|i| {
                    i.engines[e][last].width += 1
                });
            }
            if let Some(less) = found.from_engine[e] {
                differs(format!("engine {e} one free"), -less, &|i| {
                    i.engines[e].insert(0, rung(1, 0));
                });
            }
            if let Some(less) = found.capacity_less[e] {
                differs(format!("engine {e} less"), less, &|i| {
                    i.engines[e][last].width -= 1
                });
            }
        }
    }
    println!("{checks} finite differences");
    assert!(checks > 2_000, "{checks}");
}

#[test]
fn detours_cost_what_forcing_a_unit_through_them_does() {
    let seed = 62;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut positive = 0;
    for case in 0..120 {
        let instance = random(&mut rng, KINDS[case % KINDS.len()]);
        let solved = proven(&instance, None, "base");
        let found = prices(&instance, &solved);
        for s in 0..instance.sources.len() {
            for &engine in instance.ways(s) {
                let Some(detour) = found.detour(&instance, &solved, s, engine) else {
                    continue;
                };
                assert!(
                    detour >= 0,
                    "case {case}, source {s}, engine {engine}: {detour}"
                );
                positive += u32::from(detour > 0);
                if solved
                    .flows()
                    .iter()
                    .any(|f| (f.source, f.engine) == (s as u32, engine))
                {
                    continue;
                }
                // One unit less to route, and one that must be carried by the engine.
                let mut forced = instance.clone();
                let way = instance.place(s, engine).expect("a way");
                let cost = way_rungs(&forced.sources[s], way).find(|r| r.width > 0);
                let cost = cost.expect("a way has no bound").cost;
                forced.groups.push(vec![engine]);
                forced.sources.push(Source {
                    group: forced.groups.len() as u32 - 1,
                    demand: 1,
                    costs: vec![cost],
                    shed: vec![rung(0, 100_000 * ONE)],
                    ..Source::default()
                });
                let forced = proven(&forced, None, "forced").objective - solved.objective;
                let own = i128::from(found.demand_more[s]);
                assert_eq!(forced - own, i128::from(detour), "seed {seed}, case {case}");
            }
        }
    }
    assert!(positive > 100, "{positive}");
}
