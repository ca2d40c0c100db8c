//! HTTP/2 towards engines: streams on few connections, and what follows when either goes wrong.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;

use h2::Reason;
use http::HeaderMap;
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, Client, STREAMED, UNARY, chat, post, post_with};
use pointsman_tests::engine2::Engine2;
use pointsman_tests::frames::{DATA, Frame, FrameConn, HEADERS};
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually, eventually_equals};
use pointsman_tests::wire::Ending;

both_drivers!(
    bytes_cross_unchanged_with_their_headers_and_trailers,
    streams_and_whole_answers_have_connections_of_their_own,
    /// C13: an answer that ends with its head does not cost a connection.
    c13_a_connection_is_used_again,
    /// C09, A01: a client that leaves stops the engine's stream, silent or not.
    c09_a_client_that_leaves_resets_its_stream,
    /// C05: what stands above a GOAWAY goes elsewhere, what stands below ends.
    c05_a_goaway_moves_only_what_was_not_begun,
    /// C05: the same of a GOAWAY with an error, and a connection that is lost moves all.
    c05_a_goaway_in_anger_and_a_lost_connection,
    a_goaway_of_the_only_engine_leads_to_a_new_connection,
    /// C06: streams before the first SETTINGS are few, and a shrinking limit is kept to.
    c06_limits_of_streams_are_kept_to,
    a_refused_stream_goes_to_another_engine_and_counts_as_no_failure,
    an_answer_that_breaks_off_is_shown_broken,
    /// C10: towards us as from us, a length holds at every end.
    c10_an_answer_must_have_its_length,
    empty_frames_wear_no_connection_out,
    a_connection_is_replaced_after_its_share_of_requests,
    a_connection_is_replaced_at_its_age,
    a_dead_engine_is_found_by_a_ping,
    nghttpd_serves_as_an_engine,
);

/// An engine that answers by what the body says.
fn engine() -> Engine2 {
    Engine2::start(
        h2::server::Builder::new(),
        |request, mut answer| async move {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            if body.contains("\"stream\"") {
                answer.event_stream();
                for n in 0..3 {
                    answer
                        .send(format!("data: {n}\n\n").as_bytes(), false)
                        .await;
                }
                let mut trailers = HeaderMap::new();
                trailers.append("x-sum", "9".parse().unwrap());
                answer.trailers(trailers);
            } else {
                answer.json(200, &body).await;
            }
        },
    )
}

fn listener() -> TcpListener {
    pointsman_tests::engine::listen(16)
}

fn bytes_cross_unchanged_with_their_headers_and_trailers(driver: Driver) {
    let engine = engine();
    let proxy = Proxy::start(driver, &Draft::single(engine.address()).http2());
    let body = "{\"z\":1, \"model\":\"m\",\"t\":0.70,\"n\":1e400,\"x\":\"\\u00e9 \u{1f642}\",\
                \"big\":12345678901234567890 }\n";
    let head = format!(
        "POST {CHAT}?a=%2F HTTP/1.1\r\nHost: p\r\nX-Own: One\r\nx-own: two\r\nCookie: a=1\r\n\
         TE: trailers\r\nConnection: x-hop\r\nX-Hop: 1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let answer = proxy.ask(head + body);
    assert_eq!((answer.status(), answer.text()), (200, body));
    assert_eq!(
        answer.header("content-length"),
        Some(body.len().to_string().as_str())
    );
    let request = &engine.requests()[0];
    assert_eq!(request.body, body.as_bytes());
    assert_eq!(
        request.head.uri().path_and_query().unwrap(),
        &*format!("{CHAT}?a=%2F")
    );
    let own: Vec<_> = request.head.headers().get_all("x-own").iter().collect();
    assert_eq!(own, ["One", "two"]);
    for gone in ["te", "connection", "x-hop", "host"] {
        assert!(!request.head.headers().contains_key(gone), "{gone}");
    }
    let answer = proxy.ask(post_with(CHAT, "TE: trailers\r\n", STREAMED));
    assert_eq!(answer.text(), "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    assert_eq!(answer.ending, Ending::Complete);
    assert_eq!(answer.trailers, ["x-sum: 9"]);
    for size in [0, 16_000, 70_000, 3_000_000] {
        let body = format!(r#"{{"model":"m","x":"{}"}}"#, "x".repeat(size));
        let answer = proxy.ask(post(CHAT, &body));
        assert!(answer.text() == body, "{size}: the body changed");
    }
    proxy.await_rest();
    assert_eq!(engine.resets(), []);
}

fn streams_and_whole_answers_have_connections_of_their_own(driver: Driver) {
    let engine = engine();
    let proxy = Proxy::start(driver, &Draft::single(engine.address()).http2());
    for stream in [true, false, true, false] {
        assert_eq!(proxy.ask(chat(stream)).status(), 200);
    }
    assert_eq!(engine.connections(), 2);
    proxy.await_metric("pointsman_proxy_connection_reuse_total", &[], 2.0);
}

fn c13_a_connection_is_used_again(driver: Driver) {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let mut conn = FrameConn::accept(&listener, Some(&[]));
        for _ in 0..100 {
            let (stream, _) = conn.request();
            // In one segment: control frames before and after the head that is the whole answer.
            let answer = [
                Frame::settings(&[]),
                Frame::head(stream, &[(":status", "200")], true),
                Frame::new(6, 0, 0, [7; 8]),
            ];
            let bytes: Vec<u8> = answer.iter().flat_map(Frame::bytes).collect();
            conn.raw(&bytes);
        }
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "a second connection came");
    });
    let proxy = Proxy::start(driver, &Draft::single(address).http2());
    let mut client = proxy.connect();
    for _ in 0..100 {
        client.send(post(CHAT, UNARY));
        let answer = client.response();
        assert_eq!(
            (answer.status(), answer.header("content-length")),
            (200, Some("0"))
        );
    }
    peer.join().unwrap();
}

fn c09_a_client_that_leaves_resets_its_stream(driver: Driver) {
    let engine = Engine2::start(
        h2::server::Builder::new(),
        |request, mut answer| async move {
            if String::from_utf8_lossy(&request.body).contains("\"stream\"") {
                answer.event_stream();
                answer.send(b"data: 1\n\n", false).await;
            }
            answer.await_reset().await;
        },
    );
    let proxy = Proxy::start(driver, &Draft::single(engine.address()).http2());
    for (count, stream) in [(1, false), (2, true)] {
        let mut client = proxy.connect();
        client.send(chat(stream));
        eventually_equals(SOON, "requests", &count, || engine.requests().len());
        if stream {
            client.head();
            client.read_ahead(1);
        }
        drop(client);
        eventually_equals(SOON, "resets", &count, || engine.resets().len());
    }
    assert_eq!(engine.resets(), [Reason::CANCEL, Reason::CANCEL]);
    proxy.await_rest();
    proxy.await_metric("pointsman_proxy_client_cancels_total", &[], 2.0);
    let labels = [("outcome", "client_cancel")];
    proxy.await_metric("pointsman_proxy_attempts_total", &labels, 2.0);
    assert_eq!(
        engine.open(),
        engine.connections(),
        "connections outlive their streams"
    );
}

/// Asks for a stream in a thread of its own, and gives back the client with its answer's head read.
fn ask_later(
    proxy: &Proxy,
    request: Vec<u8>,
) -> thread::JoinHandle<pointsman_tests::wire::Message> {
    let address = proxy.address;
    thread::spawn(move || pointsman_tests::client::ask(address, request))
}

fn c05_a_goaway_moves_only_what_was_not_begun(driver: Driver) {
    for warns in [false, true] {
        goes_away(driver, warns);
    }
}

/// An engine that goes away in the middle of the first of three requests; one that `warns` says before
/// that it will, and as yet takes all that it was asked.
fn goes_away(driver: Driver, warns: bool) {
    let listener = listener();
    let standby = Engine2::named("standby");
    let draft = Draft::with_standby(listener.local_addr().unwrap(), standby.address()).http2();
    let proxy = Proxy::start(driver, &draft);
    let mut askers = vec![ask_later(&proxy, chat(true))];
    let mut conn = FrameConn::accept(&listener, Some(&[]));
    let (first, _) = conn.request();
    let fields = [(":status", "200"), ("content-type", "text/event-stream")];
    conn.send(&Frame::head(first, &fields, false));
    conn.send(&Frame::data(first, "data: 1\n\n", false));
    for _ in 0..2 {
        askers.push(ask_later(&proxy, chat(true)));
        conn.request();
    }
    if warns {
        conn.send(&Frame::go_away(0x7fff_ffff, 0));
        // What comes now comes on another connection, and what is here stays until more is known.
        let later = ask_later(&proxy, post(CHAT, UNARY));
        let mut anew = FrameConn::accept(&listener, Some(&[]));
        let (stream, _) = anew.request();
        anew.send(&Frame::head(stream, &[(":status", "200")], true));
        assert_eq!(later.join().unwrap().status(), 200);
        assert_eq!(standby.requests().len(), 0);
        drop(anew);
    }
    conn.send(&Frame::go_away(first, 0));
    let moved: Vec<_> = askers
        .drain(1..)
        .map(|asker| asker.join().unwrap())
        .collect();
    for answer in moved {
        assert_eq!(answer.text(), r#"{"engine":"standby"}"#);
    }
    conn.send(&Frame::data(first, "data: 2\n\n", true));
    let answer = askers.pop().unwrap().join().unwrap();
    assert_eq!(answer.text(), "data: 1\n\ndata: 2\n\n");
    assert_eq!(answer.ending, Ending::Complete);
    proxy.await_metric("pointsman_proxy_retries_total", &[], 2.0);
    let labels = [("engine", "E1"), ("outcome", "backpressure")];
    proxy.await_metric("pointsman_proxy_attempts_total", &labels, 2.0);
    // Nothing more is sent there, and it ends with its last stream.
    while conn.frame().is_some_and(|frame| frame.kind != HEADERS) {}
    proxy.await_rest();
}

fn c05_a_goaway_in_anger_and_a_lost_connection(driver: Driver) {
    const ENHANCE_YOUR_CALM: u32 = 11;
    for is_lost in [false, true] {
        let listener = listener();
        let standby = Engine2::named("standby");
        let draft = Draft::with_standby(listener.local_addr().unwrap(), standby.address()).http2();
        let proxy = Proxy::start(driver, &draft);
        let first = ask_later(&proxy, post(CHAT, UNARY));
        let mut conn = FrameConn::accept(&listener, Some(&[]));
        let (stream, _) = conn.request();
        let second = ask_later(&proxy, post(CHAT, UNARY));
        conn.request();
        if is_lost {
            drop(conn);
        } else {
            conn.send(&Frame::go_away(stream, ENHANCE_YOUR_CALM));
            conn.send(&Frame::head(stream, &[(":status", "200")], true));
        }
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        let moved = [&first, &second].map(|answer| answer.text() == r#"{"engine":"standby"}"#);
        assert_eq!((first.status(), second.status()), (200, 200));
        assert_eq!(moved, [is_lost, true]);
        let count = 1 + usize::from(is_lost);
        assert_eq!(standby.requests().len(), count);
        proxy.await_metric("pointsman_proxy_retries_total", &[], count as f64);
        proxy.await_rest();
    }
}

fn a_goaway_of_the_only_engine_leads_to_a_new_connection(driver: Driver) {
    let listener = listener();
    let proxy = Proxy::start(
        driver,
        &Draft::single(listener.local_addr().unwrap()).http2(),
    );
    let asker = ask_later(&proxy, post(CHAT, UNARY));
    let mut conn = FrameConn::accept(&listener, Some(&[]));
    conn.request();
    conn.send(&Frame::go_away(0, 0));
    let mut second = FrameConn::accept(&listener, Some(&[]));
    let (stream, _) = second.request();
    second.send(&Frame::head(stream, &[(":status", "200")], true));
    assert_eq!(asker.join().unwrap().status(), 200);
}

fn c06_limits_of_streams_are_kept_to(driver: Driver) {
    let listener = listener();
    let more = "[http2]\nengine_connections = 1\nengine_first_streams = 10\n[timeouts]\nconnect_ms = 20000";
    let draft = Draft::single(listener.local_addr().unwrap()).http2();
    let proxy = Proxy::configured(driver, &draft, more);
    let askers: Vec<_> = (0..50)
        .map(|_| ask_later(&proxy, post(CHAT, UNARY)))
        .collect();
    let mut conn = FrameConn::accept(&listener, None);
    proxy.await_in_flight(50);
    let mut open: Vec<u32> = (0..10).map(|_| conn.request().0).collect();
    // The limit stands below what is open: until that has ended nothing more comes.
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    conn.send(&Frame::settings(&[(MAX_CONCURRENT_STREAMS, 1)]));
    let answer = |conn: &mut FrameConn, stream: u32| {
        conn.send(&Frame::head(stream, &[(":status", "200")], true));
    };
    let fence = |conn: &mut FrameConn| {
        conn.send(&Frame::new(6, 0, 0, [9; 8]));
        loop {
            let frame = conn.any_frame().unwrap();
            assert_ne!(frame.kind, HEADERS, "a stream over the limit");
            if frame.kind == 6 && frame.flags == 1 && frame.payload == [9; 8] {
                return;
            }
        }
    };
    while open.len() > 1 {
        fence(&mut conn);
        answer(&mut conn, open.remove(0));
    }
    fence(&mut conn);
    answer(&mut conn, open.remove(0));
    for _ in 0..5 {
        let (stream, _) = conn.request();
        fence(&mut conn);
        answer(&mut conn, stream);
    }
    // None at all: what waits goes on waiting, and fails neither at once nor for good.
    let (stream, _) = conn.request();
    conn.send(&Frame::settings(&[(MAX_CONCURRENT_STREAMS, 0)]));
    fence(&mut conn);
    answer(&mut conn, stream);
    fence(&mut conn);
    conn.send(&Frame::settings(&[(MAX_CONCURRENT_STREAMS, 100)]));
    let rest: Vec<u32> = (0..34).map(|_| conn.request().0).collect();
    for stream in rest {
        answer(&mut conn, stream);
    }
    for asker in askers {
        assert_eq!(asker.join().unwrap().status(), 200);
    }
    proxy.await_rest();
    proxy.await_metric("pointsman_proxy_retries_total", &[], 0.0);
}

fn a_refused_stream_goes_to_another_engine_and_counts_as_no_failure(driver: Driver) {
    let refusing = Engine2::start(h2::server::Builder::new(), |_, mut answer| async move {
        answer.reset(Reason::REFUSED_STREAM);
    });
    let standby = Engine2::named("standby");
    let draft = Draft::with_standby(refusing.address(), standby.address()).http2();
    let proxy = Proxy::start(driver, &draft);
    let answer = proxy.ask(post(CHAT, UNARY));
    assert_eq!(answer.text(), r#"{"engine":"standby"}"#);
    let labels = [("engine", "E1"), ("outcome", "backpressure")];
    proxy.await_metric("pointsman_proxy_attempts_total", &labels, 1.0);
    proxy.await_metric("pointsman_proxy_retries_total", &[], 1.0);
}

fn an_answer_that_breaks_off_is_shown_broken(driver: Driver) {
    let engine = Engine2::start(h2::server::Builder::new(), |_, mut answer| async move {
        answer.event_stream();
        answer.send(b"data: 1\n\n", false).await;
        // Lets the bytes arrive before the reset does.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        answer.reset(Reason::INTERNAL_ERROR);
    });
    let proxy = Proxy::start(driver, &Draft::single(engine.address()).http2());
    let answer = proxy.ask(chat(true));
    assert_eq!(
        (answer.text(), answer.ending),
        ("data: 1\n\n", Ending::Broken)
    );
    let labels = [("outcome", "mid_stream_reset")];
    proxy.await_metric("pointsman_proxy_attempts_total", &labels, 1.0);
}

fn c10_an_answer_must_have_its_length(driver: Driver) {
    let listener = listener();
    let draft = Draft::single(listener.local_addr().unwrap()).http2();
    let proxy = Proxy::start(driver, &draft);
    let fields = [(":status", "200"), ("content-length", "5")];
    let ends: [&dyn Fn(u32) -> Vec<Frame>; 3] = [
        &|stream| vec![Frame::data(stream, "abc", true)],
        &|stream| {
            vec![
                Frame::data(stream, "abc", false),
                Frame::head(stream, &[("x-trailer", "1")], true),
            ]
        },
        &|stream| vec![Frame::data(stream, "abcdefg", true)],
    ];
    let (sender, asked) = mpsc::channel();
    let address = proxy.address;
    let asker = thread::spawn(move || {
        for () in asked {
            let mut client = Client::connect(address);
            client.send(post(CHAT, UNARY));
            let message = client.response();
            assert!(
                message.status() == 502 || message.ending == Ending::Broken,
                "a wrong length passed: {message:?}"
            );
        }
    });
    sender.send(()).unwrap();
    let mut conn = FrameConn::accept(&listener, Some(&[]));
    for end in ends {
        let (stream, _) = conn.request();
        conn.send(&Frame::head(stream, &fields, false));
        end(stream).iter().for_each(|frame| conn.send(frame));
        sender.send(()).unwrap();
    }
    // A head that ends the stream at once must not promise a body.
    let (stream, _) = conn.request();
    conn.send(&Frame::head(stream, &fields, true));
    drop(sender);
    asker.join().unwrap();
}

fn empty_frames_wear_no_connection_out(driver: Driver) {
    let listener = listener();
    let proxy = Proxy::start(
        driver,
        &Draft::single(listener.local_addr().unwrap()).http2(),
    );
    let asker = ask_later(&proxy, chat(true));
    let mut conn = FrameConn::accept(&listener, Some(&[]));
    let (stream, _) = conn.request();
    let fields = [(":status", "200"), ("content-type", "text/event-stream")];
    conn.send(&Frame::head(stream, &fields, false));
    let mut expected = String::new();
    for n in 0..300 {
        conn.send(&Frame::data(stream, "", false));
        conn.send(&Frame::data(stream, format!("data: {n}\n\n"), false));
        expected += &format!("data: {n}\n\n");
    }
    conn.send(&Frame::data(stream, "", true));
    let answer = asker.join().unwrap();
    assert_eq!(
        (answer.text(), answer.ending),
        (&*expected, Ending::Complete)
    );
}

fn a_connection_is_replaced_after_its_share_of_requests(driver: Driver) {
    let engine = engine();
    let draft = Draft::single(engine.address()).http2();
    let proxy = Proxy::configured(driver, &draft, "[http2]\nengine_requests = 3");
    for _ in 0..9 {
        assert_eq!(proxy.ask(post(CHAT, UNARY)).status(), 200);
    }
    assert_eq!(engine.connections(), 3);
    eventually(SOON, "worn connections end", || {
        (engine.open() == 0).then_some(())
    });
}

fn a_connection_is_replaced_at_its_age(driver: Driver) {
    let engine = engine();
    let draft = Draft::single(engine.address()).http2();
    let proxy = Proxy::configured(driver, &draft, "[http2]\nengine_age_s = 1");
    eventually(SOON, "a second connection", || {
        assert_eq!(proxy.ask(post(CHAT, UNARY)).status(), 200);
        (engine.connections() == 2).then_some(())
    });
    assert_eq!(engine.resets(), []);
    proxy.await_metric("pointsman_proxy_retries_total", &[], 0.0);
}

fn a_dead_engine_is_found_by_a_ping(driver: Driver) {
    let listener = listener();
    let draft = Draft::single(listener.local_addr().unwrap()).http2();
    let proxy = Proxy::configured(driver, &draft, "[http2]\nping_ms = 300");
    let asker = ask_later(&proxy, post(CHAT, UNARY));
    let mut conn = FrameConn::accept(&listener, Some(&[]));
    conn.request();
    // Answers one ping, and is silent to the next.
    let ping = loop {
        let frame = conn.any_frame().unwrap();
        if frame.kind == 6 {
            break frame;
        }
        assert_ne!(frame.kind, DATA);
    };
    conn.send(&Frame::new(6, 1, 0, ping.payload));
    while conn.any_frame().is_some() {}
    assert_eq!(asker.join().unwrap().status(), 502);
    let labels = [("outcome", "reset_before_byte")];
    proxy.await_metric("pointsman_proxy_attempts_total", &labels, 1.0);
}

fn nghttpd_serves_as_an_engine(driver: Driver) {
    if std::process::Command::new("nghttpd")
        .arg("--version")
        .output()
        .is_err()
    {
        eprintln!("nghttpd is not installed: not run");
        return;
    }
    let files = pointsman_tests::folder::Folder::new();
    std::fs::create_dir_all(files.path().join("v1/chat")).unwrap();
    let answer = "{\"an\":\"answer\"}".repeat(10_000);
    std::fs::write(files.path().join(&CHAT[1..]), &answer).unwrap();
    // It takes no socket and tells no port, so one that was free a moment ago has to do.
    let address = listener().local_addr().unwrap();
    let mut nghttpd = std::process::Command::new("nghttpd")
        .args(["--no-tls", "-a", "127.0.0.1", "-d"])
        .arg(files.path())
        .arg(address.port().to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually(SOON, "nghttpd listens", || {
        std::net::TcpStream::connect(address).ok()
    });
    let proxy = Proxy::start(driver, &Draft::single(address).http2());
    for _ in 0..20 {
        let got = proxy.ask(post(CHAT, UNARY));
        assert_eq!(got.status(), 200);
        assert!(got.text() == answer, "the answer changed");
    }
    proxy.await_metric("pointsman_proxy_engine_connections", &[], 1.0);
    nghttpd.kill().unwrap();
    nghttpd.wait().unwrap();
}
