//! What one shard is given at its start: everything it may touch for its whole life.

use std::sync::Arc;

use crate::config::Config;
use crate::decide::allowance::Allowances;
use crate::decide::expect::Outlooks;
use crate::decide::guard::GuardTable;
use crate::decide::rates::Rates;
use crate::decide::retry_budget::RetryBoard;
use crate::decide::tenants::Tenants;
use crate::driver::listen::Listener;
use crate::metrics::ShardMetrics;
use crate::policy::ShardPolicy;
use crate::secrets::SecretsHandle;
use crate::sentinel::HostLoad;
use crate::shutdown::Shutdown;
use crate::signals::SignalsHandle;

/// One shard's share of the process. Moved to the shard's thread before its runtime starts.
pub struct ShardContext {
    /// Number of the shard, from 0.
    pub shard: u16,
    /// The process's configuration.
    pub config: Arc<Config>,
    /// The policy as this shard holds it.
    pub policy: ShardPolicy,
    /// This shard's counters for the solver.
    pub signals: SignalsHandle,
    /// This shard's counters for people.
    pub metrics: Arc<ShardMetrics>,
    /// Guard words, shared by all shards and written by the sentinel.
    pub guard: Arc<GuardTable>,
    /// What each shard may have in flight at each engine, granted by the sentinel.
    pub allowances: Arc<Allowances>,
    /// What the process has in flight, and with how many others it shares the host's part.
    pub load: Arc<HostLoad>,
    /// The rates that the policy admits, shared by all shards.
    pub rates: Arc<Rates>,
    /// Who asks how much of them, shared likewise.
    pub tenants: Arc<Tenants>,
    /// How full engines are, and the process's floor of retries; written by the sentinel.
    pub retry_board: Arc<RetryBoard>,
    /// What is to be expected of engines, likewise.
    pub outlooks: Arc<Outlooks>,
    /// What this host proves itself with, and whom it trusts.
    pub secrets: SecretsHandle,
    /// This shard's own listening sockets: bound with SO_REUSEPORT, listening, non-blocking.
    pub listeners: Vec<Listener>,
    /// How the process ends.
    pub shutdown: Arc<Shutdown>,
}
