//! Passes with another solve in place of the product's: panics, late answers, failures.

use super::*;
use std::sync::atomic::AtomicU32;

use pointsman_shm::policy::Policy;
use pointsman_shm::region::{Kind, Read, Reader};
use tempfile::TempDir;

use crate::metrics::Metrics;
use crate::model::topology::FrontendId;
use crate::publish;
use crate::run::fixtures;
use crate::tick::{Candidate, Reason};

const LONG: Duration = Duration::from_secs(20);

struct World {
    dir: TempDir,
    shared: Arc<Shared>,
    current: Arc<Current>,
    core: Arc<Mutex<Core>>,
}

impl World {
    fn new(solve: Solve) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let topology = fixtures::topology(fixtures::TOPOLOGY);
        let metrics = Arc::new(Metrics::default());
        let publishers = topology.frontends.iter().map(|frontend| {
            let (run, state) = (dir.path().join("run"), dir.path().join("state"));
            publish::open(&run, &state, &frontend.name, &metrics)
                .unwrap()
                .0
        });
        let core = Core {
            publishers: publishers.collect(),
            pages: vec![],
            demand: Demand::new(&topology, &[]),
            keys: crate::collect::keys::Keys::default(),
            pool: crate::penalty::Pool::default(),
            state: TickState::new(&topology, 2),
            solve,
            history: Keeper::off(),
        };
        let shared = Arc::new(Shared::new(topology, 2, &[None, None], metrics));
        Self {
            dir,
            current: Arc::new(Current::new(shared.clone())),
            shared,
            core: Arc::new(Mutex::new(core)),
        }
    }

    async fn pass(&self) {
        pass(&self.current, &self.core, LONG).await;
    }

    fn failures(&self, cause: &str) -> f64 {
        self.shared
            .metrics
            .value(&metrics::SOLVE_FAILURES, &[cause])
            .unwrap_or(0.0)
    }

    /// The version that stands in frontend A's region.
    fn published(&self) -> Option<u64> {
        let mut reader = Reader::open(&self.dir.path().join("run/A"), Kind::Policy).unwrap();
        let mut payload = Vec::new();
        match reader.read(&mut payload).unwrap() {
            Read::Fresh(stamp) => {
                assert_eq!(Policy::decode(&payload).unwrap().version, stamp.version);
                Some(stamp.version)
            }
            Read::Empty => None,
            Read::Busy => panic!("nobody writes"),
        }
    }
}

fn outcome(status: Status) -> TickOutcome {
    TickOutcome {
        status,
        plan: None,
        advice: None,
        candidates: vec![],
        notes: vec![],
        held: vec![],
        corrected: vec![],
        hot: vec![],
        ground: None,
    }
}

/// A pass that publishes the version after the standing one.
fn well(topology: &Topology, state: &mut TickState, _: &Inputs) -> TickOutcome {
    let mut policy = fixtures::policy(topology, 90.0);
    policy.version = state
        .standing(FrontendId(0))
        .map_or(1, |standing| standing.version + 1);
    let publish = Some(Reason::First);
    let candidate = Candidate {
        frontend: FrontendId(0),
        policy,
        publish,
    };
    TickOutcome {
        candidates: vec![candidate],
        ..outcome(Status::Optimal)
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = async {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, waited)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e17_not_ready_before_the_first_plan_and_ready_after_without_a_restart() {
    static FAILS: AtomicU32 = AtomicU32::new(2);
    let world = World::new(|topology, state, inputs| {
        let left = FAILS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        });
        match left {
            Ok(_) => outcome(Status::Refused {
                reason: "no engine".into(),
            }),
            Err(_) => well(topology, state, inputs),
        }
    });
    assert_eq!(world.shared.unready().as_deref(), Some("no pass yet"));
    for _ in 0..2 {
        world.pass().await;
        let why = world.shared.unready().unwrap();
        assert!(why.contains("no engine"), "{why}");
        assert_eq!(world.published(), None);
    }
    assert_eq!(world.failures("refused"), 2.0);
    world.pass().await;
    assert_eq!(world.shared.unready(), None);
    assert_eq!(world.published(), Some(1));
    let record = world.shared.record();
    assert_eq!((record.ticks, record.failures), (1, 2));
    assert_eq!(record.frontends[0].reason, Some("first"));
    let published = world
        .shared
        .metrics
        .value(&metrics::PUBLICATIONS, &["A", "first"]);
    assert_eq!(published, Some(1.0));
    let weight = world
        .shared
        .metrics
        .value(&metrics::WEIGHT, &["A", "chat", "E"]);
    assert_eq!(weight, Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn j09_a_panic_in_the_solver_is_counted_and_the_last_policy_stands() {
    static PASSES: AtomicU32 = AtomicU32::new(0);
    let world = World::new(|topology, state, inputs| {
        if PASSES.fetch_add(1, Ordering::SeqCst) == 1 {
            panic!("injected");
        }
        well(topology, state, inputs)
    });
    world.pass().await;
    assert_eq!(world.published(), Some(1));
    world.pass().await;
    assert_eq!(world.published(), Some(1));
    assert_eq!(world.failures("panicked"), 1.0);
    let record = world.shared.record();
    assert_eq!(record.last_status.as_deref(), Some("panicked: injected"));
    world.pass().await;
    assert_eq!(world.published(), Some(2));
    assert_eq!(
        world.shared.record().last_status.as_deref(),
        Some("optimal")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_solve_is_counted_once_thrown_away_and_never_overlapped() {
    static OPEN: AtomicBool = AtomicBool::new(false);
    static RUNNING: AtomicU32 = AtomicU32::new(0);
    let world = World::new(|topology, state, inputs| {
        assert_eq!(
            RUNNING.fetch_add(1, Ordering::SeqCst),
            0,
            "one solve at a time"
        );
        while !OPEN.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        RUNNING.fetch_sub(1, Ordering::SeqCst);
        well(topology, state, inputs)
    });
    let (current, core) = (world.current.clone(), world.core.clone());
    let late = tokio::spawn(async move { pass(&current, &core, Duration::from_millis(20)).await });
    until("the deadline", || world.failures("deadline") == 1.0).await;
    assert!(!late.is_finished(), "the next pass waits for this one");
    OPEN.store(true, Ordering::SeqCst);
    late.await.unwrap();
    assert_eq!(world.published(), None);
    assert_eq!(
        (world.failures("deadline"), world.shared.record().ticks),
        (1.0, 0)
    );
    world.pass().await;
    assert_eq!(
        (world.published(), world.shared.record().ticks),
        (Some(1), 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_breaks_the_contract_is_not_published() {
    let world = World::new(|topology, state, inputs| {
        let mut outcome = well(topology, state, inputs);
        outcome.candidates[0].policy.classes[0].eligible[0].weight = f64::NAN;
        outcome
    });
    world.pass().await;
    assert_eq!(world.published(), None);
    let failed = world
        .shared
        .metrics
        .value(&metrics::PUBLICATION_FAILURES, &["A", "policy"]);
    assert_eq!(failed, Some(1.0));
    assert!(
        world
            .core
            .lock()
            .unwrap()
            .state
            .standing(FrontendId(0))
            .is_none()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn j09_the_loop_goes_on_after_a_panic_outside_the_solve() {
    // A candidate for a frontend that does not exist has no publisher: a panic after the solve.
    static FIRST: AtomicBool = AtomicBool::new(true);
    let world = World::new(|topology, state, inputs| {
        let mut outcome = well(topology, state, inputs);
        if FIRST.swap(false, Ordering::SeqCst) {
            outcome.candidates[0].frontend = FrontendId(7);
        }
        outcome
    });
    let tasks = world.shared.tasks.clone();
    let (passed, _) = watch::channel(0);
    let (current, core) = (world.current.clone(), world.core.clone());
    let patience = supervise::Patience::default();
    let task = supervise::supervise(tasks, "passes".into(), patience, move || {
        follow(current.clone(), core.clone(), passed.clone())
    });
    until("a publication", || world.published() == Some(1)).await;
    assert_eq!(
        world
            .shared
            .metrics
            .value(&metrics::TASK_PANICS, &["passes"]),
        Some(1.0)
    );
    drop(task);
}
