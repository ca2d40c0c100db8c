//! TLS inside a socket, against a peer of rustls's own streams: every operation of a socket means
//! the same with TLS as without.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use pointsman_tests::tls::{Authority, Leaf};
use rustls::crypto::ring::Ticketer;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::Alpn;
use super::handshake::greet_engine;
use crate::secrets::{TlsFailure, provider};
use crate::serve::sys::{Peek, Socket};
use crate::serve::testing::{on_both_drivers, pair};

type Peer = StreamOwned<ServerConnection, TcpStream>;

fn server(leaf: &Leaf) -> Arc<ServerConfig> {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = leaf.write(dir.path(), "own");
    let identity = crate::secrets::identity(&cert, &key).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(
            (*identity).clone(),
        )));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = Ticketer::new().unwrap();
    Arc::new(config)
}

fn client(authority: &Authority) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap();
    roots.add(certificate).unwrap();
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// A socket of ours with TLS whose peer does `script`.
async fn secured(script: impl FnOnce(Peer) + Send + 'static) -> (Socket, JoinHandle<()>) {
    let authority = Authority::new("ca");
    let config = server(&authority.leaf(&["engine.test"]));
    let (mut socket, stream) = pair().await;
    let peer = std::thread::spawn(move || {
        let connection = ServerConnection::new(config).unwrap();
        script(StreamOwned::new(connection, stream));
    });
    let name = ServerName::try_from("engine.test").unwrap();
    greet_engine(&mut socket, client(&authority), name, Alpn::Http1)
        .await
        .unwrap();
    assert_eq!(socket.alpn(), Some(Alpn::Http1));
    (socket, peer)
}

async fn joined(peer: JoinHandle<()>) {
    while !peer.is_finished() {
        monoio::time::sleep(Duration::from_millis(1)).await;
    }
    peer.join().unwrap();
}

fn noise(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

#[test]
fn megabytes_pass_both_ways_in_order_whatever_the_buffers() {
    on_both_drivers(|| async {
        let (socket, peer) = secured(|mut peer| {
            let mut got = vec![0; 3 << 20];
            peer.read_exact(&mut got).unwrap();
            assert!(got == noise(3 << 20), "other bytes arrived");
            peer.write_all(&got).unwrap();
            peer.flush().unwrap();
            assert_eq!(peer.read(&mut got).unwrap(), 0, "the end is announced");
        })
        .await;
        let (result, sent) = socket.write_all(noise(3 << 20)).await;
        result.unwrap();
        let mut got = Vec::new();
        while got.len() < sent.len() {
            let (count, buffer) = socket.read(vec![0_u8; 7_001]).await;
            got.extend_from_slice(&buffer[..count.unwrap()]);
        }
        assert!(got == sent, "other bytes came back");
        socket.shutdown_write();
        joined(peer).await;
    });
}

#[test]
fn a_dropped_wait_loses_no_byte() {
    on_both_drivers(|| async {
        let (socket, peer) = secured(|mut peer| {
            for number in 0..200_u8 {
                peer.write_all(&[number; 100]).unwrap();
                peer.flush().unwrap();
            }
            let _ = peer.read(&mut [0]);
        })
        .await;
        let mut got = Vec::new();
        while got.len() < 20_000 {
            let _ = monoio::time::timeout(Duration::ZERO, socket.readable()).await;
            let mut into = [0; 37];
            match socket.take(&mut into) {
                Ok(count) => got.extend_from_slice(&into[..count]),
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                    socket.readable().await.unwrap();
                }
            }
        }
        let expected: Vec<u8> = (0..200_u8).flat_map(|number| [number; 100]).collect();
        assert!(got == expected, "other bytes arrived");
        drop(socket);
        joined(peer).await;
    });
}

#[test]
fn an_end_inside_tls_is_good_order_and_a_cut_is_not() {
    on_both_drivers(|| async {
        let (socket, peer) = secured(|mut peer| {
            peer.write_all(b"all").unwrap();
            peer.conn.send_close_notify();
            peer.flush().unwrap();
        })
        .await;
        let (count, _) = socket.read(vec![0_u8; 16]).await;
        assert_eq!(count.unwrap(), 3);
        assert_eq!(socket.read(vec![0_u8; 16]).await.0.unwrap(), 0);
        joined(peer).await;

        let (socket, peer) = secured(|mut peer| {
            peer.write_all(b"all?").unwrap();
            peer.flush().unwrap();
        })
        .await;
        assert_eq!(socket.read(vec![0_u8; 16]).await.0.unwrap(), 4);
        let error = socket.read(vec![0_u8; 16]).await.0.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        joined(peer).await;
    });
}

#[test]
fn a_look_sees_bytes_and_the_end_but_not_tickets() {
    on_both_drivers(|| async {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (socket, peer) = secured(move |mut peer| {
            // Sends what ends the handshake: the tickets, and no byte of ours.
            peer.conn.complete_io(&mut peer.sock).unwrap();
            wait.recv().unwrap();
            peer.write_all(b"x").unwrap();
            peer.flush().unwrap();
            wait.recv().unwrap();
        })
        .await;
        // Tickets arrive as bytes below TLS, which is what readiness sees.
        socket.readable().await.unwrap();
        assert_eq!(socket.peek(), Peek::Quiet, "a ticket is nothing to read");
        go.send(()).unwrap();
        while socket.peek() == Peek::Quiet {
            socket.readable().await.unwrap();
        }
        assert_eq!(socket.peek(), Peek::Data);
        assert_eq!(socket.take(&mut [0; 8]).unwrap(), 1);
        go.send(()).unwrap();
        joined(peer).await;
        while socket.peek() == Peek::Quiet {
            socket.readable().await.unwrap();
        }
        assert_eq!(socket.peek(), Peek::Gone);
    });
}

#[test]
fn each_reason_not_to_trust_an_engine_has_its_name() {
    on_both_drivers(|| async {
        let authority = Authority::new("ca");
        let cases = [
            (authority.leaf(&["other.test"]), TlsFailure::WrongName),
            (
                authority.leaf_until(&["engine.test"], 2001, 1, 1),
                TlsFailure::CertificateExpired,
            ),
            (
                Authority::new("ca").leaf(&["engine.test"]),
                TlsFailure::UnknownAuthority,
            ),
        ];
        for (leaf, expected) in cases {
            let config = server(&leaf);
            let (mut socket, mut stream) = pair().await;
            let peer = std::thread::spawn(move || {
                let mut connection = ServerConnection::new(config).unwrap();
                connection.complete_io(&mut stream).unwrap_err();
            });
            let name = ServerName::try_from("engine.test").unwrap();
            let greeted = greet_engine(&mut socket, client(&authority), name, Alpn::Http1);
            assert_eq!(greeted.await, Err(expected));
            joined(peer).await;
        }
    });
}

#[test]
fn a_peer_in_the_clear_and_one_that_leaves_have_their_names() {
    on_both_drivers(|| async {
        let authority = Authority::new("ca");
        for (answer, expected) in [
            (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], TlsFailure::NotTls),
            (b"", TlsFailure::Closed),
        ] {
            let (mut socket, mut stream) = pair().await;
            let peer = std::thread::spawn(move || {
                let heard = stream.read(&mut [0; 4_096]).unwrap();
                assert!(heard > 0, "a hello");
                stream.write_all(answer).unwrap();
            });
            let name = ServerName::try_from("engine.test").unwrap();
            let greeted = greet_engine(&mut socket, client(&authority), name, Alpn::Http1);
            assert_eq!(greeted.await, Err(expected));
            joined(peer).await;
        }
    });
}
