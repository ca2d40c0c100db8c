//! Clients that leave are seen by the engine, amid a stream and in a silent prefill.

use crate::support::{Server, load};

#[test]
fn the_bare_engine_sees_every_client_leave() {
    let engine = Server::bare(&[]);
    let address = engine.address.to_string();
    for (http, kinds) in [
        ("h1", &["streaming_us", "reset_us", "prefill_us"][..]),
        ("h2", &["streaming_us", "prefill_us"]),
    ] {
        let line = [
            "--mode", "cancel", "--trials", "4", "--http", http, "--engine", &address,
        ];
        let report = load(engine.address, &line);
        for &kind in kinds {
            let seen = (&report[kind]["seen"], &report[kind]["never"]);
            assert_eq!(seen, (&4.into(), &0.into()), "{report}");
        }
        assert!(report["cancel_us_p50"].as_f64().unwrap() > 0.0, "{report}");
    }
    assert_eq!(engine.stats()["aborted"], 4 * 5);
}

/// A relay does not watch a client in a silent prefill: what nobody saw has no median.
#[test]
fn what_was_never_noticed_is_said() {
    let engine = Server::bare(&[]);
    let relay = Server::relay("h1", "h1", &engine, &[]);
    let address = engine.address.to_string();
    let line = ["--mode", "cancel", "--trials", "1", "--engine", &address];
    let report = load(relay.address, &line);
    assert_eq!(report["streaming_us"]["seen"], 1, "{report}");
    let prefill = (
        &report["prefill_us"]["seen"],
        &report["prefill_us"]["never"],
    );
    assert_eq!(prefill, (&0.into(), &1.into()), "{report}");
    assert!(report["cancel_us_p50"].is_null(), "{report}");
}
