//! A proxy of Pingora's own parts before one engine, as its guide builds one: round robin over
//! upstreams, connections kept, one thread.
//!
//! `pingora-peer LISTEN ENGINE[,ENGINE...] [retry]`: with `retry` a request whose reused
//! connection ended before any answer is sent once more, which Pingora leaves to its users.

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::lb::LoadBalancer;
use pingora::lb::selection::RoundRobin;
use pingora::prelude::*;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::configuration::ServerConf;

/// Idle connections kept to engines: as many as the largest measurement opens.
const KEPT: usize = 4_096;

struct Proxy {
    engines: Arc<LoadBalancer<RoundRobin>>,
    retry: bool,
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = ();

    fn new_ctx(&self) -> Self::CTX {}

    async fn upstream_peer(
        &self,
        _session: &mut Session,
        _context: &mut Self::CTX,
    ) -> Result<Box<HttpPeer>> {
        let engine = self.engines.select(b"", 256);
        let engine = engine.ok_or_else(|| Error::explain(HTTPStatus(503), "no engine"))?;
        Ok(Box::new(HttpPeer::new(engine, false, String::new())))
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        _context: &mut Self::CTX,
        client_reused: bool,
    ) -> Box<Error> {
        let mut error = error.more_context(format!("Peer: {peer}"));
        let may = (self.retry && session.response_written().is_none())
            || session.req_header().method.is_idempotent();
        let whole = !session.as_ref().retry_buffer_truncated();
        error.retry.decide_reuse(client_reused && may && whole);
        error
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (listen, engines, retry) = match &arguments[..] {
        [listen, engines] => (listen, engines, false),
        [listen, engines, retry] if retry == "retry" => (listen, engines, true),
        _ => {
            eprintln!("usage: pingora-peer LISTEN ENGINE[,ENGINE...] [retry]");
            return ExitCode::from(2);
        }
    };
    let engines = match LoadBalancer::<RoundRobin>::try_from_iter(engines.split(',')) {
        Ok(engines) => Arc::new(engines),
        Err(error) => {
            eprintln!("pingora-peer: {engines}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let conf = ServerConf {
        threads: 1,
        work_stealing: false,
        upstream_keepalive_pool_size: KEPT,
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Proxy { engines, retry });
    service.add_tcp(listen);
    server.add_service(service);
    server.run_forever();
}
