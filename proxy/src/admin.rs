//! The admin server: health, readiness and metrics, on a thread that no request can starve.
//!
//! A tiny HTTP/1.1 server. It is not a shard's task, because a probe must be answered while shards
//! are busy, and not a framework, because three fixed pages need none. One thread polls all its
//! connections, so that silent peers cost a descriptor and never a place in a queue; each
//! connection serves one request, and every step has a deadline.

use std::io::{self, Read, Write};
use std::net::{Shutdown as Close, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::boottime_ns;
use crate::config::{Config, IoDriver};
use crate::driver::sys;
use crate::metrics::{Page, ProcessMetrics, Rung, ShardMetrics, render};
use crate::sentinel::HostLoad;
use crate::shutdown::{Phase, Shutdown};

/// Connections at one time; a further one takes the place of the oldest.
const MAX_PEERS: usize = 256;
/// Bytes of a request's head.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Time for a whole request to arrive, for an answer to be taken, and for the peer's close.
const READ_WITHIN: Duration = Duration::from_secs(2);
const WRITE_WITHIN: Duration = Duration::from_secs(2);
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Longest wait, and the pause after a failed accept: with no descriptor left it would fail again
/// at once.
const IDLE: Duration = Duration::from_secs(10);
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What the pages show.
pub struct View {
    /// The process's configuration.
    pub config: Arc<Config>,
    /// The process's counters.
    pub process: Arc<ProcessMetrics>,
    /// Every shard's counters.
    pub shards: Vec<Arc<ShardMetrics>>,
    /// What the process has and may have in flight at each engine.
    pub load: Arc<HostLoad>,
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
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Starts the thread that answers on `listener` until the process ends.
///
/// # Errors
/// When the thread cannot be made.
pub fn serve(listener: TcpListener, view: View) -> io::Result<()> {
    let run = move || {
        let mut peers = Vec::new();
        loop {
            wait(&listener, &peers);
            accept(&listener, &mut peers);
            let now = Instant::now();
            peers.retain_mut(|peer| peer.step(&view, now));
        }
    };
    std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(run)
        .map(drop)
}

/// Waits until something can be done.
fn wait(listener: &TcpListener, peers: &[Peer]) {
    let entry = |fd: i32, events: i16| libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let mut entries = vec![entry(listener.as_raw_fd(), libc::POLLIN)];
    entries.extend(
        peers
            .iter()
            .map(|peer| entry(peer.stream.as_raw_fd(), peer.events())),
    );
    let now = Instant::now();
    let nearest = peers
        .iter()
        .map(|peer| peer.deadline.saturating_duration_since(now))
        .min();
    if sys::wait_ready(&mut entries, nearest.unwrap_or(IDLE).min(IDLE)).is_err() {
        std::thread::sleep(ACCEPT_PAUSE);
    }
}

fn accept(listener: &TcpListener, peers: &mut Vec<Peer>) {
    // As many a turn as there are places, so that a flood does not keep the others waiting.
    for _ in 0..MAX_PEERS {
        match listener.accept() {
            Ok((stream, _)) => {
                if peers.len() == MAX_PEERS {
                    peers.remove(0);
                }
                peers.extend(Peer::new(stream));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

/// One connection.
struct Peer {
    stream: TcpStream,
    state: State,
    deadline: Instant,
}

/// How far a connection has come.
enum State {
    /// The head so far.
    Reading(Vec<u8>),
    /// The answer, and how much of it is written.
    Writing(Vec<u8>, usize),
    /// Everything is said. What the peer still sends is read and dropped, because a close with
    /// unread bytes would reset the connection and could destroy the answer on its way.
    Closing,
}

impl Peer {
    /// A connection that the kernel does not let us set up is dropped.
    fn new(stream: TcpStream) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        let deadline = Instant::now() + READ_WITHIN;
        Some(Self {
            stream,
            state: State::Reading(Vec::new()),
            deadline,
        })
    }

    fn events(&self) -> i16 {
        match self.state {
            State::Reading(_) | State::Closing => libc::POLLIN,
            State::Writing(..) => libc::POLLOUT,
        }
    }

    /// Goes as far as it can; false when the connection is over.
    fn step(&mut self, view: &View, now: Instant) -> bool {
        loop {
            let done = match &mut self.state {
                State::Reading(head) => match read_head(&mut self.stream, head) {
                    Ok(()) => Ok(Some(route(head, view))),
                    Err(Stop::Refuse(reply)) => Ok(Some(reply)),
                    Err(Stop::Wait) if now >= self.deadline => Ok(Some(Reply::text(
                        408,
                        "Request Timeout",
                        "the request came too slowly\n",
                    ))),
                    Err(stop) => Err(stop),
                },
                State::Writing(bytes, written) => {
                    write_some(&mut self.stream, bytes, written).map(|()| None)
                }
                State::Closing => discard(&mut self.stream).map(|()| None),
            };
            match (done, &self.state) {
                (Ok(Some(reply)), _) => {
                    self.state = State::Writing(reply.bytes(), 0);
                    self.deadline = now + WRITE_WITHIN;
                }
                (Ok(None), State::Writing(..)) if self.stream.shutdown(Close::Write).is_ok() => {
                    self.state = State::Closing;
                    self.deadline = now + CLOSE_WITHIN;
                }
                (Err(Stop::Wait), _) => return now < self.deadline,
                _ => return false,
            }
        }
    }
}

/// Why a step goes no further.
enum Stop {
    /// Nothing more can be done now.
    Wait,
    /// The connection is of no more use.
    Broken,
    /// The request is refused.
    Refuse(Reply),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock => Self::Wait,
            _ => Self::Broken,
        }
    }
}

/// Reads to the end of the request's head.
fn read_head(stream: &mut TcpStream, head: &mut Vec<u8>) -> Result<(), Stop> {
    let mut piece = [0; 1024];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Err(Stop::Broken),
            Ok(count) => head.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        }
        if memchr::memmem::find(head, b"\r\n\r\n").is_some() {
            return Ok(());
        }
        if head.len() > MAX_HEAD_BYTES {
            let reason = "Request Header Fields Too Large";
            return Err(Stop::Refuse(Reply::text(
                431,
                reason,
                "the head has more than 8 KiB\n",
            )));
        }
    }
}

/// Writes what is left of `bytes`.
fn write_some(stream: &mut TcpStream, bytes: &[u8], written: &mut usize) -> Result<(), Stop> {
    while *written < bytes.len() {
        match stream.write(&bytes[*written..]) {
            Ok(0) => return Err(Stop::Broken),
            Ok(count) => *written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads up to the peer's end, at most a few pieces a turn.
fn discard(stream: &mut TcpStream) -> Result<(), Stop> {
    let mut piece = [0; 4096];
    for _ in 0..16 {
        match stream.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Stop::Wait)
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
        load: &view.load,
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
            load: Arc::default(),
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
    fn a_request_is_answered_over_a_socket() {
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
