//! What the kernel holds of a connection between two processes of this host: sent, and not read.

use std::net::TcpStream;

/// Bytes sent on a socket that the other side's process has not read, wherever the kernel keeps them:
/// what is on its way is looked at first, so none is missed.
///
/// # Panics
/// When the socket has no address, or the kernel does not list it.
#[must_use]
pub(crate) fn untaken_bytes(socket: &TcpStream) -> usize {
    let ours = socket.local_addr().expect("an address").port();
    let theirs = socket.peer_addr().expect("an address").port();
    queued((ours, theirs), 0) + queued((theirs, ours), 1)
}

/// One of the two queues, of sending and of receiving, at one side's end of a connection.
fn queued((local, remote): (u16, u16), queue: usize) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("sockets are listed");
    let (local, remote) = (format!(":{local:04X}"), format!(":{remote:04X}"));
    let mut rows = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row[1].ends_with(&local) && row[2].ends_with(&remote));
    let queues = row.and_then(|row| row[4].split(':').nth(queue).map(str::to_owned));
    let bytes = queues.expect("an open connection is listed");
    usize::from_str_radix(&bytes, 16).expect("a number in hex")
}
