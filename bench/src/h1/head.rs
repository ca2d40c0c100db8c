//! Heads of requests and responses: what the instruments need of them.

use super::{HEAD_BYTES, HEADER_COUNT, Malformed};

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Exactly so many bytes.
    Sized(u64),
    /// Chunks, ended by an empty one.
    Chunked,
    /// Ends with the connection (responses only); a lost connection looks the same.
    UntilClose,
}

/// A request's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Bytes of the head, the blank line included.
    pub bytes: usize,
    /// The method, as sent.
    pub method: String,
    /// Path and query, as sent.
    pub target: String,
    /// How the body ends.
    pub framing: Framing,
    /// The client asked to close after this exchange.
    pub close: bool,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
}

/// A response's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Bytes of the head, the blank line included.
    pub bytes: usize,
    /// The status code.
    pub status: u16,
    /// How the body ends.
    pub framing: Framing,
    /// The server will close after this exchange.
    pub close: bool,
    /// Which mock engine answered, if one did and said so.
    pub engine: Option<String>,
    /// Seconds after which to come again, if it said so.
    pub retry_after_s: Option<u64>,
}

/// Parses a request's head at the start of `bytes`; `None` while it is incomplete.
pub fn parse_request(bytes: &[u8]) -> Result<Option<RequestHead>, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; HEADER_COUNT];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return incomplete(bytes),
        Err(_) => return Err(Malformed("the request's head cannot be parsed")),
    };
    let (Some(method), Some(target), Some(version)) =
        (request.method, request.path, request.version)
    else {
        return Err(Malformed("the request line is incomplete"));
    };
    let fields = Fields::read(request.headers, version)?;
    Ok(Some(RequestHead {
        bytes: length,
        method: method.to_owned(),
        target: target.to_owned(),
        framing: fields.framing()?.unwrap_or(Framing::Sized(0)),
        close: fields.close,
        expects_continue: fields.expects_continue,
    }))
}

/// Parses a response's head at the start of `bytes`; `None` while it is incomplete.
pub fn parse_response(bytes: &[u8]) -> Result<Option<ResponseHead>, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; HEADER_COUNT];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return incomplete(bytes),
        Err(_) => return Err(Malformed("the response's head cannot be parsed")),
    };
    let (Some(status), Some(version)) = (response.code, response.version) else {
        return Err(Malformed("the status line is incomplete"));
    };
    let fields = Fields::read(response.headers, version)?;
    let bodiless = (100..200).contains(&status) || status == 204 || status == 304;
    let framing = match fields.framing()? {
        _ if bodiless => Framing::Sized(0),
        Some(framing) => framing,
        None => Framing::UntilClose,
    };
    Ok(Some(ResponseHead {
        bytes: length,
        status,
        framing,
        close: fields.close || framing == Framing::UntilClose,
        engine: fields.engine,
        retry_after_s: fields.retry_after_s,
    }))
}

/// The header fields that frame a message.
#[derive(Default)]
struct Fields {
    length: Option<u64>,
    chunked: bool,
    close: bool,
    expects_continue: bool,
    engine: Option<String>,
    retry_after_s: Option<u64>,
}

impl Fields {
    fn read(headers: &[httparse::Header<'_>], version: u8) -> Result<Self, Malformed> {
        let mut fields = Self {
            close: version == 0,
            ..Self::default()
        };
        for header in headers {
            let value = header.value;
            if header.name.eq_ignore_ascii_case("content-length") {
                let length = parse_length(value)?;
                if fields.length.is_some_and(|earlier| earlier != length) {
                    return Err(Malformed("two values of content-length"));
                }
                fields.length = Some(length);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                if !value.trim_ascii().eq_ignore_ascii_case(b"chunked") || fields.chunked {
                    return Err(Malformed("a transfer-encoding other than one chunked"));
                }
                fields.chunked = true;
            } else if header.name.eq_ignore_ascii_case("connection") {
                for word in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                    if word.eq_ignore_ascii_case(b"close") {
                        fields.close = true;
                    } else if word.eq_ignore_ascii_case(b"keep-alive") && version == 0 {
                        fields.close = false;
                    }
                }
            } else if header.name.eq_ignore_ascii_case("expect") {
                fields.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
            } else if header.name.eq_ignore_ascii_case("retry-after") {
                let text = std::str::from_utf8(value).ok();
                fields.retry_after_s = text.and_then(|text| text.trim().parse().ok());
            } else if header.name.eq_ignore_ascii_case(crate::engine::NAME_HEADER) {
                fields.engine = Some(String::from_utf8_lossy(value).into_owned());
            }
        }
        Ok(fields)
    }

    fn framing(&self) -> Result<Option<Framing>, Malformed> {
        match (self.length, self.chunked) {
            (Some(_), true) => Err(Malformed("content-length beside transfer-encoding")),
            (_, true) => Ok(Some(Framing::Chunked)),
            (Some(length), false) => Ok(Some(Framing::Sized(length))),
            (None, false) => Ok(None),
        }
    }
}

fn incomplete<T>(bytes: &[u8]) -> Result<Option<T>, Malformed> {
    if bytes.len() > HEAD_BYTES {
        Err(Malformed("the head is too long"))
    } else {
        Ok(None)
    }
}

fn parse_length(value: &[u8]) -> Result<u64, Malformed> {
    let digits = value.trim_ascii();
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits)
        .ok()
        .filter(|_| plain)
        .and_then(|digits| digits.parse().ok())
        .ok_or(Malformed("content-length is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_head_says_how_its_body_ends() {
        let text = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n{}";
        let head = parse_request(text).unwrap().unwrap();
        assert_eq!(
            (head.bytes, head.framing),
            (text.len() - 2, Framing::Sized(7))
        );
        assert_eq!(
            (head.method.as_str(), head.target.as_str()),
            ("POST", "/v1/x")
        );
        assert!(!head.close && !head.expects_continue);
        assert_eq!(parse_request(&text[..30]), Ok(None));
    }

    #[test]
    fn ambiguous_framing_is_refused() {
        for fields in [
            "content-length: 1\r\ncontent-length: 2",
            "content-length: 1\r\ntransfer-encoding: chunked",
            "content-length: +1",
            "transfer-encoding: gzip, chunked",
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
            assert!(parse_response(text.as_bytes()).is_err(), "{fields}");
        }
    }

    #[test]
    fn a_response_without_length_ends_with_its_connection() {
        let head = parse_response(b"HTTP/1.1 200 OK\r\nx-mock-engine: C\r\n\r\n")
            .unwrap()
            .unwrap();
        assert_eq!((head.framing, head.close), (Framing::UntilClose, true));
        assert_eq!(head.engine.as_deref(), Some("C"));
        let head = parse_response(b"HTTP/1.1 204 No Content\r\n\r\n")
            .unwrap()
            .unwrap();
        assert_eq!((head.framing, head.close), (Framing::Sized(0), false));
    }
}
