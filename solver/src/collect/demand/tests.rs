//! Demand averages on scripted differences, to the exact value.

use super::*;
use crate::run::fixtures::{CLASS, PAIR, TOPOLOGY, policy, topology};

const A: FrontendId = FrontendId(0);
const B: FrontendId = FrontendId(1);

fn delta(length_s: f64, high: u64, low: u64) -> Delta {
    let mut by_priority = [0; MAX_PRIORITIES];
    by_priority[0] = high;
    by_priority[1] = low;
    Delta {
        length_s,
        measured: true,
        live_pages: 1,
        live_hosts: 1,
        offered: BTreeMap::from([(CLASS, by_priority)]),
        ..Delta::default()
    }
}

struct Fixture {
    topology: Topology,
    registry: Registry,
    demand: Demand,
}

impl Fixture {
    fn new(text: &str, standing: &[f64]) -> Self {
        let topology = topology(text);
        let numbered = policy(&topology, 0.0);
        let registry = Registry::restore(&[numbered], 1, 1);
        assert_eq!(registry.class(&topology.classes[0].name), Some(CLASS));
        let standing: Vec<Policy> = standing.iter().map(|rps| policy(&topology, *rps)).collect();
        let demand = Demand::new(&topology, &standing);
        Self {
            topology,
            registry,
            demand,
        }
    }

    fn absorb(&mut self, frontend: FrontendId, delta: &Delta) {
        self.demand
            .absorb(&self.topology, &self.registry, frontend, delta);
    }

    fn rates(&self, frontend: FrontendId) -> Vec<f64> {
        let samples = self.demand.samples(&self.topology);
        let sample = samples
            .into_iter()
            .find(|sample| sample.frontend == frontend)
            .unwrap();
        sample
            .by_priority_rps
            .into_iter()
            .map(NonNegative::value)
            .collect()
    }
}

#[test]
fn configured_demand_is_the_start_and_measurements_take_over() {
    let mut world = Fixture::new(TOPOLOGY, &[]);
    assert_eq!(world.rates(A), [0.0, 90.0]);
    assert_eq!(world.rates(B), [0.0, 0.0]);
    world.absorb(A, &delta(20.0, 600, 1_000));
    // High begins at its first sample; low moves by 1 - 1/e from 90 towards 50.
    let expected = 90.0 + (1.0 - (-1.0f64).exp()) * (50.0 - 90.0);
    assert_eq!(world.rates(A), [30.0, expected]);
    assert_eq!(world.rates(B), [0.0, 0.0]);
}

#[test]
fn demand_of_the_standing_policy_wins_over_the_configured_start() {
    let world = Fixture::new(TOPOLOGY, &[137.5]);
    // All of it at the route's default priority, the lowest.
    assert_eq!(world.rates(A), [0.0, 137.5]);
}

#[test]
fn no_page_is_no_measurement_and_an_idle_page_is_zero() {
    let mut world = Fixture::new(TOPOLOGY, &[]);
    world.absorb(
        A,
        &Delta {
            length_s: 20.0,
            ..Delta::default()
        },
    );
    assert_eq!(world.rates(A), [0.0, 90.0]);
    let idle = Delta {
        length_s: 20.0,
        measured: true,
        live_pages: 1,
        ..Delta::default()
    };
    world.absorb(A, &idle);
    assert_eq!(
        world.rates(A),
        [0.0, 90.0 + (1.0 - (-1.0f64).exp()) * -90.0]
    );
}

#[test]
fn configured_demand_ignores_pages() {
    let text = TOPOLOGY.replace("demand = \"signals\"", "demand = \"configured\"");
    let mut world = Fixture::new(&text, &[55.0]);
    world.absorb(A, &delta(20.0, 600, 1_000));
    assert_eq!(world.rates(A), [0.0, 90.0]);
    assert!(world.demand.reading(A, ClassId(0)).settled);
}

#[test]
fn another_life_of_a_slot_is_not_this_class() {
    let mut world = Fixture::new(TOPOLOGY, &[]);
    let mut other = delta(20.0, 600, 1_000);
    other.offered = BTreeMap::from([((CLASS.0, Generation(9)), [7; MAX_PRIORITIES])]);
    world.absorb(A, &other);
    assert_eq!(world.rates(A)[0], 0.0);
}

#[test]
fn a_priority_beyond_the_topologys_counts_as_the_last() {
    let mut world = Fixture::new(TOPOLOGY, &[]);
    let mut odd = delta(2.0, 0, 0);
    odd.offered = BTreeMap::from([(CLASS, {
        let mut by_priority = [0; MAX_PRIORITIES];
        by_priority[9] = 20;
        by_priority
    })]);
    world.absorb(B, &odd);
    assert_eq!(world.rates(B), [0.0, 10.0]);
}

#[test]
fn the_token_mix_is_a_mean_over_answers() {
    let mut world = Fixture::new(TOPOLOGY, &[]);
    let mix = |world: &Fixture| {
        let sample = world.demand.samples(&world.topology).remove(0);
        [
            sample.prompt_tokens,
            sample.output_tokens,
            sample.cached_tokens,
        ]
        .map(|tokens| tokens.map(NonNegative::value))
    };
    assert_eq!(mix(&world), [None, None, None]);
    let mut counted = delta(2.0, 4, 0);
    counted.tokens = BTreeMap::from([(
        PAIR,
        Tokens {
            answers: 4,
            estimated: 1,
            prompt: 1_500,
            cached: 600,
            output: 400,
        },
    )]);
    world.absorb(A, &counted);
    // An estimated answer tells its output only.
    assert_eq!(mix(&world), [Some(500.0), Some(100.0), Some(200.0)]);
}

#[test]
fn an_average_settles_when_a_time_constant_passes_without_change() {
    let mut world = Fixture::new(TOPOLOGY, &[]);
    let class = ClassId(0);
    assert_eq!(world.demand.reading(B, class).change, None);
    for _ in 0..11 {
        world.absorb(B, &delta(2.0, 240, 0));
    }
    let steady = world.demand.reading(B, class);
    assert_eq!((steady.change, steady.settled), (Some(0.0), true));
    world.absorb(B, &delta(2.0, 280, 0));
    assert_eq!(world.demand.reading(B, class).last_sample_rps, Some(140.0));
    let mut unsettled_looks = 0;
    for _ in 0..40 {
        world.absorb(B, &delta(2.0, 280, 0));
        unsettled_looks += u32::from(!world.demand.reading(B, class).settled);
    }
    assert!(unsettled_looks > 5, "{unsettled_looks}");
    let reading = world.demand.reading(B, class);
    assert!(reading.settled, "{reading:?}");
    assert!(
        (world.rates(B)[0] - 140.0).abs() < 1.0,
        "{:?}",
        world.rates(B)
    );
}

#[test]
fn averages_go_on_under_another_topology_by_name() {
    let mut world = Fixture::new(TOPOLOGY, &[]);
    world.absorb(A, &delta(20.0, 600, 1_000));
    let before = world.rates(A);
    // B comes first, and A second.
    let swapped = TOPOLOGY
        .replace("name = \"A\"\n[[f", "name = \"B\"\n[[f")
        .replace("name = \"B\"\n\n", "name = \"A\"\n\n");
    let new = topology(&swapped);
    assert_eq!(new.frontends[0].name, "B");
    world.demand = world.demand.carry(&world.topology, &new, &[]);
    world.topology = new;
    assert_eq!(world.rates(FrontendId(1)), before);
    assert_eq!(world.rates(FrontendId(0)), [0.0, 0.0]);
}
