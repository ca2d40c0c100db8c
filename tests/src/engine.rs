//! A scripted engine: it does to each connection what the test wrote, and records what came.
//!
//! Not a mock model server (`pointsman-bench engine` is one): it exists to misbehave to the byte,
//! and to know afterwards which request came on which connection, and who ended it when.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::client::{End, reset_on_drop};
use crate::wait::{SOON, eventually};
use crate::wire::{Message, Source, framing};

/// How long a connection may stay silent before its script fails.
const WATCHDOG: Duration = Duration::from_secs(90);

/// Stack of a connection's thread: scripts are shallow, and some tests open a thousand.
const STACK_BYTES: usize = 256 * 1024;

/// A listening engine.
pub struct Engine {
    address: SocketAddr,
    record: Arc<Record>,
}

/// Something that happened on a connection.
#[derive(Clone, Debug)]
pub struct Event {
    /// When.
    pub at: Instant,
    /// On which connection, counted from 0.
    pub connection: usize,
    /// What.
    pub what: What,
}

/// What happened on a connection.
#[derive(Clone, Debug)]
pub enum What {
    /// It was accepted.
    Accepted,
    /// A whole request came.
    Request(Arc<Message>),
    /// The proxy ended it.
    PeerEnded(End),
    /// The script ended it.
    WeEnded(End),
}

impl Engine {
    /// Listens, and runs `script` on a thread of its own for each connection. A connection that
    /// the script leaves open is closed by FIN after it.
    ///
    /// # Panics
    /// When it cannot listen.
    #[must_use]
    pub fn start(script: impl Fn(&mut Conn) + Send + Sync + 'static) -> Self {
        // As many as the kernel allows: a test of the proxy is no test of this queue.
        let listener = listen(4096);
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let record = Arc::new(Record::default());
        let shared = Arc::clone(&record);
        let script = Arc::new(script);
        std::thread::spawn(move || accept(&listener, &shared, &script));
        Self { address, record }
    }

    /// Serves every request of every connection by `answer`, until the proxy ends the connection
    /// or the script does.
    #[must_use]
    pub fn serving(answer: impl Fn(&mut Conn, &Message) + Send + Sync + 'static) -> Self {
        Self::start(move |conn| {
            while let Some(request) = conn.request() {
                answer(conn, &request);
                if !conn.open {
                    return;
                }
            }
        })
    }

    /// Answers every request with its own name as a JSON body.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let body = format!(r#"{{"engine":"{name}"}}"#);
        Self::serving(move |conn, _| {
            conn.respond(200, &body);
        })
    }

    /// Reads each request and stays silent, until the proxy ends the connection.
    #[must_use]
    pub fn silent() -> Self {
        Self::start(|conn| {
            if conn.request().is_some() {
                conn.await_end();
            }
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everything that happened so far, in order.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.record.events().clone()
    }

    /// Every request so far, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<Arc<Message>> {
        let request = |event: &Event| match &event.what {
            What::Request(message) => Some(Arc::clone(message)),
            _ => None,
        };
        self.record.events().iter().filter_map(request).collect()
    }

    /// How many connections were ever accepted.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.count(|what| matches!(what, What::Accepted))
    }

    /// How many connections stand.
    #[must_use]
    pub fn open(&self) -> usize {
        self.connections() - self.count(|w| matches!(w, What::PeerEnded(_) | What::WeEnded(_)))
    }

    /// How many connections the proxy ended.
    #[must_use]
    pub fn ended_by_peer(&self) -> usize {
        self.count(|what| matches!(what, What::PeerEnded(_)))
    }

    /// How many events are of a kind.
    #[must_use]
    pub fn count(&self, kind: impl Fn(&What) -> bool) -> usize {
        self.record
            .events()
            .iter()
            .filter(|event| kind(&event.what))
            .count()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.record.stopped.store(true, Ordering::Relaxed);
        // Wakes the acceptor, which then sees the flag.
        TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).ok();
    }
}

/// One accepted connection in the hands of a script.
pub struct Conn {
    /// Which one, counted from 0.
    pub number: usize,
    source: Source<TcpStream>,
    record: Arc<Record>,
    open: bool,
}

impl Conn {
    /// The next whole request, or `None` when the proxy ended the connection instead.
    pub fn request(&mut self) -> Option<Arc<Message>> {
        let mut message = match self.source.head() {
            Ok(Some(message)) => message,
            ended => {
                self.peer_ended(if ended.is_ok() { End::Fin } else { End::Reset });
                return None;
            }
        };
        let framing = framing(&message, false);
        self.source.body(&mut message, framing);
        let message = Arc::new(message);
        self.record
            .add(self.number, What::Request(Arc::clone(&message)));
        Some(message)
    }

    /// Sends bytes in one write; `false` when the proxy ended the connection.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        if self.open && self.source.inner().write_all(bytes.as_ref()).is_err() {
            self.peer_ended(End::Reset);
        }
        self.open
    }

    /// Sends a whole sized JSON answer.
    pub fn respond(&mut self, status: u16, body: &str) -> bool {
        let length = body.len();
        self.send(format!(
            "HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        ))
    }

    /// Sends the head of a chunked event stream.
    pub fn stream_head(&mut self) -> bool {
        self.send(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
        )
    }

    /// Sends one chunk.
    pub fn chunk(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        let bytes = bytes.as_ref();
        let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
        framed.extend_from_slice(bytes);
        framed.extend_from_slice(b"\r\n");
        self.send(framed)
    }

    /// Sends the last chunk.
    pub fn end_stream(&mut self) -> bool {
        self.send("0\r\n\r\n")
    }

    /// Waits until the proxy ends the connection, and returns how. What it sends before is read
    /// and thrown away.
    pub fn await_end(&mut self) -> End {
        loop {
            match self.source.fill() {
                Ok(true) => {}
                Ok(false) => {
                    self.peer_ended(End::Fin);
                    return End::Fin;
                }
                Err(_) => {
                    self.peer_ended(End::Reset);
                    return End::Reset;
                }
            }
        }
    }

    /// Ends the connection by FIN.
    pub fn close(&mut self) {
        self.we_end(End::Fin);
        self.source.inner().shutdown(std::net::Shutdown::Both).ok();
    }

    /// Ends the connection by RST, when the script returns.
    pub fn reset(&mut self) {
        reset_on_drop(self.source.inner());
        self.we_end(End::Reset);
    }

    /// Waits until the gate opens (`true`) or the proxy ends the connection (`false`).
    ///
    /// # Panics
    /// When neither happens for as long as the watchdog allows.
    pub fn wait_at(&mut self, gate: &Gate) -> bool {
        let until = Instant::now() + WATCHDOG;
        self.source
            .inner()
            .set_read_timeout(Some(Duration::from_millis(50)))
            .ok();
        let opened = loop {
            assert!(Instant::now() < until, "the gate stayed closed");
            if gate.is_open() {
                break true;
            }
            match self.source.inner().peek(&mut [0]) {
                Ok(0) => {
                    self.peer_ended(End::Fin);
                    break false;
                }
                Ok(_) => std::thread::sleep(Duration::from_millis(50)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.peer_ended(End::Reset);
                    break false;
                }
            }
        };
        self.source.inner().set_read_timeout(Some(WATCHDOG)).ok();
        opened
    }

    /// Sets the size of the kernel's receive buffer: a small one lets a slow reader be felt at once.
    pub fn set_receive_buffer(&self, bytes: usize) {
        socket2::SockRef::from(self.source.inner())
            .set_recv_buffer_size(bytes)
            .ok();
    }

    fn peer_ended(&mut self, end: End) {
        if self.open {
            self.open = false;
            self.record.add(self.number, What::PeerEnded(end));
        }
    }

    fn we_end(&mut self, end: End) {
        if self.open {
            self.open = false;
            self.record.add(self.number, What::WeEnded(end));
        }
    }
}

/// A door that scripts wait at and the test opens.
#[derive(Clone, Default)]
pub struct Gate {
    state: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets everyone through, now and later.
    pub fn open(&self) {
        *lock(&self.state.0) = true;
        self.state.1.notify_all();
    }

    /// Lets nobody through from now on.
    pub fn close(&self) {
        *lock(&self.state.0) = false;
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *lock(&self.state.0)
    }

    /// Waits until the gate is open.
    ///
    /// # Panics
    /// When that takes longer than the watchdog allows.
    pub fn wait(&self) {
        let closed = lock(&self.state.0);
        let waited = self
            .state
            .1
            .wait_timeout_while(closed, WATCHDOG, |open| !*open);
        let open = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        assert!(*open, "the gate stayed closed");
    }
}

/// An address where nobody listens, kept from others for as long as this lives.
pub struct Refusing {
    held: socket2::Socket,
}

impl Refusing {
    /// Takes an address from the kernel without listening on it: connects are refused.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn new() -> Self {
        let held = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
            .expect("a socket can be made");
        held.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())
            .expect("a port is free");
        Self { held }
    }

    /// The address.
    ///
    /// # Panics
    /// When the kernel does not know it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let address = self
            .held
            .local_addr()
            .expect("a bound socket has an address");
        address
            .as_socket()
            .expect("an IPv4 socket has an IPv4 address")
    }
}

impl Default for Refusing {
    fn default() -> Self {
        Self::new()
    }
}

/// An address whose listener's queue is full for as long as this lives: the kernel drops what would
/// connect.
pub struct Unreachable {
    listener: TcpListener,
    /// What fills the queue.
    _fill: Vec<TcpStream>,
}

impl Unreachable {
    /// Listens with the shortest queue there is, and fills it.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn new() -> Self {
        let listener = listen(0);
        let address = listener.local_addr().expect("a listener has an address");
        let mut fill = Vec::new();
        eventually(
            SOON,
            "the listener's queue is full",
            || match TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
                Ok(stream) => {
                    fill.push(stream);
                    None
                }
                Err(_) => Some(()),
            },
        );
        Self {
            listener,
            _fill: fill,
        }
    }

    /// The address.
    ///
    /// # Panics
    /// When the kernel does not know it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let address = self.listener.local_addr();
        address.expect("a listener has an address")
    }
}

impl Default for Unreachable {
    fn default() -> Self {
        Self::new()
    }
}

/// What happened, shared by an engine's threads.
#[derive(Default)]
struct Record {
    events: Mutex<Vec<Event>>,
    stopped: AtomicBool,
}

impl Record {
    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        lock(&self.events)
    }

    fn add(&self, connection: usize, what: What) {
        let at = Instant::now();
        self.events().push(Event {
            at,
            connection,
            what,
        });
    }
}

/// A listener with a backlog of this many connections.
///
/// # Panics
/// When it cannot listen.
#[must_use]
pub fn listen(backlog: i32) -> TcpListener {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
        .expect("a socket can be made");
    socket
        .bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())
        .expect("a port is free");
    socket.listen(backlog).expect("a bound socket listens");
    socket.into()
}

fn accept(
    listener: &TcpListener,
    record: &Arc<Record>,
    script: &Arc<impl Fn(&mut Conn) + Send + Sync + 'static>,
) {
    for (number, stream) in listener.incoming().enumerate() {
        if record.stopped.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        stream.set_nodelay(true).ok();
        stream.set_read_timeout(Some(WATCHDOG)).ok();
        record.add(number, What::Accepted);
        let record = Arc::clone(record);
        let script = Arc::clone(script);
        let run = move || {
            let mut conn = Conn {
                number,
                source: Source::new(stream),
                record,
                open: true,
            };
            script(&mut conn);
            conn.we_end(End::Fin);
        };
        std::thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(run)
            .expect("a thread can be made");
    }
}

/// A script that panicked has said so already; what it recorded stays true.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
