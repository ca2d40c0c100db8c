//! What the tests of this folder share: both runtimes, and connected sockets.

use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use monoio::RuntimeBuilder;

use super::sys::Socket;

/// One runtime at a time: some tests count the process's descriptors.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a test on io_uring and on epoll, under a watchdog.
pub(crate) fn on_both_drivers<F: Future<Output = ()>>(test: impl Fn() -> F) {
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let watched = |test: F| async {
        let done = monoio::time::timeout(Duration::from_secs(60), test).await;
        assert!(done.is_ok(), "the test did not end");
    };
    let mut uring = RuntimeBuilder::<monoio::IoUringDriver>::new()
        .enable_timer()
        .build()
        .unwrap();
    uring.block_on(watched(test()));
    drop(uring);
    let mut epoll = RuntimeBuilder::<monoio::LegacyDriver>::new()
        .enable_timer()
        .build()
        .unwrap();
    epoll.block_on(watched(test()));
}

/// A socket of ours and its peer.
pub(crate) async fn pair() -> (Socket, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = Socket::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (peer, _) = listener.accept().unwrap();
    peer.set_nodelay(true).unwrap();
    (socket, peer)
}

/// Open sockets of this process.
pub(crate) fn sockets() -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}

/// The size of what `make` makes, which is never called: a future's, that is, as it is spawned.
pub(crate) fn result_bytes<A, F>(_make: impl FnOnce(A) -> F) -> usize {
    size_of::<F>()
}
