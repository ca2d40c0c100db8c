//! The bytes of one health check, HTTP/1.1 or HTTP/2: a question, and the status of its answer.
//!
//! Not a client: one request on a connection of its own, of whose answer nothing counts but the
//! status. So HTTP/2 needs no state either: a fixed preface, one HEADERS frame, and the first field
//! of the answer's, which is `:status` by RFC 9113, section 8.3.2.

/// Longest answer that is looked through for its status, bytes.
pub const MOST_BYTES: usize = 64 * 1024;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct HealthCheck<'a> {
    /// In HTTP/2, else in HTTP/1.1.
    pub http2: bool,
    /// Inside TLS.
    pub secure: bool,
    /// Value of `host` or `:authority`.
    pub authority: &'a str,
    /// The path.
    pub path: &'a str,
    /// Token for the `authorization` header.
    pub bearer: Option<&'a [u8]>,
}

/// How far an answer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// More bytes are needed.
    More,
    /// Its status is this.
    Status(u16),
    /// It is none.
    Broken,
}

/// RFC 9113, section 3.4, and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

impl HealthCheck<'_> {
    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.http2 {
            self.to_http2()
        } else {
            self.to_http1()
        }
    }

    fn to_http1(self) -> Vec<u8> {
        let Self {
            path, authority, ..
        } = self;
        let mut bytes = format!(
            "GET {path} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: pointsman\r\n\
             connection: close\r\n"
        )
        .into_bytes();
        if let Some(token) = self.bearer {
            bytes.extend_from_slice(b"authorization: Bearer ");
            bytes.extend_from_slice(token);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        bytes
    }

    /// Field names by their places in HPACK's static table (RFC 7541, appendix A), values as they
    /// are, nothing to be remembered.
    fn to_http2(self) -> Vec<u8> {
        // `:method: GET`, then `:scheme: http` or `https`.
        let mut block = vec![0x82, if self.secure { 0x87 } else { 0x86 }];
        literal(&mut block, 1, self.authority.as_bytes());
        literal(&mut block, 4, self.path.as_bytes());
        literal(&mut block, 58, b"pointsman");
        if let Some(token) = self.bearer {
            literal(&mut block, 23, &[b"Bearer ", token].concat());
        }
        let mut bytes = PREFACE.to_vec();
        // Heads are bounded by the policy's and the credential's limits, far below a frame's.
        let length = (block.len() as u32).to_be_bytes();
        bytes.extend_from_slice(&length[1..]);
        bytes.extend_from_slice(&[HEADERS, END_STREAM | END_HEADERS, 0, 0, 0, 1]);
        bytes.extend_from_slice(&block);
        bytes
    }
}

/// What `bytes`, all that came so far, are as an answer.
#[must_use]
pub fn reply(http2: bool, bytes: &[u8]) -> Reply {
    let found = if http2 {
        http2_reply(bytes)
    } else {
        http1_reply(bytes)
    };
    match found {
        Reply::More if bytes.len() >= MOST_BYTES => Reply::Broken,
        found => found,
    }
}

fn http1_reply(mut bytes: &[u8]) -> Reply {
    loop {
        let Some(line) = bytes.get(..13) else {
            let begun = &b"HTTP/1."[..bytes.len().min(7)];
            return if bytes.starts_with(begun) {
                Reply::More
            } else {
                Reply::Broken
            };
        };
        let is_line = line.starts_with(b"HTTP/1.") && line[8] == b' ' && line[12] <= b' ';
        match digits(&line[9..12]) {
            Some(100..=199) if is_line => {}
            Some(status) if is_line => return Reply::Status(status),
            _ => return Reply::Broken,
        }
        // An interim answer; the next follows its head.
        match memchr::memmem::find(bytes, b"\r\n\r\n") {
            Some(end) => bytes = &bytes[end + 4..],
            None => return Reply::More,
        }
    }
}

fn http2_reply(mut bytes: &[u8]) -> Reply {
    loop {
        let Some((head, rest)) = bytes.split_at_checked(FRAME_HEAD) else {
            return Reply::More;
        };
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        if length > MOST_BYTES {
            return Reply::Broken;
        }
        let Some((payload, rest)) = rest.split_at_checked(length) else {
            return Reply::More;
        };
        match (head[3], &head[5..9]) {
            (HEADERS, [_, 0, 0, 1]) => match status_of(head[4], payload) {
                Some(100..=199) => {}
                Some(status) => return Reply::Status(status),
                None => return Reply::Broken,
            },
            (RST_STREAM, [_, 0, 0, 1]) | (GOAWAY, _) => return Reply::Broken,
            _ => {}
        }
        bytes = rest;
    }
}

/// The `:status` that a HEADERS frame begins with.
fn status_of(flags: u8, mut payload: &[u8]) -> Option<u16> {
    if flags & PADDED != 0 {
        payload = payload.get(1..)?;
    }
    if flags & PRIORITY != 0 {
        payload = payload.get(5..)?;
    }
    // Changes of the dynamic table's size come first; ours is never used.
    while payload.first()? & 0xe0 == 0x20 {
        let more = |byte: &&u8| **byte & 0x80 != 0;
        let is_long = payload[0] & 0x1f == 0x1f;
        let tail = if is_long {
            1 + payload[1..].iter().take_while(more).count()
        } else {
            0
        };
        payload = payload.get(1 + tail..)?;
    }
    let (&first, rest) = payload.split_first()?;
    match first {
        0x88..=0x8e => Some([200, 204, 206, 304, 400, 404, 500][usize::from(first - 0x88)]),
        // A literal whose name is that of entry 8 to 14 of the static table.
        0x08..=0x0e | 0x18..=0x1e | 0x48..=0x4e => {
            let (&length, value) = rest.split_first()?;
            let value = value.get(..usize::from(length & 0x7f))?;
            if length & 0x80 == 0 {
                digits(value)
            } else {
                huffman_digits(value)
            }
        }
        _ => None,
    }
}

/// A number of three digits.
fn digits(text: &[u8]) -> Option<u16> {
    let is_number = text.len() == 3 && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| {
        text.iter()
            .fold(0, |n, digit| n * 10 + u16::from(digit - b'0'))
    })
}

/// A number of three digits in the code of RFC 7541, appendix B: 0 to 2 have five bits, 3 to 9 six.
fn huffman_digits(code: &[u8]) -> Option<u16> {
    let bits = code
        .iter()
        .take(4)
        .fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte));
    let mut left = 8 * code.len().min(4);
    let mut number = 0;
    for _ in 0..3 {
        let next = |count: usize| Some(bits >> left.checked_sub(count)? & ((1 << count) - 1));
        let (digit, count) = match next(5)? {
            digit @ 0..=2 => (digit, 5),
            _ => (
                next(6)?.checked_sub(0x19).filter(|digit| *digit <= 6)? + 3,
                6,
            ),
        };
        left -= count;
        number = number * 10 + digit as u16;
    }
    Some(number)
}

/// A field that is not to be remembered, whose name is in the static table.
fn literal(block: &mut Vec<u8>, name: usize, value: &[u8]) {
    integer(block, 0, 4, name);
    integer(block, 0, 7, value.len());
    block.extend_from_slice(value);
}

/// RFC 7541, section 5.1.
fn integer(block: &mut Vec<u8>, high: u8, bits: u32, value: usize) {
    let most = (1 << bits) - 1;
    if value < most {
        block.push(high | value as u8);
        return;
    }
    block.push(high | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        block.push(rest as u8 | 128);
        rest >>= 7;
    }
    block.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: HealthCheck<'static> = HealthCheck {
        http2: false,
        secure: false,
        authority: "e1:8000",
        path: "/health",
        bearer: None,
    };

    #[test]
    fn a_question_in_http1() {
        let with_token = HealthCheck {
            bearer: Some(b"t0k"),
            ..CHECK
        };
        let text = String::from_utf8(with_token.to_bytes()).unwrap();
        assert_eq!(
            text,
            "GET /health HTTP/1.1\r\nhost: e1:8000\r\nuser-agent: pointsman\r\nconnection: close\r\n\
             authorization: Bearer t0k\r\n\r\n"
        );
    }

    #[test]
    fn a_question_in_http2_is_what_a_server_reads() {
        let long = "/".repeat(300);
        for (path, secure) in [("/health", false), (&*long, true)] {
            let check = HealthCheck {
                http2: true,
                secure,
                path,
                bearer: Some(b"t"),
                ..CHECK
            };
            let bytes = check.to_bytes();
            assert!(bytes.starts_with(PREFACE));
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            let request = runtime.block_on(async {
                let (client, server) = tokio::io::duplex(4_096);
                let (_reader, mut writer) = tokio::io::split(client);
                tokio::io::AsyncWriteExt::write_all(&mut writer, &bytes)
                    .await
                    .unwrap();
                let mut connection = h2::server::handshake(server).await.unwrap();
                connection.accept().await.unwrap().unwrap().0
            });
            assert_eq!(
                (request.method(), request.uri().path()),
                (&http::Method::GET, path)
            );
            let scheme = if secure { "https" } else { "http" };
            assert_eq!(request.uri().scheme_str(), Some(scheme));
            assert_eq!(request.uri().authority().unwrap(), "e1:8000");
            assert_eq!(request.headers()["authorization"], "Bearer t");
        }
    }

    /// What an answer is, all at once; on the way to it more must be wanted.
    fn replied(http2: bool, bytes: &[u8]) -> Reply {
        let whole = reply(http2, bytes);
        let first = (0..bytes.len()).map(|end| reply(http2, &bytes[..end]));
        let first = first.chain([whole]).find(|reply| *reply != Reply::More);
        assert_eq!(first.unwrap_or(Reply::More), whole);
        whole
    }

    #[test]
    fn answers_in_http1() {
        let status = |text: &str| replied(false, text.as_bytes());
        assert_eq!(status("HTTP/1.1 200 OK\r\n"), Reply::Status(200));
        assert_eq!(status("HTTP/1.0 503\r\n"), Reply::Status(503));
        assert_eq!(
            status("HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 204 \r\n\r\n"),
            Reply::Status(204)
        );
        assert_eq!(status("HTTP/1.1 20"), Reply::More);
        assert_eq!(status("SSH-2.0-OpenSSH\r\n"), Reply::Broken);
        assert_eq!(status("HTTP/1.1 abc OK\r\n"), Reply::Broken);
        let endless = b"HTTP/1.1 100 Continue\r\nx: ".repeat(4_000);
        assert_eq!(reply(false, &endless), Reply::Broken);
    }

    #[test]
    fn answers_in_http2() {
        let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
            let length = payload.len() as u8;
            [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
        };
        let settings = frame(4, 0, 0, &[0, 3, 0, 0, 0, 100]);
        let status = |payload: &[u8], flags| {
            replied(
                true,
                &[&settings[..], &frame(HEADERS, flags, 1, payload)].concat(),
            )
        };
        assert_eq!(status(&[0x88], 4), Reply::Status(200));
        assert_eq!(
            status(&[0x3f, 0xe1, 0x1f, 0x8e, 0x40], 4),
            Reply::Status(500)
        );
        assert_eq!(status(&[0x48, 3, b'5', b'0', b'3'], 4), Reply::Status(503));
        assert_eq!(status(&[2, 0x89, 0, 0], 4 | PADDED), Reply::Status(204));
        assert_eq!(
            status(&[0, 0, 0, 0, 1, 0x88], 4 | PRIORITY),
            Reply::Status(200)
        );
        // "503" in the code: 011011 00000 011001, padded by ones.
        let code = [0b0110_1100, 0b0000_1100, 0b1111_1111];
        assert_eq!(
            status(&[&[0x08, 0x83], &code[..]].concat(), 4),
            Reply::Status(503)
        );
        assert_eq!(status(&[0x82], 4), Reply::Broken);
        assert_eq!(status(&[], 4), Reply::Broken);
        assert_eq!(replied(true, &settings), Reply::More);
        assert_eq!(replied(true, &frame(GOAWAY, 0, 0, &[0; 8])), Reply::Broken);
        assert_eq!(
            replied(true, &frame(RST_STREAM, 0, 1, &[0; 4])),
            Reply::Broken
        );
        assert_eq!(
            reply(true, b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            Reply::Broken
        );
    }
}
