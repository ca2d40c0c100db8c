//! An HTTP/2 client by the `h2` crate: one request over a connection of its own, and all that came
//! back. What misbehaves is written frame by frame instead ([`crate::frames`]).

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, Request};

/// How long an answer may take before a test fails.
const WATCHDOG: Duration = Duration::from_secs(60);

/// An answer as it came.
#[derive(Clone, Debug)]
pub struct Message2 {
    /// Its status; 0 where its stream was reset before a head came.
    pub status: u16,
    /// Its fields.
    pub headers: HeaderMap,
    /// Its body, as far as it came.
    pub body: Vec<u8>,
    /// What stood behind it.
    pub trailers: Option<HeaderMap>,
    /// Why it broke off, where it did.
    pub broken: Option<Reason>,
}

/// Posts `body` to `path` with these further fields, and `trailers` behind it. No length is stated.
///
/// # Panics
/// When neither a head nor a reset comes back.
#[must_use]
pub fn post2(
    address: SocketAddr,
    path: &str,
    fields: &[(&str, &str)],
    body: &[u8],
    trailers: Option<HeaderMap>,
) -> Message2 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let mut request = Request::post(format!("http://{address}{path}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let request = request.body(()).expect("a fit head");
    let body = Bytes::copy_from_slice(body);
    runtime.expect("a runtime").block_on(async {
        let asked = asked(address, request, body, trailers);
        let answer = tokio::time::timeout(WATCHDOG, asked).await;
        answer.expect("an answer in time").expect("an answer")
    })
}

async fn asked(
    address: SocketAddr,
    request: Request<()>,
    body: Bytes,
    trailers: Option<HeaderMap>,
) -> Result<Message2, h2::Error> {
    let socket = tokio::net::TcpStream::connect(address).await;
    let socket = socket.expect("a listening proxy");
    let (sender, connection) = h2::client::handshake(socket).await?;
    tokio::spawn(async move {
        // How it ended is seen by its stream.
        let _ = connection.await;
    });
    let (response, mut upload) = sender.ready().await?.send_request(request, false)?;
    // Held by the crate until the proxy takes it.
    upload.send_data(body, trailers.is_none())?;
    if let Some(trailers) = trailers {
        upload.send_trailers(trailers)?;
    }
    let (parts, mut receive) = match response.await {
        Ok(response) => response.into_parts(),
        // A head that was not written yet when its stream was reset is never written.
        Err(error) if error.is_reset() => {
            return Ok(Message2 {
                status: 0,
                headers: HeaderMap::new(),
                body: Vec::new(),
                trailers: None,
                broken: error.reason(),
            });
        }
        Err(error) => return Err(error),
    };
    let mut message = Message2 {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: Vec::new(),
        trailers: None,
        broken: None,
    };
    while let Some(piece) = receive.data().await {
        match piece {
            Ok(piece) => {
                receive.flow_control().release_capacity(piece.len())?;
                message.body.extend_from_slice(&piece);
            }
            Err(error) => {
                message.broken = Some(error.reason().unwrap_or(Reason::NO_ERROR));
                return Ok(message);
            }
        }
    }
    message.trailers = receive.trailers().await?;
    Ok(message)
}
