//! `pointsman-bench relay`: the least that stands between a client and an engine.
//!
//! On the proxy's runtime and with its HTTP/2, one thread, one engine: a head is parsed, a body
//! goes on, bytes come back, their end is found. No routing, no metering, no deadlines, no retries.
//! What it costs is what the product's own work is measured against, so nothing here is slower than
//! ordinary means make it, and nothing is left out that correct bytes need. A client that leaves is
//! noticed by the next write to it, and an engine that closes a connection it had promised to keep
//! is a failure the client sees: to know better is the product's work.
//!
//! `from_http1` takes requests of HTTP/1.1 and `from_http2` of HTTP/2; `engine1` and
//! `engine2` are the connections to the engine, `line` the bytes of an HTTP/2 connection.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::{Context, bail};
use monoio::net::{ListenerOpts, TcpListener, TcpStream};
use pointsman_proxy::driver;

mod body;
mod engine1;
mod engine2;
mod from_http1;
mod from_http2;
mod line;

use crate::io_driver::IoDriver;
use crate::protocol::Http;
pub(crate) use body::send_all;

/// Connections the kernel holds that were not accepted yet.
const BACKLOG: i32 = 4096;
/// Bytes read at once from a connection of HTTP/1.1.
const READ_BYTES: usize = 16 * 1024;

/// A bare relay: what it speaks, where it listens, whom it asks.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// What clients speak.
    #[arg(long, value_enum)]
    pub from: Http,
    /// What the engine is spoken to in.
    #[arg(long, value_enum)]
    pub to: Http,
    /// Address; port 0 asks the kernel for a port.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Address of the engine.
    #[arg(long)]
    pub engine: SocketAddr,
    /// How the kernel is asked.
    #[arg(long, value_enum, default_value = "auto")]
    pub io_driver: IoDriver,
    /// Streams of one HTTP/2 connection to the engine, at most what it allows.
    #[arg(long, default_value_t = 256)]
    pub engine_streams: usize,
}

/// Relays until the process is ended.
///
/// # Errors
/// A pair of versions that there is no relay for, an address that cannot be bound, no io_uring
/// where it was insisted on.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if (args.from, args.to) == (Http::H2c, Http::H1) {
        bail!("--from h2c --to h1: there is no such relay; h1 to h1, h1 to h2c, h2c to h2c are");
    }
    if args.engine_streams == 0 {
        bail!("--engine-streams: must be at least 1");
    }
    // The product's own runtime, down to the ring's flags: what it costs is in the floor too.
    let (driver, mut runtime) = driver::runtime(args.io_driver.into()).context("--io-driver")?;
    runtime.block_on(serve(args.clone(), driver.io_driver().name()))
}

async fn serve(args: Args, io_driver: &str) -> anyhow::Result<()> {
    let options = ListenerOpts::new().backlog(BACKLOG);
    let listener = TcpListener::bind_with_config(args.listen, &options)
        .with_context(|| format!("--listen: cannot bind {}", args.listen))?;
    crate::bare::print_ready(listener.local_addr()?, Some(io_driver));
    let engine1 = Rc::new(engine1::Pool::new(args.engine));
    let engine2 = Rc::new(engine2::Pool::new(args.engine, args.engine_streams));
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                continue;
            }
        };
        let (engine1, engine2) = (Rc::clone(&engine1), Rc::clone(&engine2));
        match (args.from, args.to) {
            (Http::H1, Http::H1) => spawn(client, |client| from_http1::to_http1(client, engine1)),
            (Http::H1, Http::H2c) => spawn(client, |client| from_http1::to_http2(client, engine2)),
            (Http::H2c, _) => spawn(client, |client| from_http2::to_http2(client, engine2)),
        }
    }
}

/// Serves a client in a task of its own. How it ended is the client's to see: a relay that fails
/// leaves a connection or a stream cut off.
fn spawn<F>(client: TcpStream, serve: impl FnOnce(TcpStream) -> F)
where
    F: Future<Output = anyhow::Result<()>> + 'static,
{
    if client.set_nodelay(true).is_err() {
        return;
    }
    let serving = serve(client);
    monoio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::debug!("{error:#}");
        }
    });
}

/// Connects to the engine.
async fn connect(engine: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_addr(engine).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
