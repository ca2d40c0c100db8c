//! The control socket: `control.sock` in the run folder, for its owner and for root.
//!
//! One connection is one request. The file's mode keeps others out, and the kernel tells who the
//! other side is, so that an order carries a user and not only what somebody typed. Connections,
//! line lengths and times are bounded.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::reload::Reloader;
use super::request::{self, Answer, Request};
use crate::error::Error;

/// The socket's name in the run folder.
pub const NAME: &str = "control.sock";
/// Longest request, bytes.
pub const MAX_REQUEST: u64 = 1 << 20;
/// Connections at a time; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// Time to send a request, and to take an answer.
const TRANSFER: Duration = Duration::from_secs(10);
/// Pause after a failed accept, so that a full descriptor table makes no busy loop.
const PAUSE: Duration = Duration::from_millis(100);

/// The bound socket; its file is removed when it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: StdListener,
    path: PathBuf,
}

impl ControlSocket {
    /// Binds the socket of a run folder, in place of one that a dead solver left.
    ///
    /// # Errors
    ///
    /// The folder cannot be written, or its path is too long for a socket.
    pub fn bind(run_dir: &Path) -> Result<Self, Error> {
        let path = run_dir.join(NAME);
        let beside = run_dir.join("control.new");
        let bind = || -> io::Result<StdListener> {
            match std::fs::remove_file(&beside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            // Restricted before it has the name under which it is looked for.
            let listener = StdListener::bind(&beside)?;
            std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600))?;
            std::fs::rename(&beside, &path)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener =
            bind().map_err(|source| Error::io("bind the control socket", &path, source))?;
        Ok(Self { listener, path })
    }

    pub(crate) fn try_clone(&self) -> io::Result<(StdListener, u32)> {
        let owner = std::fs::metadata(&self.path)?.uid();
        Ok((self.listener.try_clone()?, owner))
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // A client then hears at once that nobody is there.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves the socket for ever.
///
/// # Panics
///
/// When the socket cannot be used; the task's supervisor starts it anew.
pub async fn serve(reloader: Arc<Reloader>, socket: io::Result<(StdListener, u32)>) {
    let opened = socket.and_then(|(socket, owner)| Ok((UnixListener::from_std(socket)?, owner)));
    let (listener, owner) = match opened {
        Ok(opened) => opened,
        Err(error) => panic!("the control socket cannot be used: {error}"),
    };
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let place = places.clone().acquire_owned().await.ok();
        match listener.accept().await {
            Ok((stream, _)) => {
                let reloader = reloader.clone();
                tokio::spawn(async move {
                    let _place = place;
                    converse(&reloader, stream, owner).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "control socket: connection not taken");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn converse(reloader: &Arc<Reloader>, stream: UnixStream, owner: u32) {
    let answer = match stream.peer_cred().map(|peer| peer.uid()) {
        Err(error) => Err(format!("the kernel does not tell who asks: {error}")),
        Ok(uid) if uid != owner && uid != 0 => Err(format!(
            "user {uid} may not order anything here; user {owner} and root may"
        )),
        Ok(uid) => Ok(uid),
    };
    let mut stream = BufReader::new(stream);
    let answer = match answer {
        Err(reason) => Answer::refused(reason),
        Ok(uid) => match timeout(TRANSFER, read(&mut stream)).await {
            Ok(Ok(request)) => act(reloader, request, uid).await,
            Ok(Err(reason)) => Answer::refused(reason),
            Err(_) => Answer::refused(format!("no request within {} s", TRANSFER.as_secs())),
        },
    };
    let mut line = serde_json::to_vec(&answer).unwrap_or_default();
    line.push(b'\n');
    // Who has gone does not want to know.
    let _ = timeout(TRANSFER, stream.get_mut().write_all(&line)).await;
}

async fn read(stream: &mut BufReader<UnixStream>) -> Result<Request, String> {
    let mut line = Vec::new();
    let mut bounded = stream.take(MAX_REQUEST);
    let read = bounded.read_until(b'\n', &mut line).await;
    read.map_err(|error| format!("the request cannot be read: {error}"))?;
    if line.last() != Some(&b'\n') {
        return Err(format!(
            "a request is one line of at most {MAX_REQUEST} bytes"
        ));
    }
    serde_json::from_slice(&line).map_err(|error| format!("the request is not understood: {error}"))
}

async fn act(reloader: &Arc<Reloader>, request: Request, uid: u32) -> Answer {
    if let Request::Reload { force, asked } = request {
        tracing::info!(who = %asked.who, uid, why = %asked.why, force, "reload ordered");
        return Answer::reloaded(reloader.clone().reload(force).await);
    }
    request::handle(&reloader.current.shared(), request, uid).await
}
