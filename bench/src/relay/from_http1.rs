//! Requests of HTTP/1.1, to an engine of either version.

use std::rc::Rc;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use h2::RecvStream;
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use monoio::buf::SliceMut;
use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::TcpStream;

use super::body::{Gathered, gather, send_all};
use super::{READ_BYTES, engine1, engine2};
use crate::h1::body::{Decoder, Piece};
use crate::h1::head::{Framing, RequestHead, parse_request, parse_response};
use crate::h1::{HEAD_BYTES, HEADER_COUNT};

/// Bytes read at once of a long body: below what the C library maps anew for each.
const BODY_READ_BYTES: usize = 64 * 1024;

/// A client's connection and the bytes that came.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// Serves a client's requests from an engine of HTTP/1.1: the bytes go on as they are.
pub(super) async fn to_http1(stream: TcpStream, pool: Rc<engine1::Pool>) -> anyhow::Result<()> {
    let mut client = Client::new(stream);
    let mut answer = Vec::with_capacity(READ_BYTES);
    while let Some(head) = client.head().await? {
        let mut engine = pool.take().await?;
        let mut decoder = Decoder::new(head.framing);
        let mut from = head.bytes;
        loop {
            let (length, is_over) = walk(&mut decoder, &client.buffer[from..])?;
            // A next request may follow: its bytes stay.
            let rest = client.buffer.split_off(from + length);
            let (result, mut buffer) = engine.write_all(std::mem::take(&mut client.buffer)).await;
            result?;
            buffer.clear();
            buffer.extend_from_slice(&rest);
            client.buffer = buffer;
            if is_over {
                break;
            }
            ensure!(
                client.read(BODY_READ_BYTES).await?,
                "the client left inside its request"
            );
            from = 0;
        }
        let is_headless = head.method == "HEAD";
        let keeps;
        (answer, keeps) = relay(&mut engine, &mut client.stream, answer, is_headless).await?;
        if !keeps || head.close {
            return Ok(());
        }
        pool.give_back(engine);
    }
    Ok(())
}

/// Relays an answer to its end; whether both connections may be used again.
async fn relay(
    engine: &mut TcpStream,
    client: &mut TcpStream,
    mut answer: Vec<u8>,
    is_headless: bool,
) -> anyhow::Result<(Vec<u8>, bool)> {
    answer.clear();
    let head = loop {
        match parse_response(&answer)? {
            Some(head) if head.status >= 200 => break head,
            // An interim answer: the relay gave its own.
            Some(head) => drop(answer.drain(..head.bytes)),
            None => {
                let count;
                (count, answer) = read_behind(engine, answer, READ_BYTES).await?;
                ensure!(count > 0, "the engine closed before its answer");
            }
        }
    };
    let framing = if is_headless {
        Framing::Sized(0)
    } else {
        head.framing
    };
    let mut decoder = Decoder::new(framing);
    let mut from = head.bytes;
    loop {
        let (length, is_over) = walk(&mut decoder, &answer[from..])?;
        ensure!(
            from + length == answer.len(),
            "the engine sent more than its answer"
        );
        let result;
        (result, answer) = client.write_all(answer).await;
        result?;
        answer.clear();
        if is_over {
            return Ok((answer, !head.close));
        }
        let count;
        (count, answer) = read_behind(engine, answer, READ_BYTES).await?;
        if count == 0 {
            ensure!(
                framing == Framing::UntilClose,
                "the engine closed inside its answer"
            );
            return Ok((answer, false));
        }
        from = 0;
    }
}

/// Serves a client's requests from an engine of HTTP/2.
pub(super) async fn to_http2(stream: TcpStream, pool: Rc<engine2::Pool>) -> anyhow::Result<()> {
    let mut client = Client::new(stream);
    while let Some(head) = client.head().await? {
        let request = request(&client.buffer[..head.bytes])?;
        let rest = client.buffer.split_off(head.bytes);
        client.buffer = rest;
        let slot = pool.slot().await?;
        let mut send = slot.send().ready().await?;
        let is_empty = head.framing == Framing::Sized(0);
        let (answer, mut out) = send.send_request(request, is_empty)?;
        let mut decoder = Decoder::new(head.framing);
        let mut is_over = is_empty;
        while !is_over {
            // The bytes go on as they are, without a copy; a next request's stay.
            let came = Bytes::from(std::mem::take(&mut client.buffer));
            let mut input = &came[..];
            loop {
                match decoder.next(&mut input)? {
                    Piece::Data(data) => send_all(&mut out, came.slice_ref(data), false).await?,
                    Piece::More => break,
                    Piece::End => {
                        is_over = true;
                        break;
                    }
                }
            }
            client.buffer.extend_from_slice(input);
            if is_over {
                send_all(&mut out, Bytes::new(), true).await?;
            } else {
                let came = client.read(BODY_READ_BYTES).await?;
                ensure!(came, "the client left inside its request");
            }
        }
        let is_headless = head.method == "HEAD";
        relay_http2(answer.await?, &mut client.stream, is_headless).await?;
        if head.close {
            return Ok(());
        }
    }
    Ok(())
}

/// Relays an answer of HTTP/2: what is there together leaves together, as one chunk.
async fn relay_http2(
    answer: Response<RecvStream>,
    client: &mut TcpStream,
    is_headless: bool,
) -> anyhow::Result<()> {
    let (parts, mut body) = answer.into_parts();
    let is_sized = parts.headers.contains_key(http::header::CONTENT_LENGTH);
    let has_body = !(body.is_end_stream() || is_headless);
    let mut text = Vec::with_capacity(1024);
    put_head(&mut text, &parts, is_sized, has_body);
    let mut gathered = Gathered::default();
    let mut is_over = !has_body;
    while !is_over || !text.is_empty() {
        if !is_over {
            is_over = gather(&mut body, &mut gathered, text.is_empty()).await?;
        }
        let bytes = gathered.bytes();
        if bytes > 0 && !is_sized {
            text.extend_from_slice(format!("{bytes:x}\r\n").as_bytes());
        }
        for piece in gathered.drain() {
            text.extend_from_slice(&piece);
        }
        if bytes > 0 && !is_sized {
            text.extend_from_slice(b"\r\n");
        }
        if is_over && has_body && !is_sized {
            text.extend_from_slice(b"0\r\n\r\n");
        }
        if !text.is_empty() {
            let result;
            (result, text) = client.write_all(text).await;
            result?;
            text.clear();
        }
        // No more than the stream's window is under way.
        body.flow_control().release_capacity(bytes)?;
    }
    Ok(())
}

fn put_head(text: &mut Vec<u8>, parts: &http::response::Parts, is_sized: bool, has_body: bool) {
    let reason = parts.status.canonical_reason().unwrap_or("");
    let status = parts.status.as_u16();
    text.extend_from_slice(format!("HTTP/1.1 {status} {reason}\r\n").as_bytes());
    for (name, value) in &parts.headers {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(match (is_sized, has_body) {
        (true, _) => b"\r\n",
        (false, true) => b"transfer-encoding: chunked\r\n\r\n",
        (false, false) if status == 204 || status == 304 => b"\r\n",
        (false, false) => b"content-length: 0\r\n\r\n",
    });
}

/// A request's head as HTTP/2 wants it: without what is about the connection.
fn request(head: &[u8]) -> anyhow::Result<Request<()>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADER_COUNT];
    let mut parsed = httparse::Request::new(&mut headers);
    let is_whole = parsed
        .parse(head)
        .context("a head that was parsed before")?
        .is_complete();
    let (true, Some(method), Some(target)) = (is_whole, parsed.method, parsed.path) else {
        bail!("a head without a target");
    };
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(method.as_bytes())?;
    let mut authority = None;
    for header in parsed.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes())?;
        match name {
            http::header::HOST => authority = Some(header.value),
            http::header::CONNECTION
            | http::header::TRANSFER_ENCODING
            | http::header::UPGRADE
            | http::header::EXPECT => {}
            name if name == "keep-alive" || name == "proxy-connection" => {}
            name => {
                let value = HeaderValue::from_bytes(header.value)?;
                request.headers_mut().append(name, value);
            }
        }
    }
    let authority = authority.context("a request without a host")?;
    *request.uri_mut() = Uri::builder()
        .scheme("http")
        .authority(authority)
        .path_and_query(target)
        .build()?;
    Ok(request)
}

impl Client {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            buffer: Vec::with_capacity(READ_BYTES),
        }
    }

    /// The next request's head, which stays at the start of the buffer; none when the client has
    /// left.
    async fn head(&mut self) -> anyhow::Result<Option<RequestHead>> {
        loop {
            if !self.buffer.is_empty()
                && let Some(head) = parse_request(&self.buffer)?
            {
                if head.expects_continue && head.framing != Framing::Sized(0) {
                    let (result, _) = self
                        .stream
                        .write_all(&b"HTTP/1.1 100 Continue\r\n\r\n"[..])
                        .await;
                    result?;
                }
                return Ok(Some(head));
            }
            if !self.read(READ_BYTES).await? {
                ensure!(self.buffer.is_empty(), "the client left inside a head");
                return Ok(None);
            }
            ensure!(
                self.buffer.len() <= HEAD_BYTES + BODY_READ_BYTES,
                "a head that is too long"
            );
        }
    }

    /// Reads behind what is there; false at the end.
    async fn read(&mut self, most: usize) -> anyhow::Result<bool> {
        let buffer = std::mem::take(&mut self.buffer);
        let count;
        (count, self.buffer) = read_behind(&mut self.stream, buffer, most).await?;
        Ok(count > 0)
    }
}

async fn read_behind(
    stream: &mut TcpStream,
    mut buffer: Vec<u8>,
    most: usize,
) -> anyhow::Result<(usize, Vec<u8>)> {
    let length = buffer.len();
    buffer.reserve(most);
    let slice = SliceMut::new(buffer, length, length + most);
    let (result, slice) = stream.read(slice).await;
    Ok((result?, slice.into_inner()))
}

/// How many of these bytes belong to the body, and whether it is over with them.
fn walk(decoder: &mut Decoder, bytes: &[u8]) -> anyhow::Result<(usize, bool)> {
    let mut input = bytes;
    loop {
        match decoder.next(&mut input)? {
            Piece::Data(_) => {}
            Piece::More => return Ok((bytes.len() - input.len(), false)),
            Piece::End => return Ok((bytes.len() - input.len(), true)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_loses_what_is_about_the_connection() {
        let head = b"POST /v1/x?y=1 HTTP/1.1\r\nHost: engine:80\r\nConnection: close\r\n\
            Transfer-Encoding: chunked\r\nX-Own: A\r\nx-own: B\r\n\r\n";
        let request = request(head).unwrap();
        assert_eq!(request.uri(), "http://engine:80/v1/x?y=1");
        let own: Vec<_> = request.headers().get_all("x-own").iter().collect();
        assert_eq!(own, ["A", "B"]);
        assert_eq!(request.headers().len(), 2);
    }

    #[test]
    fn a_body_is_walked_to_its_end_and_no_further() {
        let mut decoder = Decoder::new(Framing::Chunked);
        assert_eq!(walk(&mut decoder, b"5\r\nhel").unwrap(), (6, false));
        assert_eq!(
            walk(&mut decoder, b"lo\r\n0\r\n\r\nPOST").unwrap(),
            (9, true)
        );
    }
}
