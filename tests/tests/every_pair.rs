//! Bytes through every pair of protocols, with and without TLS on either side: what an engine gets is
//! what the client sent, and what the client gets is what the engine sent. The client is curl, which
//! says itself what it spoke.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::path::Path;
use std::process::Command;

use pointsman_shm::policy::Protocol;
use pointsman_tests::both_drivers;
use pointsman_tests::client::CHAT;
use pointsman_tests::engine::Engine;
use pointsman_tests::engine2::Engine2;
use pointsman_tests::policy::Draft;
use pointsman_tests::process::{Finished, run};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::tls::{Authority, Front, FrontRules};
use pointsman_tests::wait::LONG;

both_drivers!(
    /// D02: bytes and own fields, through all sixteen pairs.
    d02_bytes_cross_every_pair_of_protocols_unchanged,
    /// D03: what the policy is about is refused when it stands twice, in every protocol.
    d03_a_repeated_routing_key_is_refused_in_every_protocol,
);

/// How curl is told to speak, what it then says it spoke, and whether that is inside TLS.
const CLIENTS: [(&str, &str, bool); 4] = [
    ("--http1.1", "1.1", false),
    ("--http2-prior-knowledge", "2", false),
    ("--http1.1", "1.1", true),
    ("--http2", "2", true),
];

/// Engines of both protocols, in the clear and behind TLS: models `m0` to `m3`.
struct World {
    one: Engine,
    two: Engine2,
    fronts: [Front; 2],
    proxy: Proxy,
}

/// What engines answer a request with a body that asks for a stream: bytes of every kind, cut where
/// no event ends.
fn stream_pieces() -> Vec<Vec<u8>> {
    let noise = (0..=255_u8).cycle().take(50_000).collect();
    vec![
        b"data: {\"z\":1,\"t\":0.70,\"s\":\"\xe5\xa5".to_vec(),
        b"\xbd\"}\r\n\r\n: comment\n".to_vec(),
        b"\ndata:x\rda".to_vec(),
        noise,
        b"data: [DONE]\n\n\n".to_vec(),
    ]
}

impl World {
    fn new(driver: Driver) -> Self {
        let one = Engine::serving(|conn, request| {
            if request.text().contains("\"stream\"") {
                conn.send(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Answer:  One  a \r\n\
                     x-answer: two\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\
                     Transfer-Encoding: chunked\r\n\r\n",
                );
                for piece in stream_pieces() {
                    conn.chunk(piece);
                }
                conn.end_stream();
            } else {
                conn.respond(200, request.text());
            }
        });
        let two = Engine2::start(
            h2::server::Builder::new(),
            |request, mut answer| async move {
                let body = String::from_utf8(request.body).unwrap();
                if body.contains("\"stream\"") {
                    let fields = [
                        ("content-type", "text/event-stream"),
                        ("x-answer", "One  a"),
                        ("x-answer", "two"),
                        ("set-cookie", "a=1"),
                        ("set-cookie", "b=2"),
                    ];
                    answer.head(200, &fields);
                    for piece in stream_pieces() {
                        answer.send(&piece, false).await;
                    }
                    answer.trailers(http::HeaderMap::new());
                } else {
                    answer.json(200, &body).await;
                }
            },
        );
        let authority = Authority::new("servers");
        let leaf = authority.leaf(&["engine.test"]);
        let front = |engine, http2| {
            let rules = FrontRules {
                http2,
                ..FrontRules::default()
            };
            Front::start(engine, &leaf, &rules)
        };
        let fronts = [front(one.address(), false), front(two.address(), true)];
        let addresses = [
            (one.address(), Protocol::Http1),
            (two.address(), Protocol::Http2),
            (fronts[0].address(), Protocol::Http1Tls),
            (fronts[1].address(), Protocol::Http2Tls),
        ];
        let mut draft = Draft::new();
        for (at, (address, protocol)) in addresses.into_iter().enumerate() {
            let id = format!("E{at}");
            draft = draft
                .engine(&id, address)
                .route(&format!("m{at}"), &[(&id, 1.0)])
                .with(|policy| {
                    let engine = &mut policy.engines[at];
                    engine.protocol = protocol;
                    if matches!(protocol, Protocol::Http1Tls | Protocol::Http2Tls) {
                        engine.sni = "engine.test".to_owned();
                        engine.credential = "gpu".to_owned();
                    }
                });
        }
        let files = pointsman_tests::folder::Folder::new();
        let ca = files.write("ca.pem", &authority.pem());
        let (cert, key) = authority.leaf(&["127.0.0.1"]).write(files.path(), "own");
        let more = format!(
            "listen_tls = [\"127.0.0.1:0\"]\n[[tls.certificates]]\ncert = \"{}\"\nkey = \"{}\"\n\
             [credentials.gpu]\nca = \"{}\"\n",
            cert.display(),
            key.display(),
            ca.display()
        );
        let proxy = Proxy::configured(driver, &draft, &more);
        std::fs::copy(&ca, proxy.folder().path().join("ca.pem")).unwrap();
        Self {
            one,
            two,
            fronts,
            proxy,
        }
    }

    /// Posts `body` and gives back the head's lines and the answer's bytes; the status is `status`.
    fn post(
        &self,
        (how, version, secure): (&str, &str, bool),
        body: &[u8],
        status: u16,
    ) -> (Vec<String>, Vec<u8>) {
        let folder = self.proxy.folder().path();
        let path = |name: &str| folder.join(name);
        std::fs::write(path("body"), body).unwrap();
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "60", how]);
        command.args(["-H", "Content-Type: application/json", "-H", "Expect:"]);
        for field in ["X-Own: One  a", "x-own: two", "Cookie: a=1; b=2", "X-None;"] {
            command.args(["-H", field]);
        }
        let data = format!("@{}", path("body").display());
        command.args(["--data-binary", &data]);
        command.args(["-w", "%{http_version} %{http_code}"]);
        command
            .arg("-o")
            .arg(path("got"))
            .arg("-D")
            .arg(path("head"));
        command.arg("--cacert").arg(path("ca.pem"));
        let (scheme, address) = match secure {
            true => ("https", self.proxy.secure()),
            false => ("http", self.proxy.address),
        };
        command.arg(format!("{scheme}://{address}{CHAT}"));
        let finished: Finished = run(command, LONG);
        assert_eq!(finished.code, 0, "{how}: {finished:?}");
        assert_eq!(finished.stdout, format!("{version} {status}"));
        (lines(&path("head")), std::fs::read(path("got")).unwrap())
    }

    /// The body and the own fields of the last request at the engine of `model`, and how many came.
    fn last(&self, model: usize) -> (Vec<u8>, Vec<String>, usize) {
        match model % 2 {
            0 => {
                let requests = self.one.requests();
                let request = requests.last().unwrap();
                let fields = request.headers.iter();
                let fields = fields.map(|(name, value)| own(name, value)).collect();
                (request.body.clone(), fields, requests.len())
            }
            _ => {
                let requests = self.two.requests();
                let request = requests.last().unwrap();
                let fields = request.head.headers().iter();
                let fields =
                    fields.map(|(name, value)| own(name.as_str(), value.to_str().unwrap()));
                (request.body.clone(), fields.collect(), requests.len())
            }
        }
    }
}

fn own(name: &str, value: &str) -> String {
    format!("{}: {value}", name.to_ascii_lowercase())
}

fn lines(path: &Path) -> Vec<String> {
    let head = std::fs::read_to_string(path).unwrap();
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    fields
        .map(|(name, value)| own(name, value.trim()))
        .collect()
}

/// Those of `lines` whose names are `names`, in order.
fn of(lines: &[String], names: &[&str]) -> Vec<String> {
    let is_named = |line: &&String| names.contains(&line.split(':').next().unwrap_or_default());
    lines.iter().filter(is_named).cloned().collect()
}

/// A body that a parser would not write again as it stands: order, numbers, escapes, a key that
/// stands twice and that nobody routes by, unknown fields, white space, an end of line.
fn odd(model: usize, more: &str, filler: usize) -> String {
    format!(
        "\t{{ \"zebra\":1,\"apple\" : 0.70, \"n\":[1e400,1.0,-0,1E+2,12345678901234567890],\r\n\
         \"model\":\"m{model}\",\"s\":\"\\u00e9\\/\\ud83d\\ude42\\u0000 é🙂\u{7f}\",\"dup\":1,\"dup\":2,\
         \"vendor\":{{\"b\":{{}},\"a\":[ ]}},{more}\"messages\":[],\"f\":\"{}\"}}  \n",
        "x".repeat(filler)
    )
}

fn d02_bytes_cross_every_pair_of_protocols_unchanged(driver: Driver) {
    let world = World::new(driver);
    let streamed: Vec<u8> = stream_pieces().concat();
    for client in CLIENTS {
        for model in 0..4 {
            let pair = format!("{client:?} to m{model}");
            for filler in [0, 300_000] {
                let body = odd(model, "", filler);
                let (head, got) = world.post(client, body.as_bytes(), 200);
                let (sent, fields, _) = world.last(model);
                assert!(sent == body.as_bytes(), "{pair}, {filler}: the engine's");
                assert!(got == body.as_bytes(), "{pair}, {filler}: the client's");
                let expected = [
                    "x-own: One  a",
                    "x-own: two",
                    "cookie: a=1; b=2",
                    "x-none: ",
                ];
                let mut own = of(&fields, &["x-own", "cookie", "x-none"]);
                own.sort();
                let mut expected: Vec<String> = expected.map(str::to_owned).into();
                expected.sort();
                assert_eq!(own, expected, "{pair}");
                assert_eq!(of(&head, &["x-request-id"]).len(), 1, "{pair}");
            }
            let body = odd(model, "\"stream\":true,", 0);
            let (head, got) = world.post(client, body.as_bytes(), 200);
            assert!(got == streamed, "{pair}: the stream");
            assert!(world.last(model).0 == body.as_bytes(), "{pair}");
            let expected = ["x-answer: One  a", "x-answer: two"];
            assert_eq!(of(&head, &["x-answer"]), expected, "{pair}");
            let expected = ["set-cookie: a=1", "set-cookie: b=2"];
            assert_eq!(of(&head, &["set-cookie"]), expected, "{pair}");
        }
    }
    // Each engine got its share: two pairs of four, three requests each.
    assert_eq!((world.last(0).2, world.last(1).2), (24, 24));
    assert!(world.fronts.iter().all(|front| front.failures().is_empty()));
    world.proxy.await_rest();
}

fn d03_a_repeated_routing_key_is_refused_in_every_protocol(driver: Driver) {
    let world = World::new(driver);
    for client in CLIENTS {
        for model in 0..4 {
            for more in [
                "\"mod\\u0065l\":\"m0\",",
                "\"stream\":true,\"stream\":true,",
            ] {
                let (_, got) = world.post(client, odd(model, more, 0).as_bytes(), 400);
                let answer: serde_json::Value = serde_json::from_slice(&got).unwrap();
                assert_eq!(answer["error"]["type"], "invalid_request_error");
            }
        }
    }
    assert!(world.one.requests().is_empty() && world.two.requests().is_empty());
    world.proxy.await_rest();
}
