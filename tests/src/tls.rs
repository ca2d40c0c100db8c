//! TLS as a test's peers speak it: certificates made when the test runs, a client, and a front that
//! gives a scripted engine TLS.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

use crate::wire::{Message, Source, framing};

/// How long a peer may stay silent before a test fails.
const WATCHDOG: Duration = Duration::from_secs(60);

/// An authority that signs for tests.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key.
pub struct Leaf {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    /// An authority of this name.
    ///
    /// # Panics
    /// When there is no randomness.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no name is no bad name");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("there is randomness");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("it signs itself");
        Self { issuer }
    }

    /// Its certificate.
    #[must_use]
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for `names`, valid for long.
    #[must_use]
    pub fn leaf(&self, names: &[&str]) -> Leaf {
        self.leaf_until(names, 2199, 1, 1)
    }

    /// A certificate for `names`, valid until that day begins.
    ///
    /// # Panics
    /// When a name is none.
    #[must_use]
    pub fn leaf_until(&self, names: &[&str], year: i32, month: u8, day: u8) -> Leaf {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names of hosts");
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, month, day);
        let key = KeyPair::generate().expect("there is randomness");
        let certificate = params.signed_by(&key, &self.issuer).expect("it signs");
        Leaf { certificate, key }
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(self.pem().as_bytes());
        roots
            .add(certificate.expect("it was just made"))
            .expect("an authority is one");
        Arc::new(roots)
    }
}

impl Leaf {
    /// The certificate's bytes.
    #[must_use]
    pub fn der(&self) -> Vec<u8> {
        self.certificate.der().to_vec()
    }

    /// Writes `<name>.pem` and `<name>.key` and returns their paths.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn write(&self, dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let paths = (
            dir.join(format!("{name}.pem")),
            dir.join(format!("{name}.key")),
        );
        replace(&paths.0, &self.certificate.pem());
        replace(&paths.1, &self.key.serialize_pem());
        paths
    }

    fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = PrivateKeyDer::from_pem_slice(self.key.serialize_pem().as_bytes());
        (
            vec![self.certificate.der().clone()],
            key.expect("it was just made"),
        )
    }
}

/// Replaces a file as tools do: another is made beside it and takes its name.
///
/// # Panics
/// When it cannot.
pub fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).expect("the test's folder is writable");
    std::fs::rename(&beside, path).expect("a file can be renamed");
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// How a client of tests greets: whom it trusts, and what it shows.
///
/// # Panics
/// When the leaf's key is no key.
#[must_use]
pub fn greeting(authority: &Authority, shown: Option<&Leaf>) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the versions are known")
        .with_root_certificates(authority.roots());
    Arc::new(match shown {
        None => builder.with_no_client_auth(),
        Some(leaf) => {
            let (chain, key) = leaf.parts();
            builder
                .with_client_auth_cert(chain, key)
                .expect("a key is one")
        }
    })
}

/// One connection with TLS to a proxy.
pub struct SecureClient {
    source: Source<StreamOwned<ClientConnection, TcpStream>>,
}

impl SecureClient {
    /// Connects and greets the peer as `name`.
    ///
    /// # Errors
    /// What TLS or the operating system says.
    ///
    /// # Panics
    /// When `name` is none.
    pub fn connect(
        address: SocketAddr,
        greeting: &Arc<ClientConfig>,
        name: &str,
    ) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, WATCHDOG)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WATCHDOG))?;
        stream.set_write_timeout(Some(WATCHDOG))?;
        let name = ServerName::try_from(name.to_owned()).expect("a name of a host");
        let mut connection =
            ClientConnection::new(Arc::clone(greeting), name).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Ok(Self {
            source: Source::new(StreamOwned::new(connection, stream)),
        })
    }

    /// The certificate that the peer showed.
    ///
    /// # Panics
    /// When it showed none, which TLS rules out.
    #[must_use]
    pub fn certificate(&self) -> Vec<u8> {
        let chain = self.source.inner().conn.peer_certificates();
        chain.expect("servers show one")[0].to_vec()
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// What TLS or the operating system says.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let stream = self.source.inner_mut();
        stream.write_all(bytes.as_ref())?;
        stream.flush()
    }

    /// Reads a response's head.
    ///
    /// # Errors
    /// When the peer ends instead.
    pub fn head(&mut self) -> io::Result<Message> {
        let head = self.source.head()?;
        head.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Reads the body that follows a head.
    pub fn body(&mut self, message: &mut Message) {
        let framing = framing(message, true);
        self.source.body(message, framing);
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// What TLS or the operating system says.
    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> io::Result<Message> {
        self.send(request)?;
        let mut message = self.head()?;
        self.body(&mut message);
        Ok(message)
    }
}

/// Gives an engine TLS: what comes in over it goes on in the clear, and back.
pub struct Front {
    address: SocketAddr,
    greeted: Arc<AtomicUsize>,
    failures: Arc<Mutex<Vec<String>>>,
    cuts_ends: bool,
}

/// What a front is told beside its certificate.
#[derive(Default)]
pub struct FrontRules<'a> {
    /// Clients must show a certificate that this authority vouches for.
    pub clients: Option<&'a Authority>,
    /// It ends connections without saying so inside TLS.
    pub cuts_ends: bool,
    /// The engine speaks HTTP/2, which clients must agree to (ALPN).
    pub http2: bool,
}

impl Front {
    /// Listens before `engine`, showing `leaf`.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn start(engine: SocketAddr, leaf: &Leaf, rules: &FrontRules<'_>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the versions are known");
        let builder = match rules.clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let roots = authority.roots();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                builder.with_client_cert_verifier(verifier.build().expect("an authority is one"))
            }
        };
        let (chain, key) = leaf.parts();
        let mut config = builder.with_single_cert(chain, key).expect("a key is one");
        if rules.http2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        let front = Self {
            address: listener.local_addr().expect("it listens"),
            greeted: Arc::default(),
            failures: Arc::default(),
            cuts_ends: rules.cuts_ends,
        };
        front.serve(listener, engine, Arc::new(config));
        front
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Handshakes that succeeded.
    #[must_use]
    pub fn greeted(&self) -> usize {
        self.greeted.load(Ordering::SeqCst)
    }

    /// What it said of handshakes that failed.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let failures = self.failures.lock();
        failures.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn serve(&self, listener: TcpListener, engine: SocketAddr, config: Arc<ServerConfig>) {
        let (greeted, failures) = (Arc::clone(&self.greeted), Arc::clone(&self.failures));
        let cuts_ends = self.cuts_ends;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let config = Arc::clone(&config);
                let (greeted, failures) = (Arc::clone(&greeted), Arc::clone(&failures));
                std::thread::spawn(move || {
                    match greet(stream, config) {
                        Ok((connection, stream)) => {
                            greeted.fetch_add(1, Ordering::SeqCst);
                            // An end of either side in any way ends the other.
                            let _ = relay(connection, &stream, engine, cuts_ends);
                        }
                        Err(error) => {
                            let mut failures =
                                failures.lock().unwrap_or_else(PoisonError::into_inner);
                            failures.push(error.to_string());
                        }
                    }
                });
            }
        });
    }
}

fn greet(
    mut stream: TcpStream,
    config: Arc<ServerConfig>,
) -> io::Result<(ServerConnection, TcpStream)> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(WATCHDOG))?;
    let mut connection = ServerConnection::new(config).map_err(io::Error::other)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    Ok((connection, stream))
}

/// Moves bytes both ways until either side ends.
fn relay(
    mut secure: ServerConnection,
    stream: &TcpStream,
    engine: SocketAddr,
    cuts_ends: bool,
) -> io::Result<()> {
    let plain = TcpStream::connect(engine)?;
    plain.set_nodelay(true)?;
    let mut block = vec![0; 64 * 1024];
    loop {
        let io = &mut &*stream;
        // The handshake's last read may have brought a request as well.
        let state = secure.process_new_packets().map_err(io::Error::other)?;
        let mut bytes = vec![0; state.plaintext_bytes_to_read()];
        secure.reader().read_exact(&mut bytes)?;
        (&plain).write_all(&bytes)?;
        while secure.wants_write() {
            secure.write_tls(io)?;
        }
        if state.peer_has_closed() {
            return Ok(());
        }
        let [from_proxy, from_engine] = wait(stream, &plain)?;
        if from_engine {
            let count = (&plain).read(&mut block)?;
            if count == 0 {
                if !cuts_ends {
                    secure.send_close_notify();
                    secure.write_tls(io)?;
                }
                return Ok(());
            }
            secure.writer().write_all(&block[..count])?;
        }
        if from_proxy && secure.read_tls(io)? == 0 {
            return Ok(());
        }
    }
}

/// Waits until one of two sockets has something to read; which of them.
#[expect(unsafe_code, reason = "two sockets are waited for at once")]
fn wait(one: &TcpStream, other: &TcpStream) -> io::Result<[bool; 2]> {
    let entry = |socket: &TcpStream| libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries = [entry(one), entry(other)];
    // SAFETY: two valid entries for the whole call, which keeps no pointer.
    let ready = unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) };
    if ready < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(entries.map(|entry| entry.revents != 0))
}
