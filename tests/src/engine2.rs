//! An HTTP/2 engine by the `h2` crate: what a well-behaved engine does, with every answer a test's.
//!
//! It runs on a runtime and a thread of its own. What misbehaves is written frame by frame instead
//! ([`crate::frames`]).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, Response};

/// A listening engine.
pub struct Engine2 {
    address: SocketAddr,
    record: Arc<Record>,
}

/// A whole request as it came.
#[derive(Clone, Debug)]
pub struct Request2 {
    /// Its head.
    pub head: http::Request<()>,
    /// Its body.
    pub body: Vec<u8>,
    /// What stood behind it.
    pub trailers: Option<HeaderMap>,
}

/// The way to answer one request.
pub struct Answer2 {
    respond: SendResponse<Bytes>,
    stream: Option<SendStream<Bytes>>,
    record: Arc<Record>,
}

#[derive(Default)]
struct Record {
    connections: AtomicUsize,
    open: AtomicUsize,
    requests: Mutex<Vec<Request2>>,
    resets: Mutex<Vec<Reason>>,
}

impl Engine2 {
    /// Serves every request by `answer`; `builder` says what the engine allows.
    ///
    /// # Panics
    /// When it cannot listen.
    #[must_use]
    pub fn start<F>(
        builder: h2::server::Builder,
        answer: impl Fn(Request2, Answer2) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        let listener = crate::engine::listen(1024);
        listener.set_nonblocking(true).expect("a TCP socket");
        let address = listener.local_addr().expect("a bound socket");
        let record = Arc::new(Record::default());
        let shared = Arc::clone(&record);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let local = tokio::task::LocalSet::new();
            let answer = std::rc::Rc::new(answer);
            local.block_on(&runtime.expect("a runtime"), async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                while let Ok((socket, _)) = listener.accept().await {
                    socket.set_nodelay(true).expect("a TCP socket");
                    let (builder, record) = (builder.clone(), Arc::clone(&shared));
                    let answer = std::rc::Rc::clone(&answer);
                    tokio::task::spawn_local(async move {
                        record.connections.fetch_add(1, Ordering::SeqCst);
                        record.open.fetch_add(1, Ordering::SeqCst);
                        serve(socket, &builder, &record, &*answer).await;
                        record.open.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            });
        });
        Self { address, record }
    }

    /// Answers every request with its own name as a JSON body.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let body = format!(r#"{{"engine":"{name}"}}"#);
        Self::start(h2::server::Builder::new(), move |_, mut answer| {
            let body = body.clone();
            async move { answer.json(200, &body).await }
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections ever accepted.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.record.connections.load(Ordering::SeqCst)
    }

    /// Connections that stand.
    #[must_use]
    pub fn open(&self) -> usize {
        self.record.open.load(Ordering::SeqCst)
    }

    /// Every whole request so far.
    ///
    /// # Panics
    /// When the engine's thread panicked.
    #[must_use]
    pub fn requests(&self) -> Vec<Request2> {
        self.record.requests.lock().expect("no panic").clone()
    }

    /// Codes of the streams that the proxy reset while their answer ran.
    ///
    /// # Panics
    /// When the engine's thread panicked.
    #[must_use]
    pub fn resets(&self) -> Vec<Reason> {
        self.record.resets.lock().expect("no panic").clone()
    }
}

impl Answer2 {
    /// Sends a whole JSON answer.
    pub async fn json(&mut self, status: u16, body: &str) {
        let length = body.len().to_string();
        let fields = [
            ("content-type", "application/json"),
            ("content-length", &length),
        ];
        self.head(status, &fields);
        self.send(body.as_bytes(), true).await;
    }

    /// Sends the head of an event stream.
    pub fn event_stream(&mut self) {
        self.head(200, &[("content-type", "text/event-stream")]);
    }

    /// Sends a head.
    ///
    /// # Panics
    /// When it was sent before.
    pub fn head(&mut self, status: u16, fields: &[(&str, &str)]) {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        let response = response.body(()).expect("a fit head");
        self.stream = self.respond.send_response(response, false).ok();
    }

    /// Sends a piece of the body as its window allows; false when the proxy reset the stream.
    ///
    /// # Panics
    /// When the engine's record is poisoned.
    pub async fn send(&mut self, bytes: &[u8], ends: bool) -> bool {
        let Some(stream) = &mut self.stream else {
            return false;
        };
        let mut bytes = Bytes::copy_from_slice(bytes);
        while !bytes.is_empty() {
            stream.reserve_capacity(bytes.len());
            let granted = std::future::poll_fn(|context| {
                if let std::task::Poll::Ready(reason) = stream.poll_reset(context) {
                    return std::task::Poll::Ready(Err(reason));
                }
                match stream.capacity() {
                    0 => stream
                        .poll_capacity(context)
                        .map(|got| Ok(got.and_then(Result::ok))),
                    ready => std::task::Poll::Ready(Ok(Some(ready))),
                }
            });
            let granted = match granted.await {
                Ok(Some(granted)) => granted,
                Ok(None) => return false,
                Err(reason) => {
                    let mut resets = self.record.resets.lock().expect("no panic");
                    resets.extend(reason.ok());
                    return false;
                }
            };
            let now = bytes.split_to(granted.min(bytes.len()));
            if stream.send_data(now, ends && bytes.is_empty()).is_err() {
                return false;
            }
        }
        true
    }

    /// Ends the body with these trailers.
    ///
    /// # Panics
    /// Before a head.
    pub fn trailers(&mut self, trailers: HeaderMap) {
        let stream = self.stream.as_mut().expect("a head comes first");
        let _ = stream.send_trailers(trailers);
    }

    /// Waits until the proxy resets the stream.
    ///
    /// # Panics
    /// When the engine's record is poisoned.
    pub async fn await_reset(&mut self) {
        let reason = match &mut self.stream {
            Some(stream) => std::future::poll_fn(|context| stream.poll_reset(context)).await,
            None => std::future::poll_fn(|context| self.respond.poll_reset(context)).await,
        };
        self.record
            .resets
            .lock()
            .expect("no panic")
            .extend(reason.ok());
    }

    /// Resets the stream.
    pub fn reset(&mut self, reason: Reason) {
        self.respond.send_reset(reason);
    }
}

async fn serve<F>(
    socket: tokio::net::TcpStream,
    builder: &h2::server::Builder,
    record: &Arc<Record>,
    answer: &impl Fn(Request2, Answer2) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    let Ok(mut conn) = builder.handshake::<_, Bytes>(socket).await else {
        return;
    };
    // Bodies are read before the next request is looked at, while the connection goes on.
    let (bodies, mut whole) = tokio::sync::mpsc::unbounded_channel();
    loop {
        tokio::select! {
            accepted = conn.accept() => {
                let Some(Ok((request, respond))) = accepted else { return };
                let bodies = bodies.clone();
                tokio::task::spawn_local(async move {
                    let (parts, mut body) = request.into_parts();
                    let mut bytes = Vec::new();
                    while let Some(Ok(data)) = body.data().await {
                        let _ = body.flow_control().release_capacity(data.len());
                        bytes.extend_from_slice(&data);
                    }
                    let trailers = body.trailers().await.unwrap_or_default();
                    let head = http::Request::from_parts(parts, ());
                    let request = Request2 { head, body: bytes, trailers };
                    let _ = bodies.send((request, respond));
                });
            }
            Some((request, respond)) = whole.recv() => {
                record.requests.lock().expect("no panic").push(request.clone());
                let way = Answer2 { respond, stream: None, record: Arc::clone(record) };
                tokio::task::spawn_local(answer(request, way));
            }
        }
    }
}
