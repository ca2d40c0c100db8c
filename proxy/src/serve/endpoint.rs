//! Which page of the proxy a request asks for, by the raw bytes of its path.
//!
//! Paths are compared as they were sent and never decoded or normalised, so that the proxy and the
//! engine can never see two different paths in one request. What matches nothing is a 404.

use pointsman_shm::policy::Endpoints;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::wire::request_head::{Method, RequestHead};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    /// An engine's answer.
    Inference(Endpoints),
    /// The list of models.
    Models,
}

/// Paths that every proxy serves.
const BUILT_IN: [(&[u8], Page); 8] = [
    (b"/v1/chat/completions", Page::Inference(Endpoints::CHAT)),
    (b"/v1/completions", Page::Inference(Endpoints::COMPLETIONS)),
    (b"/v1/responses", Page::Inference(Endpoints::RESPONSES)),
    (b"/v1/embeddings", Page::Inference(Endpoints::EMBEDDINGS)),
    (b"/v1/messages", Page::Inference(Endpoints::MESSAGES)),
    (
        b"/v1/audio/transcriptions",
        Page::Inference(Endpoints::AUDIO),
    ),
    (b"/v1/audio/translations", Page::Inference(Endpoints::AUDIO)),
    (b"/v1/models", Page::Models),
];

/// Longest path repeated in an error.
const SHOWN_BYTES: usize = 200;

/// The page that `head`, parsed from `bytes`, asks for.
pub(crate) fn page_of(config: &Config, head: &RequestHead, bytes: &[u8]) -> Result<Page> {
    let path = head.path.of(bytes);
    let page = page_at(config, path).ok_or_else(|| Error::NotFound { path: shown(path) })?;
    match (page, head.method) {
        (Page::Inference(_), Method::Post) | (Page::Models, Method::Get | Method::Head) => Ok(page),
        (Page::Inference(_), _) => Err(Error::Method {
            path: shown(path),
            allow: "POST",
        }),
        (Page::Models, _) => Err(Error::Method {
            path: shown(path),
            allow: "GET, HEAD",
        }),
    }
}

fn page_at(config: &Config, path: &[u8]) -> Option<Page> {
    if let Some((_, page)) = BUILT_IN.iter().find(|(known, _)| *known == path) {
        return Some(*page);
    }
    let extra = config
        .paths
        .iter()
        .find(|extra| extra.path.as_bytes() == path)?;
    Some(Page::Inference(extra.endpoint))
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(&path[..path.len().min(SHOWN_BYTES)]).into_owned()
}
