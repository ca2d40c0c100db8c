//! Health checks against servers on the loopback.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use super::*;
use crate::clock::monotonic_ns;
use crate::sentinel::fixture;

const LIFE: Generation = Generation(1);
const SLOT: EngineSlot = EngineSlot(0);

fn config() -> Config {
    let text = "frontend = 'A'\nlisten = ['127.0.0.1:0']\n[probes]\ntimeout_ms = 300\n";
    let host = crate::config::Host { cores: 1 };
    crate::config::parse(text, "proxy.toml".as_ref(), host).unwrap()
}

fn policy(addresses: Vec<SocketAddr>, protocol: Protocol) -> Policy {
    let mut policy = fixture::policy(1, "A");
    policy.engines[0].addresses = addresses;
    policy.engines[0].protocol = protocol;
    policy
}

/// Turns until `count` checks have ended; how each did.
fn checked(policy: &Policy, count: usize) -> (Vec<ProbeOutcome>, Probes) {
    let (config, process) = (config(), ProcessMetrics::default());
    let around = Surroundings {
        config: &config,
        secrets: None,
        process: &process,
    };
    let mut probes = Probes::default();
    let mut outcomes = Vec::new();
    let watchdog = Instant::now() + Duration::from_secs(20);
    while outcomes.len() < count {
        assert!(Instant::now() < watchdog, "{outcomes:?}");
        probes.turn(policy, |_| true, &around, monotonic_ns());
        let before = outcomes.len();
        for outcome in ProbeOutcome::ALL {
            let counted = process.probes[outcome as usize].value();
            let known = outcomes.iter().filter(|known| **known == outcome).count();
            (known..counted as usize).for_each(|_| outcomes.push(outcome));
        }
        if outcomes.len() == before {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    (outcomes, probes)
}

/// A server that reads a question, answers it and closes; its address.
fn server(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 1_024]);
            let _ = stream.write_all(answer);
        }
    });
    address
}

/// An address at which nobody listens.
fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn outcome(addresses: Vec<SocketAddr>, protocol: Protocol) -> ProbeOutcome {
    checked(&policy(addresses, protocol), 1).0[0]
}

#[test]
fn a_status_of_the_two_hundreds_is_well_and_nothing_else() {
    use ProbeOutcome::{Failed, Refused, Well};
    let http1 = |answer| outcome(vec![server(answer)], Protocol::Http1);
    assert_eq!(http1(b"HTTP/1.1 200 OK\r\n\r\n"), Well);
    assert_eq!(http1(b"HTTP/1.1 503 No\r\n\r\n"), Failed);
    assert_eq!(http1(b"HTTP/1.1 20"), Failed);
    assert_eq!(http1(b"hello"), Failed);
    let ok: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x04\0\0\0\x01\x88";
    assert_eq!(outcome(vec![server(ok)], Protocol::Http2), Well);
    assert_eq!(outcome(vec![nobody()], Protocol::Http1), Refused);
    let second = server(b"HTTP/1.1 204 \r\n\r\n");
    assert_eq!(outcome(vec![nobody(), second], Protocol::Http1), Well);
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let (outcomes, probes) = checked(&policy(vec![address], Protocol::Http1), 1);
    assert_eq!(outcomes, [ProbeOutcome::Timeout]);
    let health = |now_ns| probes.health(SLOT, LIFE, now_ns);
    assert_eq!(health(monotonic_ns()), Health::Unknown, "one is not enough");
    let (_, probes) = checked(&policy(vec![address], Protocol::Http1), 2);
    assert_eq!(probes.health(SLOT, LIFE, monotonic_ns()), Health::Down);
}

#[test]
fn a_refusal_leaves_no_doubt_and_what_is_old_says_nothing() {
    let (_, probes) = checked(&policy(vec![nobody()], Protocol::Http1), 1);
    let now_ns = monotonic_ns();
    assert_eq!(probes.health(SLOT, LIFE, now_ns), Health::Down);
    assert_eq!(probes.health(SLOT, Generation(2), now_ns), Health::Unknown);
    assert_eq!(
        probes.health(SLOT, LIFE, now_ns + 6_000_000_000),
        Health::Unknown
    );
}

#[test]
fn an_engine_is_asked_once_a_second_and_no_more_than_some_at_once() {
    let (config, process) = (config(), ProcessMetrics::default());
    let around = Surroundings {
        config: &config,
        secrets: None,
        process: &process,
    };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let mut policy = policy(vec![address], Protocol::Http1);
    policy.engines = (0..200)
        .map(|slot| {
            let mut engine = fixture::engine(slot, "e");
            engine.addresses = vec![address];
            engine
        })
        .collect();
    let mut probes = Probes::default();
    let now_ns = monotonic_ns();
    probes.turn(&policy, |engine| engine.slot.0 < 3, &around, now_ns);
    assert_eq!(probes.under_way.len(), 3);
    probes.turn(&policy, |engine| engine.slot.0 < 3, &around, now_ns);
    assert_eq!(probes.under_way.len(), 3);
    probes.turn(&policy, |_| true, &around, now_ns);
    assert_eq!(probes.under_way.len(), MOST_UNDER_WAY);
    // The others come next, though the first are due again.
    let later_ns = now_ns + 2_000_000_000;
    (0..4).for_each(|_| probes.turn(&policy, |_| true, &around, later_ns));
    assert_eq!(probes.under_way.len(), MOST_UNDER_WAY);
    let asked = |slot| probes.engines.contains_key(&EngineSlot(slot));
    assert!((0..200).all(asked));
}

#[test]
fn engines_with_tls_are_not_asked_without_secrets() {
    let (config, process) = (config(), ProcessMetrics::default());
    let around = Surroundings {
        config: &config,
        secrets: None,
        process: &process,
    };
    let mut policy = policy(vec![nobody()], Protocol::Http1Tls);
    policy.engines[0].sni = "localhost".to_owned();
    let mut probes = Probes::default();
    probes.turn(&policy, |_| true, &around, monotonic_ns());
    assert_eq!(probes.under_way.len(), 0);
}

/// Until the next check says otherwise, however long that is in coming, or nobody asks any more.
#[test]
fn who_is_down_is_down_until_a_check_is_good() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = "frontend = 'A'\nlisten = ['127.0.0.1:0']\n[probes]\ntimeout_ms = 10000\n";
    let host = crate::config::Host { cores: 1 };
    let config = crate::config::parse(text, "proxy.toml".as_ref(), host).unwrap();
    let process = ProcessMetrics::default();
    let around = Surroundings {
        config: &config,
        secrets: None,
        process: &process,
    };
    let policy = policy(vec![listener.local_addr().unwrap()], Protocol::Http1);
    let mut probes = Probes::default();
    let begin_ns = 1_000_000_000_000;
    let at = |tenth: u64| begin_ns + tenth * 100_000_000;
    let mut said = Vec::new();
    for tenth in 0..1_000 {
        probes.turn(&policy, |_| true, &around, at(tenth));
        said.push(probes.health(SLOT, LIFE, at(tenth)));
    }
    let first = said.iter().position(|health| *health == Health::Down);
    let first = first.expect("two checks of ten seconds");
    assert!((200..=204).contains(&first), "{first}");
    assert!(said[first..].iter().all(|health| *health == Health::Down));
    // Nobody asks for a while: what was then is not what is now.
    for tenth in 1_000..1_052 {
        probes.turn(&policy, |_| false, &around, at(tenth));
    }
    assert_eq!(probes.health(SLOT, LIFE, at(1_051)), Health::Unknown);
    probes.turn(&policy, |_| true, &around, at(1_052));
    assert_eq!(probes.health(SLOT, LIFE, at(1_052)), Health::Unknown);
}

/// The sentinel may share its core with a shard that is busy: what it does late is not the engine's.
#[test]
fn an_engine_is_given_time_by_looks_too_however_late_they_come() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap();
    let question = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    let mut exchange = Exchange::new(&[silent], question, (false, None), 1_000);
    let looks = [2_000; 4].map(|now_ns| exchange.advance(now_ns));
    assert_eq!(looks, [None, None, None, Some(ProbeOutcome::Timeout)]);
    // Within its time it is looked at as often as may be.
    let question = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    let mut exchange = Exchange::new(&[silent], question, (false, None), 1_000);
    assert!((0..100).all(|_| exchange.advance(999).is_none()));
    assert_eq!(exchange.advance(1_000), Some(ProbeOutcome::Timeout));
}
