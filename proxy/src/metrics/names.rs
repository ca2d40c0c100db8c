//! Every metric's name, kind and help text; the only place where they are written.

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name that Prometheus sees.
    pub name: &'static str,
    /// What Prometheus is told about its behaviour.
    pub kind: Kind,
    /// One line for people.
    pub help: &'static str,
}

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Buckets, sum and count.
    Histogram,
}

macro_rules! names {
    ($($constant:ident $kind:ident $name:literal $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Name = Name { name: $name, kind: Kind::$kind, help: $help };
        )*
        /// All of them, in the order of the page.
        pub const ALL: &[Name] = &[$($constant),*];
    };
}

names! {
    REQUESTS Counter "pointsman_proxy_requests_total"
        "Requests answered, by class and status code.";
    IN_FLIGHT Gauge "pointsman_proxy_in_flight"
        "Requests being served.";
    ENGINE_IN_FLIGHT Gauge "pointsman_proxy_engine_in_flight"
        "Attempts in flight at an engine.";
    ENGINE_ALLOWANCE Gauge "pointsman_proxy_engine_allowance"
        "Attempts that this process may have in flight at an engine.";
    ATTEMPTS Counter "pointsman_proxy_attempts_total"
        "Attempts ended at an engine, by outcome and whose fault that is.";
    STREAMS_UNFINISHED Counter "pointsman_proxy_streams_unfinished_total"
        "Event streams answered 200 and delivered whole that ended without a terminal event.";
    RETRIES Counter "pointsman_proxy_retries_total"
        "Attempts after the first, by how the attempt before ended.";
    RETRIES_REFUSED Counter "pointsman_proxy_retries_refused_total"
        "Retries that were allowed and for which the budget had no token.";
    HEDGES Counter "pointsman_proxy_hedges_total"
        "Second attempts beside a late first one, by what became of them.";
    RETRY_FLOOR Gauge "pointsman_proxy_retry_floor_tokens"
        "Tokens that any shard may borrow for a retry.";
    CLASS_UTILISATION Gauge "pointsman_proxy_class_utilisation"
        "How full the engines of a class are, which the retry budget goes by.";
    SHED Counter "pointsman_proxy_shed_total"
        "Requests refused, by cause.";
    RATE_EXCEEDED Counter "pointsman_proxy_rate_exceeded_total"
        "Requests refused because their priority's admitted rate was used up, by priority.";
    OVER_SHARE Counter "pointsman_proxy_over_share_total"
        "Requests among those whose tenant was over its fair share.";
    QUEUED Gauge "pointsman_proxy_queued"
        "Requests that wait until an engine has room.";
    QUEUE_ENDS Counter "pointsman_proxy_queue_total"
        "Waits for an engine to have room, by how they ended.";
    CLIENT_CANCELS Counter "pointsman_proxy_client_cancels_total"
        "Requests whose client left before the end.";
    TTFT Histogram "pointsman_proxy_ttft_seconds"
        "Time from a request's arrival to the first body byte of its answer.";
    CLIENT_CONNECTIONS Gauge "pointsman_proxy_client_connections"
        "Client connections open.";
    ENGINE_CONNECTIONS Gauge "pointsman_proxy_engine_connections"
        "Connections open to an engine, idle ones included.";
    ENGINE_REPORTED Gauge "pointsman_proxy_engine_reported"
        "Load that an engine reported with its last answer.";
    CONNECTION_REUSE Counter "pointsman_proxy_connection_reuse_total"
        "Attempts sent on a connection that had served before.";
    CONNECTION_REPLAYS Counter "pointsman_proxy_connection_replays_total"
        "Requests sent again to the same engine because a reused connection was dead.";
    TLS_HANDSHAKES Counter "pointsman_proxy_tls_handshakes_total"
        "TLS handshakes that succeeded, by side and whether an earlier session was taken up.";
    TLS_FAILURES Counter "pointsman_proxy_tls_failures_total"
        "TLS connections that failed, by side and reason.";
    CERTIFICATE_EXPIRY Gauge "pointsman_proxy_certificate_expiry_seconds"
        "When a certificate of this host ends, seconds since 1970.";
    SECRET_RELOADS Counter "pointsman_proxy_secret_reloads_total"
        "Changed files of certificates, keys and tokens, by outcome.";
    FLOODS Counter "pointsman_proxy_floods_total"
        "HTTP/2 connections of clients ended because they did too much for nothing.";
    SLOW_RESETS Counter "pointsman_proxy_slow_resets_total"
        "Streams broken off because they held most of the memory for slow clients.";
    POLICY_VERSION Gauge "pointsman_proxy_policy_version"
        "Version of the newest adopted policy; 0 for none.";
    POLICY_RUNNING_VERSION Gauge "pointsman_proxy_policy_running_version"
        "Oldest policy version that a shard still runs; 0 for none.";
    POLICY_AGE Gauge "pointsman_proxy_policy_age_seconds"
        "Time since the policy was last confirmed with fresh signals; infinite when never.";
    POLICY_RUNG Gauge "pointsman_proxy_policy_rung"
        "1 on the rung of the degraded ladder where the proxy stands, 0 on the others.";
    POLICY_REJECTED Counter "pointsman_proxy_policy_rejected_total"
        "Policies, or whole region files, read and not adopted.";
    POLICY_ADOPTED Counter "pointsman_proxy_policy_adopted_total"
        "Policies adopted.";
    ENGINE_STATE_REJECTED Counter "pointsman_proxy_engine_state_rejected_total"
        "Engine states read and not used.";
    ENGINE_OUT Gauge "pointsman_proxy_engine_out"
        "1 while an engine takes no request here, by reason.";
    ENGINE_PENALTY Gauge "pointsman_proxy_engine_penalty"
        "Fraction of its requests that an engine loses, the plan's part included.";
    ENGINE_EJECTIONS Counter "pointsman_proxy_engine_ejections_total"
        "Times that this host took all requests from an engine.";
    ENGINE_LATE Counter "pointsman_proxy_engine_late_total"
        "Requests that waited over three times the predicted time for their first token.";
    ENGINE_SLOWNESS Gauge "pointsman_proxy_engine_slowness"
        "Times of late as a multiple of what was predicted, by kind of time.";
    PROBES Counter "pointsman_proxy_probes_total"
        "Health checks of the proxy's own, by outcome.";
    UNKNOWN_CREDENTIALS Gauge "pointsman_proxy_unknown_credentials"
        "Engines left out because this host lacks the credential that the policy names.";
    SIGNALS_ERRORS Counter "pointsman_proxy_signals_errors_total"
        "Failures to enlarge the signals file.";
    IO_DRIVER Gauge "pointsman_proxy_io_driver"
        "1 on the I/O driver in use, 0 on the other.";
    RING_ENTRIES Gauge "pointsman_proxy_ring_entries"
        "Entries of each shard's io_uring; 0 with epoll.";
    SHARDS Gauge "pointsman_proxy_shards"
        "Shards of this process.";
    PANICS Counter "pointsman_proxy_panics_total"
        "Panics caught: each ended one connection, or restarted the sentinel.";
}
