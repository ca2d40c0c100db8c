//! One health check's exchange over a socket that never blocks: connect, ask, hear the status.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use socket2::{Domain, Protocol, Socket, Type};

use crate::metrics::ProbeOutcome;
use crate::serve::tls::Alpn;
use crate::wire::health_check::{Reply, reply};

/// How a connection is made secure.
pub(super) type Secure = (Arc<ClientConfig>, ServerName<'static>, Alpn);

/// One exchange.
pub(super) struct Exchange {
    /// Addresses that were not tried yet, the next one last.
    addresses: Vec<SocketAddr>,
    question: Vec<u8>,
    http2: bool,
    secure: Option<Secure>,
    due_ns: u64,
    /// How often it was looked at.
    looks: u32,
    stage: Stage,
    answer: Vec<u8>,
}

/// Looks that an exchange gets, however late they come: to connect, to greet, to ask, to hear. Whoever
/// looks late must not take its own delay for the engine's.
const LEAST_LOOKS: u32 = 4;

enum Stage {
    /// Between two addresses.
    Apart,
    Connecting(TcpStream),
    Asking {
        stream: TcpStream,
        tls: Option<Box<ClientConnection>>,
        /// Bytes of the question that are sent.
        sent: usize,
    },
}

/// Why an exchange goes no further with this address.
enum Halt {
    /// It waits for the peer.
    Waits,
    Ends(ProbeOutcome),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock => Self::Waits,
            ErrorKind::ConnectionRefused => Self::Ends(ProbeOutcome::Refused),
            _ => Self::Ends(ProbeOutcome::Failed),
        }
    }
}

impl Exchange {
    /// An exchange with the first of `addresses` that takes one, over at `due_ns` but for its least
    /// looks.
    pub(super) fn new(
        addresses: &[SocketAddr],
        question: Vec<u8>,
        (http2, secure): (bool, Option<Secure>),
        due_ns: u64,
    ) -> Self {
        Self {
            addresses: addresses.iter().rev().copied().collect(),
            question,
            http2,
            secure,
            due_ns,
            looks: 0,
            stage: Stage::Apart,
            answer: Vec::new(),
        }
    }

    /// Takes it as far as it goes now; its outcome once it is over.
    pub(super) fn advance(&mut self, now_ns: u64) -> Option<ProbeOutcome> {
        self.looks = self.looks.saturating_add(1);
        let may_wait = now_ns < self.due_ns || self.looks < LEAST_LOOKS;
        loop {
            match self.step() {
                Ok(()) => {}
                Err(Halt::Waits) if may_wait => return None,
                Err(Halt::Waits) => return Some(ProbeOutcome::Timeout),
                // Another address may be of another process.
                Err(Halt::Ends(ProbeOutcome::Refused)) if !self.addresses.is_empty() => {
                    self.stage = Stage::Apart;
                }
                Err(Halt::Ends(outcome)) => return Some(outcome),
            }
        }
    }

    fn step(&mut self) -> Result<(), Halt> {
        match &mut self.stage {
            Stage::Apart => {
                let address = self.addresses.pop();
                let address = address.ok_or(Halt::Ends(ProbeOutcome::Failed))?;
                self.stage = Stage::Connecting(connect(address)?);
            }
            Stage::Connecting(stream) => {
                if let Some(error) = stream.take_error()? {
                    return Err(error.into());
                }
                match stream.peer_addr() {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::NotConnected => {
                        return Err(Halt::Waits);
                    }
                    Err(error) => return Err(error.into()),
                }
                let tls = self.secure.as_ref().map(greet).transpose()?;
                let Stage::Connecting(stream) = std::mem::replace(&mut self.stage, Stage::Apart)
                else {
                    return Ok(());
                };
                self.stage = Stage::Asking {
                    stream,
                    tls,
                    sent: 0,
                };
            }
            Stage::Asking { stream, tls, sent } => {
                ask(stream, tls.as_deref_mut(), &self.question, sent)?;
                let mut piece = [0; 4_096];
                let count = match tls {
                    Some(tls) => hear(stream, tls, &mut piece)?,
                    None => stream.read(&mut piece)?,
                };
                if count == 0 {
                    return Err(Halt::Ends(ProbeOutcome::Failed));
                }
                self.answer.extend_from_slice(&piece[..count]);
                match reply(self.http2, &self.answer) {
                    Reply::More => {}
                    Reply::Status(200..=299) => return Err(Halt::Ends(ProbeOutcome::Well)),
                    Reply::Status(_) | Reply::Broken => {
                        return Err(Halt::Ends(ProbeOutcome::Failed));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Begins to connect.
fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

fn greet((config, name, alpn): &Secure) -> Result<Box<ClientConnection>, Halt> {
    let offered = vec![alpn.name().to_vec()];
    let connection = ClientConnection::new_with_alpn(Arc::clone(config), name.clone(), offered);
    let connection = connection.map_err(|_| Halt::Ends(ProbeOutcome::Failed))?;
    Ok(Box::new(connection))
}

/// Sends what is left of the question; inside TLS that waits for the handshake by itself.
fn ask(
    stream: &mut TcpStream,
    tls: Option<&mut ClientConnection>,
    question: &[u8],
    sent: &mut usize,
) -> io::Result<()> {
    let Some(tls) = tls else {
        while *sent < question.len() {
            *sent += stream.write(&question[*sent..])?;
        }
        return Ok(());
    };
    while *sent < question.len() {
        match tls.writer().write(&question[*sent..])? {
            0 => break,
            count => *sent += count,
        }
    }
    while tls.wants_write() {
        tls.write_tls(stream)?;
    }
    Ok(())
}

/// Reads plaintext; what the handshake has to send goes out on the way.
fn hear(
    stream: &mut TcpStream,
    tls: &mut ClientConnection,
    piece: &mut [u8],
) -> Result<usize, Halt> {
    loop {
        match tls.reader().read(piece) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return Ok(read?),
        }
        if tls.read_tls(stream)? == 0 {
            return Ok(0);
        }
        let processed = tls.process_new_packets();
        // An alert that tells the peer why, as far as it goes.
        let alerted = tls.write_tls(stream);
        processed.map_err(|_| Halt::Ends(ProbeOutcome::Failed))?;
        if tls.wants_write() {
            alerted?;
        }
    }
}
