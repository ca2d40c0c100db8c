//! Small GETs over one kept HTTP/1.1 connection.
//!
//! Not a general client: no redirects, no compression, no cookies, one request at a time. A scraper
//! must not disturb what it looks at, so the connection is reused, nothing asks for gzip, and every
//! exchange has a deadline and a byte bound. Engines drop idle connections without saying so; a
//! kept connection that fails before the answer's head is replaced once.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::greeting::Credential;

/// Bytes of a response head that are read before giving up.
const HEAD_BYTES: usize = 64 * 1024;

/// A connection to one server, opened when first needed.
#[derive(Debug, Default)]
pub(crate) struct Client {
    kept: Option<Connection>,
    opened: u64,
}

/// An answer whose head arrived.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) content_type: String,
    pub(crate) body: Vec<u8>,
    /// The whole body is here; else the peer broke off or the byte bound was reached.
    pub(crate) complete: bool,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing listens there.
    Refused,
    /// No connection for another reason.
    Unreachable,
    /// The deadline passed.
    Timeout,
    /// The connection ended before the answer's head.
    Reset,
    /// What came back is not HTTP/1.1.
    Protocol,
    /// The engine could not be verified, or refused us: nothing was asked.
    Tls,
}

/// Where and what to ask.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    pub(crate) addresses: &'a [SocketAddr],
    pub(crate) authority: &'a str,
    /// The name that a server with TLS must prove; none in the clear.
    pub(crate) server_name: Option<&'a str>,
    /// What the server asks of us.
    pub(crate) credential: &'a Credential,
    pub(crate) path: &'a str,
    pub(crate) deadline: Instant,
    /// Body bytes read at most.
    pub(crate) body_bytes: usize,
}

impl Client {
    /// Sends one GET and reads the answer.
    pub(crate) async fn fetch(&mut self, query: Query<'_>) -> Result<Answer, Failure> {
        let outcome = timeout_at(query.deadline, self.exchange(query)).await;
        let outcome = outcome.unwrap_or(Err(Failure::Timeout));
        if !outcome.as_ref().is_ok_and(|answer| answer.complete) {
            // Its framing is in doubt, or an answer may still be on its way.
            self.kept = None;
        }
        outcome
    }

    /// Forgets the connection: the name resolves to another address now.
    pub(crate) fn disconnect(&mut self) {
        self.kept = None;
    }

    /// Connections opened so far.
    #[cfg(test)]
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }

    async fn exchange(&mut self, query: Query<'_>) -> Result<Answer, Failure> {
        if let Some(kept) = self.kept.as_mut()
            && kept.sender.ready().await.is_ok()
        {
            let request = request(&query, kept.authorization.as_deref())?;
            match kept.sender.send_request(request).await {
                Ok(response) => return Ok(read(response, query.body_bytes).await),
                Err(error) if error.is_parse() => return Err(Failure::Protocol),
                // Dropped while it was idle.
                Err(_) => {}
            }
        }
        let fresh = self.kept.insert(connect(&query).await?);
        self.opened += 1;
        let request = request(&query, fresh.authorization.as_deref())?;
        let response = fresh.sender.send_request(request).await.map_err(|error| {
            if error.is_parse() {
                Failure::Protocol
            } else {
                Failure::Reset
            }
        })?;
        Ok(read(response, query.body_bytes).await)
    }
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    driver: JoinHandle<()>,
    /// What the credential's file said when it was opened.
    authorization: Option<String>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Connects to the first address that takes the connection. Each gets an equal part of the time
/// that is left, so that one that swallows packets does not hide the others.
async fn connect(query: &Query<'_>) -> Result<Connection, Failure> {
    let mut failure = Failure::Unreachable;
    let addresses = query.addresses;
    for (position, address) in addresses.iter().enumerate() {
        let left = query.deadline.saturating_duration_since(Instant::now());
        let part = left / u32::try_from(addresses.len() - position).unwrap_or(u32::MAX);
        match timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return greet(query, stream).await,
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                failure = Failure::Refused;
            }
            Ok(Err(_)) => failure = Failure::Unreachable,
            Err(_) => failure = Failure::Timeout,
        }
    }
    Err(failure)
}

/// The greeting that the server wants, then HTTP/1.1. With TLS or not at all where that is wanted.
async fn greet(query: &Query<'_>, stream: TcpStream) -> Result<Connection, Failure> {
    // A delay of the last small segment would only be measured as a slow engine; without the
    // option the scrape still works.
    let _ = stream.set_nodelay(true);
    let failed = |error: String| {
        tracing::warn!(authority = query.authority, %error, "a credential cannot be used");
        Failure::Tls
    };
    let authorization = query.credential.bearer().map_err(failed)?;
    let Some(name) = query.server_name else {
        return handshake(stream, authorization).await;
    };
    let name = ServerName::try_from(name.to_owned()).map_err(|_| Failure::Tls)?;
    let connector = TlsConnector::from(query.credential.client().map_err(failed)?);
    let secure = connector.connect(name, stream).await.map_err(|error| {
        tracing::debug!(authority = query.authority, %error, "TLS with an engine failed");
        Failure::Tls
    })?;
    handshake(secure, authorization).await
}

async fn handshake<S>(stream: S, authorization: Option<String>) -> Result<Connection, Failure>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = Builder::new()
        .max_buf_size(HEAD_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|_| Failure::Reset)?;
    let driver = tokio::spawn(async move {
        // Its error reaches the sender too, which is where it is handled.
        let _ = connection.await;
    });
    Ok(Connection {
        sender,
        driver,
        authorization,
    })
}

fn request(
    query: &Query<'_>,
    authorization: Option<&str>,
) -> Result<Request<Empty<Bytes>>, Failure> {
    let mut request = Request::get(query.path)
        .header(HOST, query.authority)
        .header(
            USER_AGENT,
            concat!("pointsman-solver/", env!("CARGO_PKG_VERSION")),
        )
        .header(ACCEPT, "text/plain");
    if let Some(authorization) = authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    request.body(Empty::new()).map_err(|_| Failure::Protocol)
}

async fn read(response: Response<hyper::body::Incoming>, body_bytes: usize) -> Answer {
    let (head, mut body) = response.into_parts();
    let content_type = head
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_ascii_lowercase();
    let mut answer = Answer {
        status: head.status,
        content_type,
        body: Vec::new(),
        complete: false,
    };
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return answer };
        let Some(data) = frame.data_ref() else {
            continue;
        };
        let room = body_bytes - answer.body.len();
        answer.body.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            return answer;
        }
    }
    answer.complete = true;
    answer
}
