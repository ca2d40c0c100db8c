//! Heads across the versions: HTTP/2 fields to the text of an HTTP/1.1 head, and back.
//!
//! Inside the proxy a head has one form, HTTP/1.1's text and the spans into it. What arrives by
//! HTTP/2 is written out as such a text and parsed by the one strict parser, so that no byte can
//! mean something here that it did not mean there: what would break a line is refused by the parser
//! that would have been broken. What leaves by HTTP/2 is taken from the parsed fields, by the same
//! rules as in [`crate::wire::http1_write`].

use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri};

use crate::decide::why;
use crate::wire::field::{Field, Meaning};
use crate::wire::framing::ResponseFraming;
use crate::wire::head::HeadError;
use crate::wire::http1_write::{RequestId, is_withheld};
use crate::wire::request_head::RequestHead;
use crate::wire::response_head::ResponseHead;

/// The name of the one request id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The name of what a trusted client is told.
const WHY: HeaderName = HeaderName::from_static(why::HEADER);

/// What a forwarded request takes from the engine and from us.
#[derive(Clone, Copy, Debug)]
pub struct EngineRequest2<'a> {
    /// Whom `:authority` names: the engine, not what the client called the proxy.
    pub authority: &'a Authority,
    /// `:scheme`.
    pub scheme: &'a Scheme,
    /// Length of the body, where it is known.
    pub length: Option<u64>,
    /// Bearer token of the engine's credential; replaces the client's `Authorization`.
    pub bearer: Option<&'a [u8]>,
    /// The one `x-request-id`.
    pub request_id: &'a RequestId,
    /// A header of the client's that is for us alone, in lower case.
    pub withheld: Option<&'a str>,
}

/// Writes a client's request as the text of an HTTP/1.1 head.
///
/// # Errors
/// When `:authority` is missing and no `host` stands for it, or both are there and differ (RFC
/// 9113, section 8.3.1).
pub fn request_text(out: &mut Vec<u8>, parts: &http::request::Parts) -> Result<(), HeadError> {
    out.extend_from_slice(parts.method.as_str().as_bytes());
    out.push(b' ');
    let path = parts
        .uri
        .path_and_query()
        .map_or("", http::uri::PathAndQuery::as_str);
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let stated = parts.uri.authority().map(|name| name.as_str().as_bytes());
    let mut hosts = parts.headers.get_all("host").iter();
    let host = hosts.next().map(HeaderValue::as_bytes);
    let name = stated.or(host).ok_or(HeadError::Host)?;
    if hosts.next().is_some() || host.is_some_and(|host| host != name) {
        return Err(HeadError::Host);
    }
    line(out, b"host", name);
    // Clients may send a cookie in crumbs, which HTTP/1.1 has no form for (section 8.2.3).
    let mut cookie = Vec::new();
    for (name, value) in &parts.headers {
        match name.as_str() {
            "host" => {}
            "cookie" => {
                if !cookie.is_empty() {
                    cookie.extend_from_slice(b"; ");
                }
                cookie.extend_from_slice(value.as_bytes());
            }
            other => line(out, other.as_bytes(), value.as_bytes()),
        }
    }
    if !cookie.is_empty() {
        line(out, b"cookie", &cookie);
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Writes an engine's answer as the text of an HTTP/1.1 head.
pub fn response_text(out: &mut Vec<u8>, status: StatusCode, headers: &HeaderMap) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
    for (name, value) in headers {
        line(out, name.as_str().as_bytes(), value.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// The request as it goes to an engine. `buffer` is what `head` was parsed from.
///
/// # Errors
/// When the target has a byte that HTTP/1.1 lets pass and a `:path` may not have.
pub fn engine_request(
    head: &RequestHead,
    buffer: &[u8],
    engine: &EngineRequest2<'_>,
) -> Result<Request<()>, HeadError> {
    let method = http::Method::from_bytes(head.method_span.of(buffer));
    let uri = Uri::builder()
        .scheme(engine.scheme.clone())
        .authority(engine.authority.clone())
        .path_and_query(target(head.origin.of(buffer))?)
        .build();
    let mut request = Request::new(());
    *request.method_mut() = method.map_err(|_| HeadError::Method)?;
    *request.uri_mut() = uri.map_err(|_| HeadError::Target)?;
    *request.version_mut() = http::Version::HTTP_2;
    let headers = request.headers_mut();
    headers.reserve(head.fields.len() + 3);
    for field in &head.fields {
        if field.meaning.goes_to_engine(engine.bearer.is_some())
            && !is_withheld(field, buffer, engine.withheld)
        {
            append(headers, buffer, field)?;
        }
    }
    if let Some(token) = engine.bearer {
        let value = [b"Bearer ", token].concat();
        let mut value = HeaderValue::from_bytes(&value).map_err(|_| HeadError::Header)?;
        value.set_sensitive(true);
        headers.append(http::header::AUTHORIZATION, value);
    }
    headers.append(REQUEST_ID, id_value(engine.request_id)?);
    if let Some(length) = engine.length {
        headers.append(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(request)
}

/// An answer as it goes to a client, with `why` where it may ask. `buffer` is what `head` was parsed
/// from; an answer of our own has its request's id among its fields already.
///
/// # Errors
/// When a field has a byte that HTTP/1.1 lets pass and HTTP/2 does not.
pub fn client_response(
    head: &ResponseHead,
    buffer: &[u8],
    request_id: Option<&RequestId>,
    why: Option<&str>,
) -> Result<Response<()>, HeadError> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(head.status).map_err(|_| HeadError::Status)?;
    *response.version_mut() = http::Version::HTTP_2;
    let headers = response.headers_mut();
    headers.reserve(head.fields.len() + 1);
    for field in &head.fields {
        // An answer of our own has the one id already; an engine's is replaced by it.
        let is_own_id = field.meaning == Meaning::RequestId && request_id.is_none();
        if is_own_id || field.meaning.goes_to_client(head.states_length()) {
            append(headers, buffer, field)?;
        }
    }
    if let ResponseFraming::Sized(length) = head.framing {
        headers.append(CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Some(id) = request_id {
        headers.append(REQUEST_ID, id_value(id)?);
    }
    if let Some(why) = why {
        let value = HeaderValue::from_str(why).map_err(|_| HeadError::Header)?;
        headers.append(WHY, value);
    }
    Ok(response)
}

/// A target in origin form; an absolute one without a path asks for `/`.
fn target(origin: &[u8]) -> Result<PathAndQuery, HeadError> {
    let target = if origin.starts_with(b"/") {
        PathAndQuery::try_from(origin)
    } else {
        let mut whole = vec![b'/'];
        whole.extend_from_slice(origin);
        PathAndQuery::try_from(whole)
    };
    target.map_err(|_| HeadError::Target)
}

fn append(headers: &mut HeaderMap, buffer: &[u8], field: &Field) -> Result<(), HeadError> {
    let name = HeaderName::from_bytes(field.name.of(buffer)).map_err(|_| HeadError::Header)?;
    let value = HeaderValue::from_bytes(field.value.of(buffer)).map_err(|_| HeadError::Header)?;
    headers.append(name, value);
    Ok(())
}

fn id_value(id: &RequestId) -> Result<HeaderValue, HeadError> {
    HeaderValue::from_bytes(id.as_bytes()).map_err(|_| HeadError::Header)
}

fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::head::{HeadLimits, HeadSearch};

    fn parts(request: http::request::Builder) -> http::request::Parts {
        request.body(()).unwrap().into_parts().0
    }

    fn parsed(text: &[u8]) -> RequestHead {
        let (mut search, limits) = (HeadSearch::default(), HeadLimits::default());
        RequestHead::parse(text, &mut search, &limits)
            .unwrap()
            .unwrap()
    }

    #[test]
    fn a_request_becomes_one_text() {
        let request = Request::post("http://p.example/v1/x?a=%2F")
            .header("x-b", "two  words")
            .header("cookie", "a=1")
            .header("content-length", "5")
            .header("cookie", "b=2");
        let mut text = Vec::new();
        request_text(&mut text, &parts(request)).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "POST /v1/x?a=%2F HTTP/1.1\r\nhost: p.example\r\nx-b: two  words\r\n\
             content-length: 5\r\ncookie: a=1; b=2\r\n\r\n"
        );
    }

    #[test]
    fn two_names_for_the_host_must_be_one() {
        let mut text = Vec::new();
        for (uri, hosts, fits) in [
            ("http://a/", vec!["a"], true),
            ("http://a/", vec!["b"], false),
            ("http://a/", vec!["a", "a"], false),
            ("/", vec!["a"], true),
            ("/", vec![], false),
        ] {
            let mut request = Request::get(uri);
            for host in &hosts {
                request = request.header("host", *host);
            }
            let result = request_text(&mut text, &parts(request));
            assert_eq!(result.is_ok(), fits, "{uri} with {hosts:?}");
        }
    }

    #[test]
    fn c11_what_belongs_to_a_connection_stays_on_it() {
        let text = b"POST http://p?q HTTP/1.1\r\nHost: p\r\nConnection: x-hop\r\nX-Hop: 1\r\n\
                     Keep-Alive: timeout=5\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\
                     Authorization: Bearer u\r\nX-Own: A\r\nx-own: b\r\nX-Request-Id: mine\r\n\r\n";
        let head = parsed(text);
        let id = RequestId::choose(&head, text, 1);
        let engine = EngineRequest2 {
            authority: &Authority::from_static("e:1"),
            scheme: &Scheme::HTTP,
            length: Some(7),
            bearer: Some(b"secret"),
            request_id: &id,
            withheld: None,
        };
        let request = engine_request(&head, text, &engine).unwrap();
        assert_eq!(request.uri(), "http://e:1/?q");
        let lines: Vec<(&str, &str)> = request
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(
            lines,
            [
                ("x-own", "A"),
                ("x-own", "b"),
                ("authorization", "Bearer secret"),
                ("x-request-id", "mine"),
                ("content-length", "7"),
            ]
        );
    }

    #[test]
    fn an_answer_crosses_both_ways() {
        let text = b"HTTP/1.1 200 Fine\r\nServer: s\r\nTransfer-Encoding: chunked\r\n\
                     Keep-Alive: timeout=5\r\nX-Request-Id: theirs\r\nContent-Type: a/b\r\n\r\n";
        let (mut search, limits) = (HeadSearch::default(), HeadLimits::default());
        let head = ResponseHead::parse(text, &mut search, &limits, false)
            .unwrap()
            .unwrap();
        let response = client_response(&head, text, Some(&RequestId::made(0)), None).unwrap();
        let (parts, ()) = response.into_parts();
        let mut out = Vec::new();
        response_text(&mut out, parts.status, &parts.headers);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "HTTP/1.1 200 OK\r\nserver: s\r\ncontent-type: a/b\r\n\
             x-request-id: 00000000000000000000000000000000\r\n\r\n"
        );
    }
}
