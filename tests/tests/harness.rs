//! The harness against itself: a test that cannot fail proves nothing, so what the other tests
//! lean on is shown to see what it must see.

use std::time::Duration;

use pointsman_tests::client::{Client, End, STREAMED, ask, chat};
use pointsman_tests::engine::{Engine, Gate, Refusing, What};
use pointsman_tests::metrics::Page;
use pointsman_tests::wait::{SOON, eventually, eventually_equals};
use pointsman_tests::wire::Ending;

#[test]
fn an_engine_records_requests_and_a_client_reads_answers() {
    let engine = Engine::named("E1");
    let mut client = Client::connect(engine.address());
    for _ in 0..3 {
        client.send(chat(true));
        let answer = client.response();
        assert_eq!(
            (answer.status(), answer.text()),
            (200, r#"{"engine":"E1"}"#)
        );
        assert_eq!(answer.ending, Ending::Complete);
    }
    client.close();
    eventually_equals(SOON, "open connections", &0, || engine.open());
    assert_eq!((engine.connections(), engine.ended_by_peer()), (1, 1));
    let requests = engine.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[2].target(), ("POST", "/v1/chat/completions"));
    assert_eq!(requests[2].text(), STREAMED);
}

#[test]
fn an_engine_tells_fin_from_rst() {
    let engine = Engine::silent();
    for (reset, end) in [(false, End::Fin), (true, End::Reset)] {
        let mut client = Client::connect(engine.address());
        client.send(chat(true));
        let before = engine.events().len();
        let seen = |what: &What| matches!(what, What::PeerEnded(seen) if *seen == end);
        eventually(SOON, "the request", || {
            (engine.events().len() > before).then_some(())
        });
        assert_eq!(engine.count(seen), 0);
        if reset {
            client.reset();
        } else {
            client.close();
        }
        eventually_equals(SOON, "the end", &1, || engine.count(seen));
    }
}

#[test]
fn a_client_tells_a_broken_body_from_a_whole_one() {
    let gate = Gate::new();
    let waiting = gate.clone();
    let engine = Engine::start(move |conn| {
        let Some(request) = conn.request() else {
            return;
        };
        conn.stream_head();
        conn.chunk("data: 1\n\n");
        match request.text() {
            "whole" => {
                conn.end_stream();
            }
            // Not before the client has the first chunk: a reset may overtake it.
            "reset" => {
                waiting.wait();
                conn.reset();
            }
            _ => conn.close(),
        }
    });
    let post = |body| pointsman_tests::client::post("/", body);
    assert_eq!(
        ask(engine.address(), post("whole")).ending,
        Ending::Complete
    );
    assert_eq!(ask(engine.address(), post("fin")).ending, Ending::Broken);
    let mut client = Client::connect(engine.address());
    client.send(post("reset"));
    let mut answer = client.head();
    gate.open();
    client.body(&mut answer);
    assert_eq!(answer.ending, Ending::Broken);
}

#[test]
fn a_refusing_address_refuses() {
    let refusing = Refusing::new();
    let error = std::net::TcpStream::connect(refusing.address()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
#[should_panic(expected = "still not after")]
fn a_condition_that_never_comes_fails() {
    eventually(Duration::from_millis(20), "the impossible", || None::<()>);
}

#[test]
fn metrics_are_parsed_with_their_escapes() {
    let page = Page::parse(
        "# TYPE a counter\na{x=\"1\",y=\"q\\\"\\\\\\n\"} 2\na{x=\"2\"} 3.5\nb 1e3\nc +Inf\n",
    );
    assert_eq!(page.sum("a", &[]), 5.5);
    assert_eq!(page.sum("a", &[("x", "1")]), 2.0);
    assert_eq!(page.sum("a", &[("y", "q\"\\\n")]), 2.0);
    assert_eq!((page.sum("b", &[]), page.sum("none", &[])), (1000.0, 0.0));
    assert!(page.sum("c", &[]).is_infinite() && page.has("c") && !page.has("none"));
}

#[test]
#[should_panic(expected = "no sample")]
fn a_line_that_is_no_sample_fails() {
    let _ = Page::parse("a{x=\"1} 2\n");
}
