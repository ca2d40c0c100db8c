//! The admin server: health, readiness and metrics, on threads that no request can starve.
//!
//! A tiny HTTP/1.1 server on blocking sockets. It is not a shard's task, because a probe must be
//! answered while shards are busy, and not a framework, because three fixed pages need none. Each
//! connection serves one request and is closed; every read and write has a deadline, so a silent
//! peer holds one of a few threads for a moment and no more.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::boottime_ns;
use crate::config::{Config, IoDriver};
use crate::metrics::{Page, ProcessMetrics, Rung, ShardMetrics, render};
use crate::shutdown::{Phase, Shutdown};

/// Threads that answer.
const THREADS: usize = 8;
/// Bytes of a request's head.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Time for a whole request to arrive, and for an answer to be taken.
const READ_WITHIN: Duration = Duration::from_secs(1);
const WRITE_WITHIN: Duration = Duration::from_secs(2);
/// Pause after a failed accept: with no descriptor left it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What the pages show.
pub struct View {
    /// The process's configuration.
    pub config: Arc<Config>,
    /// The process's counters.
    pub process: Arc<ProcessMetrics>,
    /// Every shard's counters.
    pub shards: Vec<Arc<ShardMetrics>>,
    /// How the process ends.
    pub shutdown: Arc<Shutdown>,
    /// The I/O driver in use.
    pub io_driver: IoDriver,
}

/// Listens on `address`; apart from [`serve`], so that a taken port is told before shards start.
///
/// # Errors
/// When the address cannot be listened on.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address)
}

/// Starts the threads that answer on `listener` until the process ends.
///
/// # Errors
/// When a thread cannot be made.
pub fn serve(listener: TcpListener, view: View) -> io::Result<()> {
    let shared = Arc::new((listener, view));
    for _ in 0..THREADS {
        let shared = Arc::clone(&shared);
        let run = move || {
            let (listener, view) = &*shared;
            loop {
                match listener.accept() {
                    // A peer that breaks off is its own business; nothing is left to do for it.
                    Ok((mut stream, _)) => drop(answer(&mut stream, view)),
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        };
        std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(run)?;
    }
    Ok(())
}

fn answer(stream: &mut TcpStream, view: &View) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_WITHIN))?;
    let reply = match read_head(stream, Instant::now() + READ_WITHIN)? {
        Ok(head) => route(&head, view),
        Err(refusal) => refusal,
    };
    stream.write_all(&reply.bytes())?;
    stream.shutdown(std::net::Shutdown::Write)
}

/// Reads to the end of the request's head; the inner error is what the peer is told instead.
fn read_head(stream: &mut TcpStream, deadline: Instant) -> io::Result<Result<Vec<u8>, Reply>> {
    let mut head = Vec::with_capacity(1024);
    let mut piece = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(Reply::text(
                408,
                "Request Timeout",
                "the request came too slowly\n",
            )));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => head.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The deadline, as the kernel spells it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if memchr::memmem::find(&head, b"\r\n\r\n").is_some() {
            return Ok(Ok(head));
        }
        if head.len() > MAX_HEAD_BYTES {
            let reason = "Request Header Fields Too Large";
            return Ok(Err(Reply::text(
                431,
                reason,
                "the head has more than 8 KiB\n",
            )));
        }
    }
}

/// The answer to a request's head.
fn route(head: &[u8], view: &View) -> Reply {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    if !matches!(request.parse(head), Ok(httparse::Status::Complete(_))) {
        return Reply::text(400, "Bad Request", "the request is not HTTP/1.1\n");
    }
    let (method, target) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
    let path = target.split('?').next().unwrap_or("");
    let mut reply = match path {
        "/healthz" => Reply::text(200, "OK", "alive\n"),
        "/readyz" => readiness(view),
        "/metrics" => metrics(view),
        _ => Reply::text(404, "Not Found", "pages: /healthz /readyz /metrics\n"),
    };
    match method {
        "GET" => {}
        "HEAD" => reply.omit_body = true,
        _ => reply = Reply::text(405, "Method Not Allowed", "methods: GET HEAD\n"),
    }
    reply
}

/// Ready means: has a policy to serve by, and is not ending.
fn readiness(view: &View) -> Reply {
    let unavailable = |why| Reply::text(503, "Service Unavailable", why);
    match view.shutdown.phase() {
        Phase::Predrain | Phase::Draining | Phase::Forced => unavailable("draining\n"),
        Phase::Running => match view.process.rung(boottime_ns(), view.config.stale_after_ms) {
            Rung::None => unavailable("no policy yet\n"),
            Rung::Fresh => Reply::text(200, "OK", "ready\n"),
            Rung::Stale => Reply::text(200, "OK", "ready, by a stale policy\n"),
            Rung::Disk => Reply::text(200, "OK", "ready, by the policy's copy on disk\n"),
        },
    }
}

fn metrics(view: &View) -> Reply {
    let body = render(&Page {
        shards: &view.shards,
        process: &view.process,
        io_driver: view.io_driver,
        stale_after_ms: view.config.stale_after_ms,
        now_boottime_ns: boottime_ns(),
    });
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    Reply {
        status: 200,
        reason: "OK",
        content_type,
        body,
        omit_body: false,
    }
}

/// A whole answer.
#[derive(Debug, PartialEq, Eq)]
struct Reply {
    status: u16,
    reason: &'static str,
    content_type: &'static str,
    body: String,
    omit_body: bool,
}

impl Reply {
    fn text(status: u16, reason: &'static str, body: &str) -> Self {
        let content_type = "text/plain; charset=utf-8";
        Self {
            status,
            reason,
            content_type,
            body: body.to_owned(),
            omit_body: false,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let Self {
            status,
            reason,
            content_type,
            body,
            omit_body,
        } = self;
        let body_bytes = body.len();
        let body = if *omit_body { "" } else { body };
        format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\n\
             Content-Length: {body_bytes}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n\
             {body}"
        )
        .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Source;

    fn view() -> View {
        let text = "frontend = 'A'\nlisten = ['127.0.0.1:0']\nrun_dir = '/nowhere'\n";
        let host = crate::config::Host { cores: 1 };
        View {
            config: Arc::new(crate::config::parse(text, "proxy.toml".as_ref(), host).unwrap()),
            process: Arc::default(),
            shards: vec![Arc::default()],
            shutdown: Arc::default(),
            io_driver: IoDriver::Epoll,
        }
    }

    fn status(view: &View, request: &str) -> u16 {
        route(request.as_bytes(), view).status
    }

    #[test]
    fn pages_and_methods_are_told_apart() {
        let view = view();
        let get = |path| status(&view, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        let answers = ["/healthz", "/readyz", "/metrics", "/metrics?x=1", "/", "*"].map(get);
        assert_eq!(answers, [200, 503, 200, 200, 404, 404]);
        assert_eq!(
            status(&view, "POST /healthz HTTP/1.1\r\nHost: x\r\n\r\n"),
            405
        );
        assert_eq!(status(&view, "\x16\x03\x01 not http\r\n\r\n"), 400);
    }

    #[test]
    fn a_head_request_has_the_length_and_no_body() {
        let reply = route(b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n", &view());
        let text = String::from_utf8(reply.bytes()).unwrap();
        assert!(text.contains("Content-Length: 6\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n"), "{text}");
    }

    #[test]
    fn readiness_needs_a_policy_and_no_drain() {
        let view = view();
        assert_eq!(readiness(&view).body, "no policy yet\n");
        view.process.set_source(Source::Disk);
        assert_eq!(
            (readiness(&view).status, &*readiness(&view).body),
            (200, "ready, by the policy's copy on disk\n")
        );
        view.process.set_source(Source::Region);
        view.process.set_confirmed_at(Some(boottime_ns()));
        assert_eq!(readiness(&view).body, "ready\n");
        view.shutdown.predrain();
        assert_eq!(
            (readiness(&view).status, &*readiness(&view).body),
            (503, "draining\n")
        );
    }

    fn exchange(bytes: &[u8]) -> String {
        let listener = bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        serve(listener, view()).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream.write_all(bytes).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_request_in_pieces_is_answered_over_a_socket() {
        let text = exchange(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\nalive\n"), "{text}");
    }

    #[test]
    fn a_head_without_end_is_refused() {
        let text = exchange("GET / HTTP/1.1\r\nX: ".repeat(600).as_bytes());
        assert!(text.starts_with("HTTP/1.1 431 "), "{text}");
    }

    #[test]
    fn a_silent_peer_is_told_and_closed() {
        let text = exchange(b"GET /healthz");
        assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
    }
}
