//! A client whose every byte the test decides, and which believes nothing.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::SockRef;

use crate::queues::untaken_bytes;
use crate::wire::{Ending, Message, Source, framing};

/// How long a peer may stay silent before a test fails.
const WATCHDOG: Duration = Duration::from_secs(60);

/// One connection to a proxy or an engine.
pub struct Client {
    source: Source<TcpStream>,
}

/// How a peer ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In order: the peer has nothing more to say.
    Fin,
    /// Torn down.
    Reset,
}

impl Client {
    /// Connects.
    ///
    /// # Panics
    /// When the peer does not accept.
    #[must_use]
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&address, WATCHDOG)
            .unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"));
        stream.set_nodelay(true).expect("a socket takes options");
        stream
            .set_read_timeout(Some(WATCHDOG))
            .expect("a socket takes options");
        stream
            .set_write_timeout(Some(WATCHDOG))
            .expect("a socket takes options");
        Self {
            source: Source::new(stream),
        }
    }

    /// Sends bytes in one write.
    ///
    /// # Panics
    /// When the connection is gone.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the peer still reads");
    }

    /// Sends bytes in one write, where the peer may already have ended.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.source.inner().write_all(bytes.as_ref())
    }

    /// Reads one whole response.
    ///
    /// # Panics
    /// When none comes.
    pub fn response(&mut self) -> Message {
        let mut message = self.head();
        self.body(&mut message);
        message
    }

    /// Reads a response's head.
    ///
    /// # Panics
    /// When none comes.
    pub fn head(&mut self) -> Message {
        match self.source.head() {
            Ok(Some(message)) => message,
            Ok(None) => panic!("the peer closed instead of answering"),
            Err(error) => panic!("the peer broke off instead of answering: {error}"),
        }
    }

    /// Reads the body that follows a head.
    pub fn body(&mut self, message: &mut Message) {
        let framing = framing(message, true);
        self.source.body(message, framing);
    }

    /// Reads until this many bytes are here that nobody asked for yet: of a body, chunk framing
    /// among them.
    ///
    /// # Panics
    /// When the peer ends before.
    pub fn read_ahead(&mut self, count: usize) {
        while self.source.ahead_bytes() < count {
            assert!(
                self.source.fill().expect("the peer still writes"),
                "the peer closed early"
            );
        }
    }

    /// Waits for the peer to end the connection, and returns how.
    ///
    /// # Panics
    /// When bytes come that nobody asked for.
    pub fn end(&mut self) -> End {
        assert!(
            self.source.ahead_bytes() == 0,
            "bytes after the last answer"
        );
        match self.source.fill() {
            Ok(false) => End::Fin,
            Ok(true) => panic!("bytes after the last answer"),
            Err(_) => End::Reset,
        }
    }

    /// Ends the writing half only.
    ///
    /// # Panics
    /// When the connection is gone.
    pub fn finish_writing(&mut self) {
        self.source
            .inner()
            .shutdown(Shutdown::Write)
            .expect("the connection stands");
    }

    /// Ends the connection by FIN. Dropping a client does the same.
    pub fn close(self) {}

    /// Ends the connection by RST.
    ///
    /// # Panics
    /// When the socket takes no option.
    pub fn reset(self) {
        reset_on_drop(self.source.inner());
    }

    /// Bytes sent that the other side's process has not read, wherever the kernel keeps them: what
    /// is on its way is looked at first, so none is missed.
    ///
    /// # Panics
    /// When the socket has no address, or the kernel does not list it.
    pub fn untaken_bytes(&self) -> usize {
        untaken_bytes(self.source.inner())
    }

    /// Sets the size of the kernel's receive buffer: a small one lets a slow reader be felt at once.
    ///
    /// # Panics
    /// When the socket takes no option.
    pub fn set_receive_buffer(&self, bytes: usize) {
        SockRef::from(self.source.inner())
            .set_recv_buffer_size(bytes)
            .expect("a socket takes options");
    }

    /// Reads a little more of what is coming, at most `most` bytes, without making sense of it, and
    /// says how much.
    ///
    /// # Panics
    /// When the connection breaks or ends.
    pub fn sip(&mut self, most: usize) -> usize {
        let before = self.source.ahead_bytes();
        assert!(
            self.source
                .fill_at_most(most)
                .expect("the peer still writes"),
            "closed early"
        );
        self.source.ahead_bytes() - before
    }
}

/// Lets the socket end by RST when it is closed.
///
/// # Panics
/// When the socket takes no option.
pub fn reset_on_drop(stream: &TcpStream) {
    SockRef::from(stream)
        .set_linger(Some(Duration::ZERO))
        .expect("a socket takes options");
}

/// A POST with a sized JSON body.
#[must_use]
pub fn post(path: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    post_with(path, "", body)
}

/// A POST of a sized JSON body with these further fields, each with its line end.
#[must_use]
pub fn post_with(path: &str, fields: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes = post_head(path, &format!("Content-Length: {}\r\n{fields}", body.len()));
    bytes.extend_from_slice(body);
    bytes
}

/// The head of a POST with these further fields, each with its line end.
#[must_use]
pub fn post_head(path: &str, fields: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{fields}\r\n")
        .into_bytes()
}

/// The path of chat requests.
pub const CHAT: &str = "/v1/chat/completions";

/// A chat request for model `m`, streamed or not.
#[must_use]
pub fn chat(stream: bool) -> Vec<u8> {
    post(
        "/v1/chat/completions",
        if stream { STREAMED } else { UNARY },
    )
}

/// Smallest body of a chat request for model `m`.
pub const UNARY: &str = r#"{"model":"m","messages":[]}"#;

/// The same, streamed.
pub const STREAMED: &str = r#"{"model":"m","messages":[],"stream":true}"#;

/// Asks once over a connection of its own.
#[must_use]
pub fn ask(address: SocketAddr, request: impl AsRef<[u8]>) -> Message {
    let mut client = Client::connect(address);
    client.send(request);
    client.response()
}

/// GET over a connection of its own.
#[must_use]
pub fn get(address: SocketAddr, path: &str) -> Message {
    ask(
        address,
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
    )
}

/// Asserts that `answer` is an error in OpenAI's shape with this status and code, and returns its
/// message.
///
/// # Panics
/// When it is not.
pub fn assert_error(answer: &Message, status: u16, code: &str) -> String {
    let body = answer.json();
    assert_eq!(
        (answer.status(), &body["error"]["code"]),
        (status, &code.into()),
        "{body}"
    );
    assert!(
        matches!(answer.ending, Ending::Complete),
        "{:?}",
        answer.ending
    );
    assert!(body["error"]["type"].is_string(), "{body}");
    assert!(body["error"].get("param").is_some(), "{body}");
    body["error"]["message"]
        .as_str()
        .unwrap_or_else(|| panic!("no message: {body}"))
        .to_owned()
}
