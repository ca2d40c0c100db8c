//! The scraper against scripted engines, one round at a time.

use super::*;
use crate::collect::scripted::{Server, Step, answer, ok};

const GOOD: &str = "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n";

fn target(address: &str) -> Target {
    Target {
        engine: "e".into(),
        address: address.into(),
        authority: "engine.example".into(),
        health_path: "/health".into(),
        metrics_path: Some("/metrics".into()),
        greeting: Greeting::Clear(Credential::default()),
    }
}

/// An engine that is well and whose page is made by `page`.
async fn engine(page: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static) -> (Server, Bench) {
    let server = Server::start(move |path, number| match path {
        "/health" => ok(""),
        _ => page(number),
    })
    .await;
    let bench = Bench::new(&server);
    (server, bench)
}

struct Bench {
    scraper: Scraper,
    addresses: Vec<SocketAddr>,
    metrics: Arc<Metrics>,
    board: Arc<Board>,
}

impl Bench {
    fn new(server: &Server) -> Self {
        let (board, metrics) = (Arc::new(Board::default()), Arc::new(Metrics::default()));
        let scraper = Scraper::new(
            target(&server.address.to_string()),
            board.clone(),
            metrics.clone(),
        );
        Self {
            scraper,
            addresses: vec![server.address],
            metrics,
            board,
        }
    }

    async fn round_within(&mut self, limit: Duration) -> Observation {
        self.scraper
            .round(&self.addresses, Instant::now() + limit)
            .await;
        self.board.observation("e")
    }

    /// A round with more time than any answer here takes.
    async fn round(&mut self) -> Observation {
        self.round_within(Duration::from_secs(20)).await
    }

    fn errors(&self, reason: Reason) -> f64 {
        self.metrics
            .value(&metrics::SCRAPE_ERRORS, &["e", reason.name()])
            .unwrap_or(0.0)
    }
}

#[tokio::test]
async fn g09_one_connection_no_encoding_no_redirect() {
    let (server, mut bench) = engine(|_| ok(GOOD)).await;
    for _ in 0..5 {
        let seen = bench.round().await;
        assert_eq!(seen.health, Health::Up);
        assert_eq!(seen.readings.count(Signal::Running), Some(3));
        assert_eq!(seen.readings.count(Signal::Waiting), Some(2));
        assert_eq!(seen.readings.value(Signal::KvUse), None);
    }
    let requests = server.seen();
    assert_eq!(requests.len(), 10);
    assert!(requests.iter().all(|request| request.connection == 0));
    assert_eq!(bench.scraper.client.opened(), 1);
    for request in requests {
        let head = request.head.to_ascii_lowercase();
        assert!(!head.contains("accept-encoding"), "{head}");
        assert!(head.contains("\r\nhost: engine.example\r\n"), "{head}");
    }
    assert_eq!(bench.metrics.value(&metrics::SCRAPES, &["e"]), Some(5.0));
    assert_eq!(bench.metrics.value(&metrics::ENGINE_UP, &["e"]), Some(1.0));
    assert_eq!(
        bench
            .metrics
            .value(&metrics::SIGNAL_ABSENT, &["e", "kv_use"]),
        Some(1.0)
    );
    assert_eq!(
        bench
            .metrics
            .value(&metrics::SIGNAL_ABSENT, &["e", "running"]),
        Some(0.0)
    );
}

#[tokio::test]
async fn g09_a_kept_connection_that_the_engine_dropped_is_replaced() {
    let (_server, mut bench) = engine(|_| {
        let mut steps = ok(GOOD);
        steps.push(Step::Close);
        steps
    })
    .await;
    for _ in 0..3 {
        let seen = bench.round().await;
        assert_eq!(seen.health, Health::Up);
        assert_eq!(seen.scrape_error, None);
    }
    assert_eq!(bench.scraper.client.opened(), 3);
}

#[tokio::test]
async fn g06_a_stalled_page_times_out_and_health_stays_up() {
    for stall in [
        vec![Step::Stall],
        vec![
            Step::Send("HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n".into()),
            Step::Stall,
        ],
    ] {
        let (server, mut bench) = engine(move |_| stall.clone()).await;
        let mut health_checks = 0;
        for _ in 0..4 {
            let seen = bench.round_within(Duration::from_millis(300)).await;
            assert_eq!(seen.scrape_error, Some(Reason::Timeout));
            assert_eq!(
                seen.health,
                Health::Up,
                "a timeout of /metrics alone says nothing"
            );
            health_checks += 1;
            assert_eq!(
                server.count("/health"),
                health_checks,
                "health is asked every round"
            );
        }
        assert_eq!(bench.errors(Reason::Timeout), 4.0);
        assert_eq!(bench.board.observation("e").load_at, None);
        assert_eq!(bench.scraper.pace.pause(), Duration::ZERO);
    }
}

#[tokio::test]
async fn g06_a_dripping_page_times_out() {
    let (_server, mut bench) = engine(|_| {
        let mut steps = vec![Step::Send(format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
            GOOD.len()
        ))];
        for byte in GOOD.chars() {
            steps.push(Step::Send(byte.to_string()));
            steps.push(Step::Pause(Duration::from_secs(1)));
        }
        steps
    })
    .await;
    let seen = bench.round_within(Duration::from_millis(300)).await;
    assert_eq!(
        (seen.scrape_error, seen.health),
        (Some(Reason::Timeout), Health::Up)
    );
    assert_eq!(seen.load_at, None);
}

#[tokio::test]
async fn g06_a_page_that_breaks_off_counts_up_to_its_last_full_line() {
    let partial = "vllm:num_requests_running 3\nvllm:num_requests_wai";
    let cut = |end: Step| {
        move |_| {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 4000\r\n\r\n";
            let pause = Step::Pause(Duration::from_millis(50));
            vec![Step::Send(format!("{head}{partial}")), pause, end.clone()]
        }
    };
    for end in [Step::Close, Step::Reset] {
        let (_server, mut bench) = engine(cut(end)).await;
        let seen = bench.round().await;
        assert_eq!(seen.scrape_error, Some(Reason::Truncated));
        assert_eq!(seen.readings.count(Signal::Running), Some(3));
        assert_eq!(seen.readings.count(Signal::Waiting), None);
        assert_eq!(seen.health, Health::Up);
        assert_eq!(bench.errors(Reason::Truncated), 1.0);
    }
    // The same in a page that says it is whole.
    let (_server, mut bench) = engine(move |_| ok(partial)).await;
    let seen = bench.round().await;
    assert_eq!(seen.scrape_error, Some(Reason::Truncated));
    assert_eq!(seen.readings.count(Signal::Running), Some(3));
}

#[tokio::test]
async fn g06_a_page_over_the_bound_is_cut() {
    let (_server, mut bench) = engine(|_| {
        let filler = "other_total 1\n".repeat(PAGE_BYTES / 14 + 10);
        ok(&format!("{GOOD}{filler}"))
    })
    .await;
    let seen = bench.round().await;
    assert_eq!(seen.scrape_error, Some(Reason::Truncated));
    assert_eq!(seen.readings.count(Signal::Waiting), Some(2));
}

#[tokio::test]
async fn g08_a_wrong_path_or_port_backs_off_and_is_named() {
    let cases: [(Vec<Step>, Reason); 7] = [
        (answer("404 Not Found", "", "no"), Reason::NotFound),
        (answer("401 Unauthorized", "", ""), Reason::Unauthorized),
        (answer("403 Forbidden", "", ""), Reason::Unauthorized),
        (
            answer("200 OK", "content-type: text/html\r\n", "<html>\n"),
            Reason::NotExposition,
        ),
        (ok("Please log in first\n"), Reason::NotExposition),
        (
            answer(
                "307 Temporary Redirect",
                "location: http://127.0.0.1:1/\r\n",
                "",
            ),
            Reason::Redirect,
        ),
        // What a TLS port says to a request in the clear.
        (
            vec![Step::Send("\x15\x03\x01\0\x02\x02\x16".into()), Step::Close],
            Reason::Protocol,
        ),
    ];
    for (steps, reason) in cases {
        let (server, mut bench) = engine(move |_| steps.clone()).await;
        for _ in 0..3 {
            let seen = bench.round().await;
            assert_eq!(seen.scrape_error, Some(reason));
            assert_eq!(seen.health, Health::Up, "{reason:?}");
        }
        assert_eq!(
            server.count("/metrics"),
            1,
            "{reason:?}: the pause is five seconds or more"
        );
        assert_eq!(server.count("/health"), 3);
        assert_eq!(server.seen().len(), 4, "{reason:?}: nothing else was asked");
        assert_eq!(bench.errors(reason), 1.0);
        assert!(bench.scraper.pace.pause() >= Duration::from_secs(5));
    }
}

#[tokio::test]
async fn g10_an_empty_page_is_absent_signals_not_zero() {
    for body in [
        "",
        "# nothing yet\n",
        "python_gc_collections_total{generation=\"0\"} 5\n",
    ] {
        let (_server, mut bench) = engine(move |_| ok(body)).await;
        let seen = bench.round().await;
        assert_eq!(
            (seen.scrape_error, seen.health),
            (None, Health::Up),
            "{body:?}"
        );
        assert!(seen.load_at.is_some());
        assert_eq!(seen.readings.absent().count(), Signal::COUNT);
        assert_eq!(
            bench
                .metrics
                .value(&metrics::SIGNAL_ABSENT, &["e", "running"]),
            Some(1.0)
        );
    }
}

#[tokio::test]
async fn g04_an_engine_restart_is_seen_and_its_ratios_stay_sane() {
    let (_server, mut bench) = engine(|number| {
        let (queries, hits) = [(100, 10), (200, 60), (50, 40), (50, 40), (150, 65)][number];
        ok(&format!(
            "vllm:prefix_cache_queries_total {queries}\nvllm:prefix_cache_hits_total {hits}\n"
        ))
    })
    .await;
    let mut ratios = Vec::new();
    for _ in 0..5 {
        ratios.push(bench.round().await.prefix_hit_ratio);
    }
    // The third page is of a new process: its values are the difference. The fourth saw nothing.
    assert_eq!(ratios, [None, Some(0.5), Some(0.8), Some(0.8), Some(0.25)]);
    assert_eq!(bench.board.observation("e").restarts, 1);
    assert_eq!(
        bench.metrics.value(&metrics::ENGINE_RESTARTS, &["e"]),
        Some(1.0)
    );
}

#[tokio::test]
async fn a_refused_connection_is_down_at_once_and_heals() {
    let (server, mut bench) = engine(|_| ok(GOOD)).await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    bench.addresses = vec![closed];
    assert_eq!(bench.round().await.health, Health::Down);
    assert_eq!(bench.metrics.value(&metrics::ENGINE_UP, &["e"]), Some(0.0));
    assert_eq!(bench.errors(Reason::Refused), 1.0);
    // A second address behind the same name is tried in the same round.
    bench.addresses = vec![closed, server.address];
    let seen = bench.round().await;
    assert_eq!((seen.health, seen.scrape_error), (Health::Up, None));
    assert_eq!(bench.metrics.value(&metrics::ENGINE_UP, &["e"]), Some(1.0));
}

#[tokio::test]
async fn an_unwell_answer_is_down_after_two() {
    let server = Server::start(|path, number| match (path, number) {
        ("/health", 0 | 3..) => ok(""),
        ("/health", _) => answer("503 Service Unavailable", "", "loading"),
        _ => ok(GOOD),
    })
    .await;
    let mut bench = Bench::new(&server);
    let mut healths = Vec::new();
    for _ in 0..4 {
        healths.push(bench.round().await.health);
    }
    assert_eq!(healths, [Health::Up, Health::Up, Health::Down, Health::Up]);
    assert_eq!(bench.scraper.client.opened(), 1);
}

#[tokio::test]
async fn e18_a_moved_engine_is_asked_at_its_new_address() {
    let (old, mut bench) = engine(|_| ok("vllm:num_requests_running 1\n")).await;
    let (new, _) = engine(|_| ok("vllm:num_requests_running 9\n")).await;
    assert_eq!(bench.round().await.readings.count(Signal::Running), Some(1));
    bench.addresses = vec![new.address];
    assert_eq!(bench.round().await.readings.count(Signal::Running), Some(9));
    assert_eq!(old.count("/metrics"), 1);
    // No address at all, before the first good lookup, is no verdict on the engine.
    bench.addresses = vec![];
    let seen = bench.round().await;
    assert_eq!(
        (seen.health, seen.scrape_error),
        (Health::Up, Some(Reason::Unreachable))
    );
}

#[tokio::test]
async fn g09_rounds_never_overlap_and_an_engine_of_another_protocol_is_not_asked() {
    let (server, bench) =
        engine(|_| vec![Step::Pause(Duration::from_millis(60)), Step::Stall]).await;
    let names = Arc::new(Names::default());
    // The timeout is longer than the period: it is cut.
    let rhythm = Rhythm {
        period: Duration::from_millis(50),
        timeout: Duration::from_millis(500),
    };
    let target = target(&server.address.to_string());
    let task = tokio::spawn(follow(
        target.clone(),
        rhythm,
        names.clone(),
        bench.board.clone(),
        bench.metrics.clone(),
    ));
    let waited = async {
        while server.count("/metrics") < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waited)
        .await
        .expect("four rounds");
    task.abort();
    let paths: Vec<String> = server.seen().into_iter().map(|seen| seen.path).collect();
    for (number, path) in paths.iter().enumerate() {
        assert_eq!(path, ["/health", "/metrics"][number % 2], "{paths:?}");
    }

    let other = Target {
        engine: "tls".into(),
        greeting: Greeting::NotAsked(Reason::ProtocolUnsupported),
        ..target
    };
    let task = follow(
        other,
        rhythm,
        names,
        bench.board.clone(),
        bench.metrics.clone(),
    );
    assert!(
        tokio::time::timeout(Duration::from_millis(20), task)
            .await
            .is_err()
    );
    let seen = bench.board.observation("tls");
    assert_eq!(seen.health, Health::Unknown);
    assert_eq!(seen.scrape_error, Some(Reason::ProtocolUnsupported));
}
