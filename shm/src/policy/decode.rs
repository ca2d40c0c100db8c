//! Bytes to policy: the mirror of [`super::encode`], then the same check that the writer made.
//!
//! Bytes come from another process, perhaps of another release, perhaps damaged. Every read is
//! bounds-checked, every count is checked before it allocates, every index is range-checked once,
//! here, so that the request path need not.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::Arc;

use super::encode::{ELIGIBLE_ROW, FORMAT, MAGIC, PROFILE_ROW, RATE_ROW, STANDBY_ROW, TABLE_ROW};
use super::validate::{MAX_ADDRESSES, MAX_HEADERS, MAX_PROFILE_POINTS};
use super::{
    Class, Eligible, Endpoints, Engine, FeatureMatch, Features, Mode, PlannedState, Policy,
    ProfilePoint, Protocol, Route, Standby,
};
use crate::bytes::{Take, invalid, within};
use crate::error::Error;
use crate::id::{
    ClassSlot, EngineSlot, Generation, MAX_CLASSES, MAX_ENGINES, MAX_PRIORITIES, MAX_ROUTES,
    MAX_STANDBY, PairNumber, TABLE_BITS,
};

impl Policy {
    /// Checked types from payload bytes; the error names what is wrong and where.
    pub fn decode(bytes: &[u8]) -> Result<Policy, Error> {
        let policy = within(parse(bytes), || "policy".to_owned())?;
        policy.validate()?;
        Ok(policy)
    }
}

fn parse(bytes: &[u8]) -> Result<Policy, Error> {
    let mut take = Take::payload(bytes, MAGIC, FORMAT)?;
    let mut head = take.record("head")?;
    Ok(Policy {
        version: head.u64("version")?,
        epoch: head.u64("epoch")?,
        frontend: head.text("frontend")?,
        created_unix_ms: head.u64("created_unix_ms")?,
        hosts: head.u32("hosts")?,
        priorities: take.records("priorities", MAX_PRIORITIES, |r| r.text("name"))?,
        engines: take.records("engines", MAX_ENGINES, take_engine)?,
        classes: take.records("classes", MAX_CLASSES, take_class)?,
        routes: Arc::new(take.records("routes", MAX_ROUTES, take_route)?),
    })
}

fn take_engine(r: &mut Take<'_>) -> Result<Engine, Error> {
    Ok(Engine {
        slot: EngineSlot(r.u16("slot")?),
        generation: Generation(r.u32("generation")?),
        id: r.text("id")?,
        kind: r.text("kind")?,
        region: r.text("region")?,
        addresses: r.records("addresses", MAX_ADDRESSES, take_address)?,
        protocol: match r.u8("protocol")? {
            0 => Protocol::Http1,
            1 => Protocol::Http1Tls,
            2 => Protocol::Http2,
            3 => Protocol::Http2Tls,
            other => return Err(invalid("protocol", format!("{other} is none of 0 to 3"))),
        },
        authority: r.text("authority")?,
        sni: r.text("sni")?,
        credential: r.text("credential")?,
        health_path: r.text("health_path")?,
        state: match r.u8("state")? {
            0 => PlannedState::Active,
            1 => PlannedState::StandbyOnly,
            2 => PlannedState::Draining,
            3 => PlannedState::Out,
            other => return Err(invalid("state", format!("{other} is none of 0 to 3"))),
        },
        ready_replicas: r.u32("ready_replicas")?,
        allowance: r.u32("allowance")?,
        planned_factor: r.f64("planned_factor")?,
        planned_utilisation: r.f64("planned_utilisation")?,
        hard_capacity: r.f64("hard_capacity")?,
        safe_capacity: r.f64("safe_capacity")?,
        network_ms: r.f64("network_ms")?,
        idle_timeout_ms: r.u32("idle_timeout_ms")?,
        max_connections: r.u32("max_connections")?,
        max_streams: r.u32("max_streams")?,
        profile_assumed: r.flag("profile_assumed")?,
        profile: r.rows("profile", (MAX_PROFILE_POINTS, PROFILE_ROW), |r| {
            Ok(ProfilePoint {
                utilisation: r.f64("utilisation")?,
                ttft_ms: r.f64("ttft_ms")?,
                tbot_ms: r.f64("tbot_ms")?,
            })
        })?,
    })
}

fn take_address(r: &mut Take<'_>) -> Result<SocketAddr, Error> {
    let family = r.u8("family")?;
    let port = r.u16("port")?;
    match family {
        4 => {
            let mut octets = [0u8; 4];
            octets.copy_from_slice(r.raw(4, "address")?);
            Ok(SocketAddr::V4(SocketAddrV4::new(
                Ipv4Addr::from(octets),
                port,
            )))
        }
        6 => {
            let mut octets = [0u8; 16];
            octets.copy_from_slice(r.raw(16, "address")?);
            let (flow, scope) = (r.u32("flow")?, r.u32("scope")?);
            let address = SocketAddrV6::new(Ipv6Addr::from(octets), port, flow, scope);
            Ok(SocketAddr::V6(address))
        }
        other => Err(invalid("family", format!("{other} is neither 4 nor 6"))),
    }
}

fn take_class(r: &mut Take<'_>) -> Result<Class, Error> {
    Ok(Class {
        slot: ClassSlot(r.u16("slot")?),
        generation: Generation(r.u32("generation")?),
        name: r.text("name")?,
        mode: match r.u8("mode")? {
            0 => Mode::Observe,
            1 => Mode::Control,
            other => return Err(invalid("mode", format!("{other} is neither 0 nor 1"))),
        },
        demand_rps: r.f64("demand_rps")?,
        eligible: r.rows("eligible", (MAX_ENGINES, ELIGIBLE_ROW), |r| {
            Ok(Eligible {
                engine: EngineSlot(r.u16("engine")?),
                pair: PairNumber(r.u16("pair")?),
                pair_generation: Generation(r.u32("pair_generation")?),
                weight: r.f64("weight")?,
                work: r.f64("work")?,
                kv_token_seconds: r.f64("kv_token_seconds")?,
                idle_ttft_ms: r.f64("idle_ttft_ms")?,
                planned_ttft_ms: r.f64("planned_ttft_ms")?,
            })
        })?,
        table: r.rows("table", (1 << *TABLE_BITS.end(), TABLE_ROW), |r| {
            Ok(EngineSlot(r.u16("engine")?))
        })?,
        standby: r.rows("standby", (MAX_STANDBY, STANDBY_ROW), |r| {
            Ok(Standby {
                engine: EngineSlot(r.u16("engine")?),
                weight: r.f64("weight")?,
            })
        })?,
        admitted_rps: r.rows("admitted_rps", (MAX_PRIORITIES, RATE_ROW), |r| {
            r.f64("rate")
        })?,
    })
}

fn take_route(r: &mut Take<'_>) -> Result<Route, Error> {
    Ok(Route {
        name: r.text("name")?,
        model: r.text("model")?,
        adapter: r.text("adapter")?,
        class: r.u16("class")?,
        endpoints: Endpoints(r.u32("endpoints")?),
        features: FeatureMatch {
            required: Features(r.u32("required")?),
            forbidden: Features(r.u32("forbidden")?),
        },
        body_bytes_min: r.u32("body_bytes_min")?,
        body_bytes_max: r.u32("body_bytes_max")?,
        default_priority: r.u8("default_priority")?,
        listed: r.flag("listed")?,
        headers: {
            let count = usize::from(r.u8("headers")?);
            if count > MAX_HEADERS {
                let why = format!("{count} of them, the limit is {MAX_HEADERS}");
                return Err(invalid("headers", why));
            }
            let pair = |r: &mut Take<'_>| Ok((r.text("header name")?, r.text("header value")?));
            (0..count).map(|_| pair(r)).collect::<Result<_, Error>>()?
        },
    })
}
