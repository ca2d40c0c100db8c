//! What an HTTP/2 client may do, but not without end: resets, heads that grow, frames that do nothing.

use std::io::Write as _;

use pointsman_tests::both_drivers;
use pointsman_tests::client::UNARY;
use pointsman_tests::engine::Engine;
use pointsman_tests::engine2::Engine2;
use pointsman_tests::frames::{
    CONTINUATION, END_HEADERS, END_STREAM, Frame, FrameConn, GOAWAY, HEADERS, PING, PRIORITY,
    RST_STREAM, hpack,
};
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually_equals};

const PROTOCOL_ERROR: u32 = 1;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

both_drivers!(
    /// C03: resets that a client makes, or makes us make, have a bound.
    c03_too_many_resets_end_the_connection,
    /// C03: each of them as often as is configured, and no more.
    c03_each_way_to_force_a_reset_has_its_bound,
    /// C04: heads have a bound in bytes and in frames.
    c04_endless_heads_end_the_connection,
    /// C16: frames that do nothing have a bound.
    c16_floods_end_the_connection,
);

fn c03_too_many_resets_end_the_connection(driver: Driver) {
    let engine = Engine2::start(h2::server::Builder::new(), |_, mut answer| async move {
        answer.await_reset().await;
    });
    let draft = Draft::single(engine.address()).http2();
    let proxy = Proxy::configured(driver, &draft, "[http2]\nresets = 40");
    let mut conn = FrameConn::connect(proxy.address, &[]);
    for n in 0..200 {
        let stream = 2 * n + 1;
        let ask = conn.try_send(&Frame::chat(stream, false))
            && conn.try_send(&Frame::data(stream, UNARY, true));
        if !ask || !conn.try_send(&Frame::reset(stream, CANCEL)) {
            break;
        }
    }
    assert_eq!(
        conn.ending(),
        Some(ENHANCE_YOUR_CALM),
        "resets by the client"
    );
    // Resets that its mistakes make us make.
    let mut conn = FrameConn::connect(proxy.address, &[]);
    for n in 0..200 {
        let stream = 2 * n + 1;
        // A window over what a window can be.
        let overflow = Frame::window(stream, 0x7fff_ffff);
        if !conn.try_send(&Frame::chat(stream, false)) || !conn.try_send(&overflow) {
            break;
        }
    }
    assert_eq!(conn.ending(), Some(ENHANCE_YOUR_CALM), "resets by us");
    eventually_equals(SOON, "requests in flight", &0.0, || {
        proxy.metrics().sum("pointsman_proxy_engine_in_flight", &[])
    });
}

/// Does something again and again, each time heard by the proxy, on streams 1, 3, 5 and so on: how
/// often until it ends the connection, and with which code.
fn until_ended(conn: &mut FrameConn, frames: impl Fn(u32) -> Vec<Frame>) -> (u32, Option<u32>) {
    for n in 0..300 {
        let stream = 2 * n + 1;
        let mark = Frame::new(PING, 0, 0, u64::from(stream).to_be_bytes());
        let sent = frames(stream)
            .iter()
            .chain([&mark])
            .all(|frame| conn.try_send(frame));
        if !sent {
            return (n, conn.ending());
        }
        loop {
            match conn.any_frame() {
                Some(frame) if frame.kind == PING && frame.payload == mark.payload => break,
                Some(frame) if frame.kind == GOAWAY => return (n + 1, Some(frame.code())),
                Some(_) => {}
                None => return (n + 1, None),
            }
        }
    }
    (300, None)
}

fn c03_each_way_to_force_a_reset_has_its_bound(driver: Driver) {
    let engine = Engine2::start(h2::server::Builder::new(), |_, mut answer| async move {
        answer.await_reset().await;
    });
    let draft = Draft::single(engine.address()).http2();
    let more = "[http2]\nresets = 40\nclient_streams = 20";
    let proxy = Proxy::configured(driver, &draft, more);
    let asked = |stream| vec![Frame::chat(stream, false), Frame::data(stream, UNARY, true)];
    let then = |stream, frame| [asked(stream), vec![frame]].concat();
    let on_itself = |stream: u32| [&stream.to_be_bytes()[..], &[1]].concat();
    type Way<'a> = (&'a str, &'a dyn Fn(u32) -> Vec<Frame>, u32, u32);
    let ways: [Way; 7] = [
        (
            "a reset",
            &|n| then(n, Frame::reset(n, CANCEL)),
            41,
            ENHANCE_YOUR_CALM,
        ),
        (
            "a window too large",
            &|n| then(n, Frame::window(n, 0x7fff_ffff)),
            41,
            ENHANCE_YOUR_CALM,
        ),
        (
            "a priority on itself",
            &|n| then(n, Frame::new(PRIORITY, 0, n, on_itself(n))),
            41,
            ENHANCE_YOUR_CALM,
        ),
        (
            "heads beyond twenty streams",
            &|n| vec![Frame::chat(n, false)],
            61,
            ENHANCE_YOUR_CALM,
        ),
        // Data on a refused stream is one more reset.
        (
            "requests beyond twenty streams",
            &asked,
            40,
            ENHANCE_YOUR_CALM,
        ),
        (
            "a window of nothing",
            &|n| then(n, Frame::window(n, 0)),
            1,
            PROTOCOL_ERROR,
        ),
        (
            "data behind the end",
            &|n| then(n, Frame::data(n, "x", false)),
            1,
            PROTOCOL_ERROR,
        ),
    ];
    for (what, way, often, code) in ways {
        let mut conn = FrameConn::connect(proxy.address, &[]);
        let (found, ended_by) = until_ended(&mut conn, way);
        // The allowance of what the client resets itself comes back, one a second.
        let most = if often == 1 { 1 } else { often + 15 };
        assert!(
            (often..=most).contains(&found),
            "{what}: {found}, not {often}"
        );
        assert_eq!(ended_by, Some(code), "{what}");
        // What ran for it at the engine is ended, too.
        proxy.await_metric("pointsman_proxy_in_flight", &[], 0.0);
    }
    proxy.await_rest();
}

fn c04_endless_heads_end_the_connection(driver: Driver) {
    let engine = Engine::named("E1");
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let open = |proxy: &Proxy| {
        let mut conn = FrameConn::connect(proxy.address, &[]);
        conn.send(&Frame::new(
            HEADERS,
            END_STREAM,
            1,
            hpack(&[(":method", "POST")]),
        ));
        conn
    };
    for payload in [
        Vec::new(),
        hpack(&[("x-filler", &"y".repeat(100))]).repeat(100),
    ] {
        let mut conn = open(&proxy);
        let frame = Frame::new(CONTINUATION, 0, 1, payload);
        let sent = (0..10_000).take_while(|_| conn.try_send(&frame)).count();
        assert!(sent < 10_000, "an endless head was taken");
    }
    // Entries that cost three bytes and count 32.
    let mut conn = FrameConn::connect(proxy.address, &[]);
    let mut block = hpack(&[(":method", "POST"), (":scheme", "http"), (":path", "/")]);
    block.extend_from_slice(&[0, 1, b'x', 0].repeat(4_000));
    conn.send(&Frame::new(HEADERS, END_HEADERS | END_STREAM, 1, block));
    let frame = conn.await_frame(|f| matches!(f.kind, RST_STREAM | HEADERS | GOAWAY));
    assert_eq!(frame.stream & 1, u32::from(frame.kind != GOAWAY));
    assert_eq!(engine.requests().len(), 0);
}

fn c16_floods_end_the_connection(driver: Driver) {
    let engine = Engine::named("E1");
    let draft = Draft::single(engine.address());
    let proxy = Proxy::configured(driver, &draft, "[http2]\ncontrol_frames = 100");
    let floods = [
        Frame::new(PING, 0, 0, [1; 8]),
        Frame::settings(&[(4, 65_535)]),
        Frame::new(PRIORITY, 0, 5, [0, 0, 0, 0, 1]),
        Frame::new(99, 0, 0, []),
    ];
    for (count, frame) in floods.iter().enumerate() {
        let mut conn = FrameConn::connect(proxy.address, &[]);
        // Sent without reading, so that what answers them piles up.
        let bytes = frame.bytes().repeat(1_000);
        let _ = conn.socket().write_all(&bytes);
        let code = conn.ending();
        assert!(
            code.is_none_or(|code| code == ENHANCE_YOUR_CALM),
            "{frame:?} ended by {code:?}"
        );
        let ended = count as f64 + 1.0;
        proxy.await_metric("pointsman_proxy_floods_total", &[], ended);
    }
    let mut conn = FrameConn::connect(proxy.address, &[]);
    conn.send(&Frame::chat(1, false));
    let empty = Frame::data(1, "", false);
    let sent = (0..10_000).take_while(|_| conn.try_send(&empty)).count();
    assert!(sent < 10_000, "empty frames were taken for ever");
    proxy.await_metric("pointsman_proxy_client_connections", &[], 0.0);
}
