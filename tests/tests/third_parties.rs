//! Servers and clients of others that speak HTTP/2, as real processes: Envoy and nghttpd as engines, in
//! the clear and with TLS, h2load and curl as clients.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pointsman_shm::policy::Protocol;
use pointsman_tests::both_drivers;
use pointsman_tests::client::{CHAT, STREAMED, UNARY, ask, chat, get, post};
use pointsman_tests::engine::{Engine, Gate};
use pointsman_tests::engine2::Engine2;
use pointsman_tests::folder::Folder;
use pointsman_tests::locate::envoy;
use pointsman_tests::policy::Draft;
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::sys::die_with_parent;
use pointsman_tests::tls::Authority;
use pointsman_tests::wait::{LONG, SOON, eventually, eventually_equals};
use pointsman_tests::wire::Ending;

both_drivers!(
    envoy_serves_as_an_engine_and_before_one,
    nghttpd_serves_as_an_engine_over_tls,
    h2load_fails_no_request_over_tls,
);

/// The path that Envoy answers by itself.
const OWN: &str = "/v1/completions";

/// A process that ends with its test.
struct Running(Child);

impl Running {
    fn start(mut command: Command, log: &Path) -> Self {
        let log = std::fs::File::create(log).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        die_with_parent(&mut command);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The proxy's side of TLS with engines: an authority, what it signed for them, and where both lie.
struct Trust {
    files: Folder,
}

impl Trust {
    fn new() -> Self {
        let files = Folder::new();
        let authority = Authority::new("servers");
        let _ = files.write("ca.pem", &authority.pem());
        let _ = authority.leaf(&["engine.test"]).write(files.path(), "leaf");
        let _ = authority.leaf(&["127.0.0.1"]).write(files.path(), "own");
        Self { files }
    }

    fn path(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    /// More of `proxy.toml`: the credential `gpu`, and TLS with clients.
    fn more(&self) -> String {
        format!(
            "listen_tls = [\"127.0.0.1:0\"]\n[[tls.certificates]]\ncert = \"{}\"\nkey = \"{}\"\n\
             [credentials.gpu]\nca = \"{}\"\n",
            self.path("own.pem"),
            self.path("own.key"),
            self.path("ca.pem")
        )
    }
}

/// Model `m` on an engine that speaks HTTP/2.
fn draft(address: SocketAddr, secure: bool) -> Draft {
    Draft::single(address).http2().with(|policy| {
        if secure {
            policy.engines[0].protocol = Protocol::Http2Tls;
            policy.engines[0].sni = "engine.test".to_owned();
            policy.engines[0].credential = "gpu".to_owned();
        }
    })
}

/// What Envoy says by itself.
fn own_answer() -> String {
    "{\"an\":\"answer of its own\"}".repeat(100)
}

/// One listener of Envoy's: it takes HTTP/2 alone, at most eight streams at once, answers [`OWN`]
/// itself and takes everything else to `mock`.
fn listener(name: &str, tls: &str) -> String {
    let answer = own_answer();
    format!(
        r#"
  - name: {name}
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: {name}
          codec_type: HTTP2
          http2_protocol_options: {{ max_concurrent_streams: 8 }}
          stream_idle_timeout: 0s
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{ path: {OWN} }}
                direct_response: {{ status: 200, body: {{ inline_string: '{answer}' }} }}
              - match: {{ prefix: / }}
                route: {{ cluster: mock, timeout: 0s }}
{tls}"#
    )
}

/// Starts Envoy before `mock`, with a listener in the clear and one with TLS, and gives back both
/// addresses.
fn start_envoy(mock: SocketAddr, trust: &Trust) -> (Running, SocketAddr, SocketAddr) {
    let tls = format!(
        r#"      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            alpn_protocols: [h2]
            tls_certificates:
            - certificate_chain: {{ filename: {} }}
              private_key: {{ filename: {} }}
"#,
        trust.path("leaf.pem"),
        trust.path("leaf.key")
    );
    let config = format!(
        r#"
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: 0 }} }} }}
static_resources:
  listeners:{}{}
  clusters:
  - name: mock
    type: STATIC
    load_assignment:
      cluster_name: mock
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }} }}
"#,
        listener("clear", ""),
        listener("secure", &tls),
        mock.port()
    );
    let config = trust.files.write("envoy.yaml", &config);
    let (admin, log) = (trust.path("admin"), trust.path("envoy.log"));
    let mut command = Command::new(envoy());
    command.args(["--disable-hot-restart", "--concurrency", "1", "-l", "warn"]);
    command
        .arg("-c")
        .arg(config)
        .args(["--admin-address-path", &admin]);
    let mut running = Running::start(command, Path::new(&log));
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let admin: SocketAddr = eventually(LONG, "Envoy says where it is asked", || {
        let ended = running.0.try_wait().unwrap();
        assert!(ended.is_none(), "Envoy ended: {}", said());
        std::fs::read_to_string(&admin).ok()?.trim().parse().ok()
    });
    let addresses = eventually(SOON, "Envoy listens", || {
        let page = get(admin, "/listeners?format=json").json();
        let of = |name: &str| {
            let all = page["listener_statuses"].as_array()?;
            let one = all.iter().find(|one| one["name"] == name)?;
            let port = one["local_address"]["socket_address"]["port_value"].as_u64()?;
            Some(SocketAddr::from((
                [127, 0, 0, 1],
                u16::try_from(port).ok()?,
            )))
        };
        Some((of("clear")?, of("secure")?))
    });
    (running, addresses.0, addresses.1)
}

fn envoy_serves_as_an_engine_and_before_one(driver: Driver) {
    let gate = Gate::new();
    let at = gate.clone();
    let mock = Engine::serving(move |conn, request| {
        if request.text().contains("\"stream\"") {
            conn.stream_head();
            conn.chunk("data: first\n\n");
            if conn.wait_at(&at) {
                conn.chunk("data: last\n\n");
                conn.end_stream();
            }
        } else {
            conn.respond(200, request.text());
        }
    });
    let trust = Trust::new();
    let (_envoy, clear, secure) = start_envoy(mock.address(), &trust);
    for (address, is_secure) in [(clear, false), (secure, true)] {
        let proxy = Proxy::configured(driver, &draft(address, is_secure), &trust.more());
        for _ in 0..20 {
            let answer = proxy.ask(post(OWN, UNARY));
            assert_eq!((answer.status(), answer.text()), (200, &*own_answer()));
        }
        // More at once than it allows on a connection: none fails. What it refuses, because it was asked
        // before it had said how many it allows, is tried again.
        std::thread::scope(|scope| {
            for n in 0..40 {
                let address = proxy.address;
                scope.spawn(move || {
                    let body = format!(r#"{{"model":"m","n":{n},"x":"{}"}}"#, "x".repeat(100_000));
                    let answer = ask(address, post(CHAT, &body));
                    assert_eq!(answer.status(), 200);
                    assert!(answer.text() == body, "{n}: the body changed");
                });
            }
        });
        // A client that leaves in mid-stream ends the work behind Envoy.
        let ended = mock.ended_by_peer();
        let mut client = proxy.connect();
        client.send(post(CHAT, STREAMED));
        let mut answer = client.head();
        client.read_ahead(10);
        drop(client);
        eventually_equals(SOON, "the work is ended", &(ended + 1), || {
            mock.ended_by_peer()
        });
        // An event arrives while the next one is not made yet.
        let mut client = proxy.connect();
        client.send(chat(true));
        answer.clone_from(&client.head());
        client.read_ahead(10);
        gate.open();
        client.body(&mut answer);
        assert_eq!(answer.text(), "data: first\n\ndata: last\n\n");
        assert_eq!(answer.ending, Ending::Complete);
        drop(client);
        proxy.await_rest();
        gate.close();
    }
}

/// An address that was free a moment ago, for what takes no socket and tells no port.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn is_installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("{program} is not installed: not run");
    }
    found
}

fn nghttpd_serves_as_an_engine_over_tls(driver: Driver) {
    if !is_installed("nghttpd") {
        return;
    }
    let trust = Trust::new();
    let root = trust.files.path().join("root");
    std::fs::create_dir_all(root.join("v1/chat")).unwrap();
    let answer = "{\"an\":\"answer\"}".repeat(10_000);
    std::fs::write(root.join(&CHAT[1..]), &answer).unwrap();
    let address = free_address();
    let mut command = Command::new("nghttpd");
    command.args(["-a", "127.0.0.1", "-d"]).arg(&root);
    command.arg(address.port().to_string());
    command.args([trust.path("leaf.key"), trust.path("leaf.pem")]);
    let _nghttpd = Running::start(command, Path::new(&trust.path("nghttpd.log")));
    eventually(SOON, "nghttpd listens", || TcpStream::connect(address).ok());
    let proxy = Proxy::configured(driver, &draft(address, true), &trust.more());
    for _ in 0..20 {
        let got = proxy.ask(post(CHAT, UNARY));
        assert_eq!(got.status(), 200);
        assert!(got.text() == answer, "the answer changed");
    }
    proxy.await_metric("pointsman_proxy_engine_connections", &[], 1.0);
    proxy.await_rest();
}

fn h2load_fails_no_request_over_tls(driver: Driver) {
    if !is_installed("h2load") {
        return;
    }
    let engine = Engine2::named("two");
    let trust = Trust::new();
    let proxy = Proxy::configured(driver, &draft(engine.address(), false), &trust.more());
    let body = proxy.folder().write("body.json", UNARY);
    let output = Command::new("h2load")
        .args(["-n", "10000", "-c", "2", "-m", "100", "-d"])
        .arg(body)
        .args(["-H", "content-type: application/json"])
        .arg(format!("https://{}{CHAT}", proxy.secure()))
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    for expected in [
        "Application protocol: h2",
        "10000 succeeded, 0 failed, 0 errored, 0 timeout",
        "status codes: 10000 2xx",
    ] {
        assert!(report.contains(expected), "{expected} is not in: {report}");
    }
    assert_eq!(engine.requests().len(), 10_000);
    proxy.await_rest();
}
