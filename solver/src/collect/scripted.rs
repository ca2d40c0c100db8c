//! A scripted HTTP server for tests: records what it is asked and answers byte by byte as told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// One thing the server does with an answer.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Send(String),
    Pause(Duration),
    /// Neither sends nor closes any more.
    Stall,
    Close,
    Reset,
}

/// One request as it came in.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) connection: usize,
    pub(crate) path: String,
    pub(crate) head: String,
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    accepting: JoinHandle<()>,
}

type Script = dyn Fn(&str, usize) -> Vec<Step> + Send + Sync;

impl Server {
    /// Starts a server; `script` gives the steps of the answer to a path's n-th request.
    pub(crate) async fn start(
        script: impl Fn(&str, usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let script: Arc<Script> = Arc::new(script);
        let recorded = seen.clone();
        let accepting = tokio::spawn(async move {
            let mut connections = Vec::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let number = connections.len();
                let task = serve(stream, number, script.clone(), recorded.clone());
                connections.push(AbortOnDrop(tokio::spawn(task)));
            }
        });
        Self {
            address,
            seen,
            accepting,
        }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, path: &str) -> usize {
        self.seen().iter().filter(|seen| seen.path == path).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    connection: usize,
    script: Arc<Script>,
    seen: Arc<Mutex<Vec<Seen>>>,
) {
    let mut buffer = Vec::new();
    loop {
        let Some(head) = read_head(&mut stream, &mut buffer).await else {
            return;
        };
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let earlier = {
            let mut seen = seen.lock().unwrap();
            let earlier = seen.iter().filter(|seen| seen.path == path).count();
            seen.push(Seen {
                connection,
                path: path.clone(),
                head,
            });
            earlier
        };
        for step in script(&path, earlier) {
            match step {
                Step::Send(text) => {
                    if stream.write_all(text.as_bytes()).await.is_err() {
                        return;
                    }
                }
                Step::Pause(length) => tokio::time::sleep(length).await,
                Step::Stall => std::future::pending().await,
                Step::Close => return,
                Step::Reset => {
                    socket_reset(&stream);
                    return;
                }
            }
        }
    }
}

/// Closing sends a reset in place of an end.
fn socket_reset(stream: &TcpStream) {
    stream.set_zero_linger().unwrap();
}

async fn read_head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head: Vec<u8> = buffer.drain(..end + 4).collect();
            return Some(String::from_utf8(head).unwrap());
        }
        let mut chunk = [0; 4096];
        let length = stream
            .read(&mut chunk)
            .await
            .ok()
            .filter(|length| *length > 0)?;
        buffer.extend_from_slice(&chunk[..length]);
    }
}

/// A whole answer.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> Vec<Step> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n");
    vec![Step::Send(format!("{head}{body}"))]
}

/// A whole 200 of plain text.
pub(crate) fn ok(body: &str) -> Vec<Step> {
    answer(
        "200 OK",
        "content-type: text/plain; version=0.0.4\r\n",
        body,
    )
}
