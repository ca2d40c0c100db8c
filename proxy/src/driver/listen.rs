//! Listening sockets: one for each shard and address, shared out by the kernel.
//!
//! SO_REUSEPORT gives each shard a queue of its own, so that accepting needs no lock and no shard
//! wakes for a connection that another one takes.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that may wait to be accepted; the kernel caps it at net.core.somaxconn.
const BACKLOG: i32 = 4_096;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct ListenError {
    /// The address as configured.
    pub address: SocketAddr,
    /// Why.
    pub source: io::Error,
}

/// The sockets of every shard.
#[derive(Debug)]
pub struct Listeners {
    /// The addresses, port 0 replaced by what the kernel chose.
    pub addresses: Vec<SocketAddr>,
    /// For each shard one socket an address.
    pub shards: Vec<Vec<Listener>>,
}

/// One listening socket.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: TcpListener,
    /// What its clients begin with.
    pub greeting: Greeting,
}

/// What the clients of an address begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// A request.
    Clear,
    /// A TLS handshake.
    Tls,
}

/// Listens on `addresses`, each with its greeting, for `shards` shards.
///
/// # Errors
/// When an address is taken, not of this host, or not allowed.
pub fn bind(addresses: &[(SocketAddr, Greeting)], shards: u16) -> Result<Listeners, ListenError> {
    let mut listeners = Listeners {
        addresses: Vec::with_capacity(addresses.len()),
        shards: (0..shards)
            .map(|_| Vec::with_capacity(addresses.len()))
            .collect(),
    };
    for &(configured, greeting) in addresses {
        let failed = |source| ListenError {
            address: configured,
            source,
        };
        let mut address = configured;
        for sockets in &mut listeners.shards {
            let socket = listen(address).map_err(failed)?;
            // The first socket settles port 0 for those that follow.
            address = socket.local_addr().map_err(failed)?;
            sockets.push(Listener { socket, greeting });
        }
        listeners.addresses.push(address);
    }
    Ok(listeners)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_0_is_settled_once_for_all_shards() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listeners = bind(&[(any, Greeting::Clear), (any, Greeting::Tls)], 3).unwrap();
        assert_eq!(listeners.shards.len(), 3);
        assert_ne!(listeners.addresses[0], listeners.addresses[1]);
        for sockets in &listeners.shards {
            let bound: Vec<_> = sockets
                .iter()
                .map(|s| s.socket.local_addr().unwrap())
                .collect();
            assert_eq!(bound, listeners.addresses);
            assert_ne!(bound[0].port(), 0);
        }
    }

    #[test]
    fn an_address_of_another_host_is_named() {
        let foreign: SocketAddr = "192.0.2.1:80".parse().unwrap();
        let text = bind(&[(foreign, Greeting::Clear)], 1)
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with("cannot listen on 192.0.2.1:80: "),
            "{text}"
        );
    }
}
