//! Starts the daemon's tasks, each supervised: collectors first, passes once they have looked.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::collectors;
use super::engine_state;
use super::losses;
use super::passes;
use super::set_up::Parts;
use super::shared::Shared;
use super::supervise::{self, Patience, Supervised};
use crate::api;
use crate::operate::reload::Reloader;
use crate::operate::socket;

/// Ready is said after this long without a first pass: `/readyz` tells the difference.
const FIRST_PASS: Duration = Duration::from_secs(5);

/// Starts everything; returns after the first pass, or when it takes too long.
pub(super) async fn start(parts: Parts, reloader: Arc<Reloader>) -> Vec<Supervised> {
    let Parts {
        current,
        core,
        engines,
        listener,
        control,
        credentials,
        ..
    } = parts;
    let shared = current.shared();
    reloader.collect(&shared);
    let mut tasks = Vec::new();
    let served = current.clone();
    tasks.push(supervised(&shared, "api", move || {
        api::serve(served.clone(), listener.try_clone())
    }));
    collectors::first_look(&shared, &credentials).await;
    let (passed, mut passes) = watch::channel(0);
    let passing = current.clone();
    tasks.push(supervised(&shared, "passes", move || {
        passes::follow(passing.clone(), core.clone(), passed.clone())
    }));
    let (losing, after) = (current.clone(), passes.clone());
    tasks.push(supervised(&shared, "losses", move || {
        losses::follow(losing.clone(), after.clone())
    }));
    let telling = current.clone();
    tasks.push(supervised(&shared, "engine_state", move || {
        engine_state::publish(telling.clone(), engines.clone())
    }));
    let reloading = reloader.clone();
    tasks.push(supervised(&shared, "reload", move || {
        reloading.clone().follow()
    }));
    tasks.push(supervised(&shared, "control", move || {
        socket::serve(reloader.clone(), control.try_clone())
    }));
    // Its outcome makes no difference: ready is said either way.
    let _ = timeout(FIRST_PASS, passes.changed()).await;
    tasks
}

fn supervised<Make, Task>(shared: &Shared, name: &str, make: Make) -> Supervised
where
    Make: Fn() -> Task + Send + 'static,
    Task: Future<Output = ()> + Send + 'static,
{
    supervise::supervise(
        shared.tasks.clone(),
        name.to_owned(),
        Patience::default(),
        make,
    )
}
