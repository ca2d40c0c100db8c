//! GET of a small page from one of the world's own processes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::h1::body::{Decoder, Piece};
use crate::h1::head::parse_response;

/// Most bytes of a page.
const PAGE_BYTES: u64 = 8 * 1024 * 1024;
/// Longest a page may take.
const WITHIN: Duration = Duration::from_secs(3);

/// The status and body of a page.
pub(crate) async fn get(address: SocketAddr, path: &str) -> anyhow::Result<(u16, Vec<u8>)> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    tokio::time::timeout(WITHIN, exchange(address, &request))
        .await
        .with_context(|| format!("http://{address}{path}: no answer within {WITHIN:?}"))?
        .with_context(|| format!("http://{address}{path}"))
}

/// A page that is JSON.
pub(crate) async fn json<T: serde::de::DeserializeOwned>(
    address: SocketAddr,
    path: &str,
) -> anyhow::Result<T> {
    let (status, body) = get(address, path).await?;
    ensure!(status == 200, "http://{address}{path}: status {status}");
    serde_json::from_slice(&body).with_context(|| format!("http://{address}{path}"))
}

/// Sends a small body; an error unless the answer is 200.
pub(crate) async fn post(address: SocketAddr, path: &str, body: &str) -> anyhow::Result<()> {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (status, answer) = tokio::time::timeout(WITHIN, exchange(address, &request))
        .await
        .with_context(|| format!("http://{address}{path}: no answer within {WITHIN:?}"))?
        .with_context(|| format!("http://{address}{path}"))?;
    ensure!(
        status == 200,
        "http://{address}{path}: status {status}: {}",
        String::from_utf8_lossy(&answer)
    );
    Ok(())
}

async fn exchange(address: SocketAddr, request: &str) -> anyhow::Result<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(PAGE_BYTES).read_to_end(&mut answer).await?;
    let Some(head) = parse_response(&answer)? else {
        bail!("the answer broke off in its head")
    };
    let mut decoder = Decoder::new(head.framing);
    let mut input = &answer[head.bytes..];
    let mut body = Vec::new();
    loop {
        match decoder.next(&mut input)? {
            Piece::Data(data) => body.extend_from_slice(data),
            Piece::End => return Ok((head.status, body)),
            Piece::More if head.framing == crate::h1::head::Framing::UntilClose => {
                return Ok((head.status, body));
            }
            Piece::More => bail!("the answer broke off in its body"),
        }
    }
}
