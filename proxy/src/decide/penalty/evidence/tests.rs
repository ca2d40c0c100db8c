//! What speaks against an engine and what does not, to the look.

use super::*;

const USUAL: Usual = Usual {
    levels: [Some(0.0); Signal::COUNT],
    fault_share: Some(0.0),
};

const BOUNDS: Bounds = Bounds {
    bar: 1.0,
    lasts_s: HICCUP_S,
};

fn times(signal: Signal, count: f64, factor: f64) -> Seen {
    let mut seen = Seen::default();
    let sum = count * factor.ln();
    seen.samples[signal as usize] = Samples { count, sum };
    seen
}

/// Looks of 100 ms at the same, until something is past its bound; at most 50.
fn looks_until_against(seen: &Seen, usual: &Usual) -> Option<(usize, Cause)> {
    let mut evidence = Evidence::default();
    (1..=50).find_map(|look| {
        evidence.absorb(seen, 0.0, 0.1);
        let finding = evidence.weigh(seen, usual, &BOUNDS, 0.1);
        finding.against.map(|cause| (look, cause))
    })
}

#[test]
fn answers_five_times_too_slow_tell_soon_and_twice_too_slow_never() {
    for (signal, looks) in Signal::ALL.into_iter().zip([8, 40, 20]) {
        let slow = looks_until_against(&times(signal, 3.0, 5.0), &USUAL);
        assert_eq!(slow, Some((looks, Cause::Slow(signal))));
        assert_eq!(
            looks_until_against(&times(signal, 3.0, 2.0), &USUAL),
            None,
            "{signal:?}"
        );
    }
}

#[test]
fn a_hiccup_is_no_evidence_however_many_wait_for_its_end() {
    let late = Seen {
        late: 20,
        ..Seen::default()
    };
    // Answers in every fifth look: what is not cast meanwhile is saved.
    let well = times(Signal::FirstToken, 2.0, 1.0);
    let against = |looks: usize, bounds: Bounds| {
        let mut evidence = Evidence::default();
        let nothing = Seen::default();
        let calm = [&well, &nothing, &nothing, &nothing, &nothing].repeat(10);
        let hiccup = std::iter::repeat_n(&late, looks);
        let mut told = 0;
        for seen in calm
            .iter()
            .copied()
            .chain(hiccup)
            .chain(calm.iter().copied())
        {
            evidence.absorb(seen, 0.0, 0.1);
            let finding = evidence.weigh(seen, &USUAL, &bounds, 0.1);
            told += usize::from(finding.against.is_some() && finding.fresh);
        }
        told
    };
    let looks = [1, 3, 5, 7, 8, 10];
    assert_eq!(
        looks.map(|looks| against(looks, BOUNDS)),
        [0, 0, 0, 0, 1, 3]
    );
    // A wait that is late after four seconds is none.
    let bounds = Bounds::new(1.0, 2.0);
    assert_eq!(bounds.lasts_s, 0.0);
    assert_eq!(
        looks.map(|looks| against(looks, bounds)),
        [0, 0, 2, 4, 5, 7]
    );
    assert_eq!(Bounds::new(1.0, 0.125).lasts_s, 0.5);
}

#[test]
fn times_that_are_well_on_the_mean_are_no_evidence_whatever_some_looks_say() {
    // Seven looks with one answer five times too slow, then one with thirty that are quick.
    let slow = times(Signal::FirstToken, 1.0, 5.0);
    let quick = times(Signal::FirstToken, 30.0, 0.9);
    let mut evidence = Evidence::default();
    let mut most: f64 = 0.0;
    for look in 0..400 {
        let seen = if look < 30 || look % 8 == 7 {
            &quick
        } else {
            &slow
        };
        evidence.absorb(seen, 0.0, 0.1);
        let finding = evidence.weigh(seen, &USUAL, &BOUNDS, 0.1);
        assert_eq!(finding.against, None, "look {look}: {evidence:?}");
        most = most.max(evidence.scores[0]);
    }
    assert!(most >= SLOW_BOUNDS[0], "{most}: looks alone tell otherwise");
}

#[test]
fn late_waits_count_as_slow_answers() {
    let late = Seen {
        late: 1,
        ..Seen::default()
    };
    let cause = Cause::Slow(Signal::FirstToken);
    assert_eq!(looks_until_against(&late, &USUAL), Some((8, cause)));
    let nobody = Usual {
        levels: [None; Signal::COUNT],
        ..USUAL
    };
    assert_eq!(looks_until_against(&late, &nobody), None);
}

#[test]
fn what_is_usual_among_peers_is_no_evidence() {
    let usual = Usual {
        levels: [Some(5f64.ln()); Signal::COUNT],
        fault_share: Some(0.3),
    };
    let slow = times(Signal::FirstToken, 3.0, 5.0);
    assert_eq!(looks_until_against(&slow, &usual), None);
    let failing = Seen {
        faults: 3,
        successes: 7,
        ..Seen::default()
    };
    assert_eq!(looks_until_against(&failing, &usual), None);
    let alone = looks_until_against(&failing, &USUAL);
    assert_eq!(alone, Some((3, Cause::Failures)));
}

#[test]
fn where_everybody_fails_nobody_is_at_fault() {
    let usual = Usual {
        fault_share: Some(0.5),
        ..USUAL
    };
    let dead = Seen {
        faults: 10,
        ..Seen::default()
    };
    assert_eq!(looks_until_against(&dead, &usual), None);
    assert_eq!(
        looks_until_against(&dead, &USUAL),
        Some((1, Cause::Failures))
    );
}

#[test]
fn a_row_of_failures_counts_by_how_unlikely_it_is() {
    let row = |share: f64, faults| {
        let usual = Usual {
            fault_share: Some(share),
            ..USUAL
        };
        let seen = Seen {
            faults,
            ..Seen::default()
        };
        let mut evidence = Evidence::default();
        evidence.weigh(&seen, &usual, &BOUNDS, 0.1).faults_in_a_row
    };
    assert_eq!([row(0.0, 5), row(0.02, 5), row(0.1, 5)], [5, 5, 2]);
    assert_eq!([row(0.3, 5), row(0.3, 16), row(0.3, 17)], [1, 4, 5]);
    assert_eq!(row(0.5, 1_000), 0);
}

#[test]
fn twice_and_a_half_as_slow_is_no_grave_matter_and_five_times_is() {
    let finding = |seen: &Seen| {
        let mut evidence = Evidence::default();
        let mut finding = Finding::default();
        for _ in 0..100 {
            evidence.absorb(seen, 0.0, 0.1);
            finding = evidence.weigh(seen, &USUAL, &BOUNDS, 0.1);
        }
        (finding.against, finding.is_grave)
    };
    let slow = Some(Cause::Slow(Signal::FirstToken));
    assert_eq!(finding(&times(Signal::FirstToken, 3.0, 2.5)), (slow, false));
    assert_eq!(finding(&times(Signal::FirstToken, 3.0, 5.0)), (slow, true));
    let failing = |faults| Seen {
        faults,
        successes: 10 - faults,
        ..Seen::default()
    };
    let failures = Some(Cause::Failures);
    assert_eq!(finding(&failing(2)), (failures, false));
    assert_eq!(finding(&failing(3)), (failures, true));
}

#[test]
fn a_success_ends_a_row_of_failures_and_forgetting_does() {
    let mut evidence = Evidence::default();
    let mut row = |faults, successes| {
        let seen = Seen {
            faults,
            successes,
            ..Seen::default()
        };
        evidence.weigh(&seen, &USUAL, &BOUNDS, 0.1).faults_in_a_row
    };
    assert_eq!([row(1, 0), row(0, 0), row(2, 0)], [1, 1, 3]);
    assert_eq!([row(2, 1), row(1, 0)], [0, 1]);
    evidence.forget();
    let finding = evidence.weigh(&Seen::default(), &USUAL, &BOUNDS, 0.1);
    assert_eq!((finding.faults_in_a_row, finding.calm), (0, true));
}

#[test]
fn a_level_is_the_worse_of_now_and_the_last_minute() {
    let mut evidence = Evidence::default();
    let signal = Signal::FirstToken;
    assert_eq!(evidence.level(signal), None);
    for _ in 0..600 {
        evidence.absorb(&times(signal, 1.0, 1.0), 0.0, 0.1);
    }
    assert_eq!(evidence.level(signal), Some(0.0));
    for _ in 0..20 {
        evidence.absorb(&times(signal, 1.0, 5.0), 0.0, 0.1);
    }
    let now = evidence.level(signal).unwrap();
    assert!((0.5..1.2).contains(&now), "{now}");
    assert!(evidence.steady[0].value().unwrap() < 0.15);
}
