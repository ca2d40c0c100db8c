//! Policy to bytes. `LAYOUT.md` has the grammar; [`super::decode`] is its mirror.
//!
//! Texts stand inline with a length byte instead of in a heap with offsets, so that there is no
//! offset to check, to overlap or to point in a circle, and a route costs about a hundred bytes.

use std::net::SocketAddr;

use super::{Class, Engine, Mode, PlannedState, Policy, Protocol, Route};
use crate::bytes::Put;

/// First bytes of a policy.
pub(super) const MAGIC: [u8; 4] = *b"PMPO";
/// Grammar of the rest. Fields are added at the end of records without raising it.
pub(super) const FORMAT: u32 = 1;
/// Bytes of one row of each row list.
pub(super) const PROFILE_ROW: u16 = 24;
pub(super) const ELIGIBLE_ROW: u16 = 48;
pub(super) const TABLE_ROW: u16 = 2;
pub(super) const STANDBY_ROW: u16 = 10;
pub(super) const RATE_ROW: u16 = 8;

impl Policy {
    /// The payload bytes. Validate first ([`Policy::validate`]): a reader refuses what is invalid.
    ///
    /// # Panics
    /// When a text is longer than 255 bytes, which no valid policy has.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut put = Put::payload(MAGIC, FORMAT);
        put.record(|r| {
            r.u64(self.version);
            r.u64(self.epoch);
            r.text(&self.frontend);
            r.u64(self.created_unix_ms);
            r.u32(self.hosts);
        });
        put.count(self.priorities.len());
        self.priorities
            .iter()
            .for_each(|name| put.record(|r| r.text(name)));
        put.count(self.engines.len());
        self.engines
            .iter()
            .for_each(|engine| put.record(|r| put_engine(r, engine)));
        put.count(self.classes.len());
        self.classes
            .iter()
            .for_each(|class| put.record(|r| put_class(r, class)));
        put.count(self.routes.len());
        self.routes
            .iter()
            .for_each(|route| put.record(|r| put_route(r, route)));
        put.into_bytes()
    }
}

fn put_engine(r: &mut Put, engine: &Engine) {
    r.u16(engine.slot.0);
    r.u32(engine.generation.0);
    r.text(&engine.id);
    r.text(&engine.kind);
    r.text(&engine.region);
    r.count(engine.addresses.len());
    engine
        .addresses
        .iter()
        .for_each(|address| r.record(|r| put_address(r, address)));
    r.u8(match engine.protocol {
        Protocol::Http1 => 0,
        Protocol::Http1Tls => 1,
        Protocol::Http2 => 2,
        Protocol::Http2Tls => 3,
    });
    r.text(&engine.authority);
    r.text(&engine.sni);
    r.text(&engine.credential);
    r.text(&engine.health_path);
    r.u8(match engine.state {
        PlannedState::Active => 0,
        PlannedState::StandbyOnly => 1,
        PlannedState::Draining => 2,
        PlannedState::Out => 3,
    });
    r.u32(engine.ready_replicas);
    r.u32(engine.allowance);
    r.f64(engine.planned_factor);
    r.f64(engine.planned_utilisation);
    r.f64(engine.hard_capacity);
    r.f64(engine.safe_capacity);
    r.f64(engine.network_ms);
    r.u32(engine.idle_timeout_ms);
    r.u32(engine.max_connections);
    r.u32(engine.max_streams);
    r.flag(engine.profile_assumed);
    r.rows(&engine.profile, PROFILE_ROW, |r, point| {
        r.f64(point.utilisation);
        r.f64(point.ttft_ms);
        r.f64(point.tbot_ms);
    });
}

fn put_address(r: &mut Put, address: &SocketAddr) {
    match address {
        SocketAddr::V4(v4) => {
            r.u8(4);
            r.u16(v4.port());
            r.raw(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            r.u8(6);
            r.u16(v6.port());
            r.raw(&v6.ip().octets());
            r.u32(v6.flowinfo());
            r.u32(v6.scope_id());
        }
    }
}

fn put_class(r: &mut Put, class: &Class) {
    r.u16(class.slot.0);
    r.u32(class.generation.0);
    r.text(&class.name);
    r.u8(match class.mode {
        Mode::Observe => 0,
        Mode::Control => 1,
    });
    r.f64(class.demand_rps);
    r.rows(&class.eligible, ELIGIBLE_ROW, |r, eligible| {
        r.u16(eligible.engine.0);
        r.u16(eligible.pair.0);
        r.u32(eligible.pair_generation.0);
        r.f64(eligible.weight);
        r.f64(eligible.work);
        r.f64(eligible.kv_token_seconds);
        r.f64(eligible.idle_ttft_ms);
        r.f64(eligible.planned_ttft_ms);
    });
    r.rows(&class.table, TABLE_ROW, |r, engine| r.u16(engine.0));
    r.rows(&class.standby, STANDBY_ROW, |r, standby| {
        r.u16(standby.engine.0);
        r.f64(standby.weight);
    });
    r.rows(&class.admitted_rps, RATE_ROW, |r, rate| r.f64(*rate));
}

fn put_route(r: &mut Put, route: &Route) {
    r.text(&route.name);
    r.text(&route.model);
    r.text(&route.adapter);
    r.u16(route.class);
    r.u32(route.endpoints.0);
    r.u32(route.features.required.0);
    r.u32(route.features.forbidden.0);
    r.u32(route.body_bytes_min);
    r.u32(route.body_bytes_max);
    r.u8(route.default_priority);
    r.flag(route.listed);
    r.u8(u8::try_from(route.headers.len()).expect("a valid route has few headers"));
    for (name, value) in &route.headers {
        r.text(name);
        r.text(value);
    }
}
