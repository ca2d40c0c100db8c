//! Listeners: one for each engine, closed while it refuses, and one for control.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{Engine, connection};

/// Connections the kernel holds for an engine that has not accepted them yet.
const BACKLOG: u32 = 4096;

/// Starts an engine's listener; returns its real address.
pub(super) async fn start(engine: &Rc<Engine>, address: SocketAddr) -> anyhow::Result<SocketAddr> {
    let listener = bind(address).with_context(|| format!("--listen: cannot bind {address}"))?;
    let address = listener.local_addr().context("no local address")?;
    let engine = Rc::clone(engine);
    tokio::task::spawn_local(async move { listen(engine, listener, address).await });
    Ok(address)
}

/// Starts the control listener; returns its real address.
pub(super) async fn start_control(
    engines: &[Rc<Engine>],
    address: SocketAddr,
) -> anyhow::Result<SocketAddr> {
    let listener = bind(address).with_context(|| format!("--control: cannot bind {address}"))?;
    let address = listener.local_addr().context("no local address")?;
    let engines = Rc::new(engines.to_vec());
    tokio::task::spawn_local(async move {
        loop {
            let stream = accept(&listener).await;
            tokio::task::spawn_local(connection::serve_control(Rc::clone(&engines), stream));
        }
    });
    Ok(address)
}

async fn listen(engine: Rc<Engine>, listener: TcpListener, address: SocketAddr) {
    let mut listener = Some(listener);
    loop {
        let changed = engine.switches.changed.notified();
        let refuse = engine.switches.now().refuse;
        if refuse {
            listener = None;
        } else if listener.is_none() {
            match bind(address) {
                Ok(bound) => listener = Some(bound),
                Err(error) => {
                    tracing::warn!(%address, %error, "cannot listen again; trying on");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            }
        }
        let Some(open) = &listener else {
            changed.await;
            continue;
        };
        tokio::select! {
            () = changed => {}
            stream = accept(open) => admit(&engine, stream),
        }
    }
}

fn admit(engine: &Rc<Engine>, stream: TcpStream) {
    let counters = &engine.counters;
    counters.connections_total.add(1);
    if counters.connections_open.value() >= engine.settings.max_connections {
        return;
    }
    counters.connections_open.add(1);
    let engine = Rc::clone(engine);
    tokio::task::spawn_local(async move {
        connection::serve(Rc::clone(&engine), stream).await;
        engine.counters.connections_open.sub(1);
    });
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                // Out of descriptors, mostly: others will be closed meanwhile.
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
