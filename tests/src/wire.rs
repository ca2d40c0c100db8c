//! The little of HTTP/1.1 that a scripted peer needs: one message read strictly.
//!
//! Strict on purpose: whatever the proxy writes is either exactly right or a failed test. Not the
//! proxy's parser, so that both cannot be wrong in the same way.

use std::io::{self, Read};

/// A message as it came: head, body without its framing, and how the body ended.
#[derive(Clone, Debug)]
pub struct Message {
    /// First line, without its line end.
    pub start: String,
    /// Header fields in order, names as written.
    pub headers: Vec<(String, String)>,
    /// Body bytes, chunk framing removed.
    pub body: Vec<u8>,
    /// Trailer fields of a chunked body, as lines.
    pub trailers: Vec<String>,
    /// How the body ended.
    pub ending: Ending,
}

/// How a message's body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As its framing says.
    Complete,
    /// The connection ended before the framing said so.
    Broken,
    /// It had no length, and the connection ended in order.
    Closed,
}

/// How a body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    None,
    /// `content-length`.
    Sized(usize),
    /// `transfer-encoding: chunked`.
    Chunked,
    /// Everything until the connection ends.
    UntilClose,
}

impl Message {
    /// The value of the only field of that name.
    ///
    /// # Panics
    /// When there are several.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self
            .headers
            .iter()
            .filter(|(key, _)| key.eq_ignore_ascii_case(name));
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(
            found.next().is_none(),
            "{name} stands twice in {:?}",
            self.headers
        );
        value
    }

    /// Status code of a response.
    ///
    /// # Panics
    /// When this is none.
    #[must_use]
    pub fn status(&self) -> u16 {
        let code = self
            .start
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3)?.parse().ok());
        code.unwrap_or_else(|| panic!("no status line: {}", self.start))
    }

    /// The body as text.
    ///
    /// # Panics
    /// When it is no UTF-8.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is text")
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("no JSON ({error}): {}", String::from_utf8_lossy(&self.body))
        })
    }

    /// Method and target of a request.
    ///
    /// # Panics
    /// When this is none.
    #[must_use]
    pub fn target(&self) -> (&str, &str) {
        let parts: Vec<&str> = self.start.split(' ').collect();
        assert!(
            parts.len() == 3 && parts[2] == "HTTP/1.1",
            "no request line: {}",
            self.start
        );
        (parts[0], parts[1])
    }
}

/// Bytes read ahead of what was asked for, and where they come from.
pub struct Source<R> {
    from: R,
    ahead: Vec<u8>,
    read_bytes: usize,
}

impl<R: Read> Source<R> {
    /// Reads from `from`.
    pub fn new(from: R) -> Self {
        Self {
            from,
            ahead: Vec::new(),
            read_bytes: 0,
        }
    }

    /// What the bytes come from.
    pub fn inner(&self) -> &R {
        &self.from
    }

    /// The same, to be written to.
    pub fn inner_mut(&mut self) -> &mut R {
        &mut self.from
    }

    /// Bytes that are here and that nobody asked for yet.
    #[must_use]
    pub fn ahead_bytes(&self) -> usize {
        self.ahead.len()
    }

    /// Reads some bytes; `false` at the end of the stream.
    ///
    /// # Errors
    /// What the operating system says, a reset among it.
    ///
    /// # Panics
    /// When the read timeout of the socket, which is the watchdog, passes.
    pub fn fill(&mut self) -> io::Result<bool> {
        self.fill_at_most(64 * 1024)
    }

    /// Like [`Source::fill`], of at most `most` bytes.
    ///
    /// # Errors
    /// What the operating system says.
    ///
    /// # Panics
    /// When the watchdog passes.
    pub fn fill_at_most(&mut self, most: usize) -> io::Result<bool> {
        let mut block = vec![0; most];
        let count = loop {
            match self.from.read(&mut block) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    panic!(
                        "the peer stays silent; read so far: {} bytes",
                        self.read_bytes
                    )
                }
                other => break other?,
            }
        };
        self.ahead.extend_from_slice(&block[..count]);
        self.read_bytes += count;
        Ok(count > 0)
    }

    /// A whole head, or `None` when the stream ends before its first byte.
    ///
    /// # Errors
    /// When the stream ends or breaks in the middle.
    pub fn head(&mut self) -> io::Result<Option<Message>> {
        loop {
            if let Some(end) = find(&self.ahead, b"\r\n\r\n") {
                let head: Vec<u8> = self.ahead.drain(..end + 4).collect();
                return Ok(Some(parse_head(&head[..end])));
            }
            if !self.fill()? {
                return if self.ahead.is_empty() {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
        }
    }

    /// Reads the body that follows `message`'s head into it. A broken one is left as far as it
    /// came.
    pub fn body(&mut self, message: &mut Message, framing: Framing) {
        let ended = match framing {
            Framing::None => Ok(Ending::Complete),
            Framing::Sized(length) => self
                .take(length, &mut message.body)
                .map(|()| Ending::Complete),
            Framing::Chunked => self.chunks(message).map(|()| Ending::Complete),
            Framing::UntilClose => self.rest(&mut message.body).map(|()| Ending::Closed),
        };
        message.ending = ended.unwrap_or(Ending::Broken);
    }

    /// Moves `length` bytes to `into`, or as many as come before the end.
    fn take(&mut self, length: usize, into: &mut Vec<u8>) -> io::Result<()> {
        let mut left = length;
        loop {
            let count = left.min(self.ahead.len());
            into.extend(self.ahead.drain(..count));
            left -= count;
            if left == 0 {
                return Ok(());
            }
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn rest(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        loop {
            into.append(&mut self.ahead);
            if !self.fill()? {
                return Ok(());
            }
        }
    }

    fn chunks(&mut self, message: &mut Message) -> io::Result<()> {
        loop {
            let line = self.line()?;
            let size = usize::from_str_radix(&line, 16)
                .unwrap_or_else(|_| panic!("no chunk size: {line:?}"));
            if size > 0 {
                self.take(size, &mut message.body)?;
            }
            let mut end = self.line()?;
            while size == 0 && !end.is_empty() {
                message.trailers.push(end);
                end = self.line()?;
            }
            assert!(
                end.is_empty(),
                "after a chunk of {size} bytes stands {end:?}"
            );
            if size == 0 {
                return Ok(());
            }
        }
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = find(&self.ahead, b"\r\n") {
                let line: Vec<u8> = self.ahead.drain(..end + 2).collect();
                return Ok(String::from_utf8(line[..end].to_vec()).expect("chunk lines are ASCII"));
            }
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// How the message is framed, by its head.
///
/// # Panics
/// When the head frames it twice or in a way that nobody may.
#[must_use]
pub fn framing(message: &Message, response: bool) -> Framing {
    let coding = message.header("transfer-encoding");
    let length = message.header("content-length");
    match (coding, length) {
        (Some(coding), None) => {
            assert_eq!(coding, "chunked", "an unknown coding");
            Framing::Chunked
        }
        (None, Some(length)) => Framing::Sized(length.parse().expect("a length is a number")),
        (None, None) if response && may_have_body(message.status()) => Framing::UntilClose,
        (None, None) => Framing::None,
        (Some(_), Some(_)) => panic!("framed twice: {:?}", message.headers),
    }
}

fn may_have_body(status: u16) -> bool {
    status >= 200 && status != 204 && status != 304
}

fn parse_head(head: &[u8]) -> Message {
    let text = std::str::from_utf8(head).expect("heads are ASCII");
    let mut lines = text.split("\r\n");
    let start = lines.next().unwrap_or_default().to_owned();
    let headers = lines
        .map(|line| {
            let (name, value) = line
                .split_once(':')
                .unwrap_or_else(|| panic!("no field: {line:?}"));
            assert!(
                !name.is_empty() && !name.contains([' ', '\t']),
                "no field name: {line:?}"
            );
            (name.to_owned(), value.trim_matches([' ', '\t']).to_owned())
        })
        .collect();
    Message {
        start,
        headers,
        body: Vec::new(),
        trailers: Vec::new(),
        ending: Ending::Broken,
    }
}

fn find(within: &[u8], what: &[u8]) -> Option<usize> {
    within.windows(what.len()).position(|window| window == what)
}
