//! The admin HTTP server: alive, ready, metrics, status.
//!
//! Read-only; it changes nothing, so that it may be scraped by anybody who reaches it.

mod bounded;
pub mod status;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;

use self::bounded::Bounded;
use self::status::Status;
use crate::run::current::Current;

/// Serves `listener` for ever.
///
/// # Panics
///
/// When the listener cannot be used; the task's supervisor starts it anew.
pub async fn serve(current: Arc<Current>, listener: io::Result<TcpListener>) {
    let listener = listener.and_then(tokio::net::TcpListener::from_std);
    let served = match listener {
        Ok(listener) => axum::serve(Bounded::new(listener), router(current)).await,
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        panic!("the admin server ended: {error}");
    }
}

/// Its paths.
pub fn router(current: Arc<Current>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .with_state(current)
}

async fn ready(State(current): State<Arc<Current>>) -> Response {
    match current.shared().unready() {
        None => "ready\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(current): State<Arc<Current>>) -> Response {
    current.refresh_gauges();
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (kind, current.shared().metrics.page()).into_response()
}

async fn status(State(current): State<Arc<Current>>) -> Json<Status> {
    Json(Status::now(&current.shared()))
}
