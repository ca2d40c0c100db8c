//! Which request gets which answer: exact paths only, 404 for everything else.

use std::rc::Rc;

use serde_json::{Value, json};

use super::generation::{Generation, Place};
use super::prompt::Prompt;
use super::shape::{Api, Shape};
use super::slots::Entry;
use super::state::LastRequest;
use super::switches::Fault;
use super::{Engine, metrics};

/// A request, whatever transport it came by.
pub(super) struct Request {
    pub(super) method: String,
    /// Path and query.
    pub(super) target: String,
    /// The head as it came.
    pub(super) head: Vec<u8>,
    /// The body without its framing.
    pub(super) body: Vec<u8>,
    pub(super) chunked: bool,
}

/// The answer to a request.
pub(super) enum Answer {
    Whole(Response),
    Generation(Box<Generation>),
}

/// A complete answer.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) content_type: &'static str,
    pub(super) retry_after_s: Option<u64>,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// The path without its query.
    pub(super) fn path(&self) -> &str {
        self.target
            .split_once('?')
            .map_or(&self.target, |(path, _)| path)
    }

    /// A value of the query, taken literally.
    pub(super) fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        query
            .split('&')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

impl Response {
    /// A JSON answer.
    pub(super) fn json(status: u16, value: &Value) -> Self {
        let body = value.to_string().into_bytes();
        Self {
            status,
            content_type: "application/json",
            retry_after_s: None,
            body,
        }
    }

    /// An error in OpenAI's shape.
    pub(super) fn error(status: u16, code: &str, message: &str) -> Self {
        let kind = if status < 500 {
            "invalid_request_error"
        } else {
            "server_error"
        };
        let error = json!({"message": message, "type": kind, "param": null, "code": code});
        Self::json(status, &json!({"error": error}))
    }
}

/// Answers a request.
pub(super) fn answer(engine: &Rc<Engine>, request: Request) -> Answer {
    engine.counters.path(request.path());
    if let Some(api) = Api::of(request.path()) {
        if request.method != "POST" {
            return Answer::Whole(Response::error(405, "method_not_allowed", "use POST"));
        }
        engine.counters.requests.add(1);
        return generate(engine, api, request).unwrap_or_else(|refusal| {
            engine.counters.refused.add(1);
            Answer::Whole(refusal)
        });
    }
    Answer::Whole(match (request.method.as_str(), request.path()) {
        ("GET", "/v1/models") => Response::json(200, &models(engine)),
        ("GET", "/health") if engine.switches.now().unhealthy => {
            Response::error(503, "unhealthy", "this engine was told to be unhealthy")
        }
        ("GET", "/health") => Response::json(200, &json!({})),
        ("GET", "/metrics") => Response {
            status: 200,
            content_type: "text/plain; version=0.0.4; charset=utf-8",
            retry_after_s: None,
            body: metrics_page(engine).into_bytes(),
        },
        _ => return Answer::Whole(control(engine, &request)),
    })
}

/// Answers what drives and observes the mock itself.
pub(super) fn control(engine: &Engine, request: &Request) -> Response {
    match (request.method.as_str(), request.path()) {
        ("GET", "/mock/stats") => Response::json(200, &engine.stats()),
        ("GET", "/mock/last") => match &*engine.last.borrow() {
            Some(last) => Response::json(200, &describe(last)),
            None => Response::error(404, "no_request", "no generating request has come yet"),
        },
        ("POST", "/mock/set") => match engine.switches.set(&request.body) {
            Ok(()) => {
                let counters = &engine.counters;
                counters.peak_active.set(counters.active.value());
                Response::json(200, &json!(*engine.switches.now()))
            }
            Err(error) => Response::error(400, "bad_switch", &error),
        },
        _ => {
            let message = format!("no {} {}", request.method, request.path());
            Response::error(404, "not_found", &message)
        }
    }
}

/// The page of metrics: of now, or of when they were frozen.
fn metrics_page(engine: &Engine) -> String {
    let mut frozen = engine.frozen.borrow_mut();
    if !engine.switches.now().metrics_frozen {
        *frozen = None;
        return metrics::page(engine);
    }
    frozen.get_or_insert_with(|| metrics::page(engine)).clone()
}

fn generate(engine: &Rc<Engine>, api: Api, request: Request) -> Result<Answer, Response> {
    let prompt = Prompt::read(&request.body);
    *engine.last.borrow_mut() = Some(LastRequest {
        head: request.head,
        body: request.body,
        chunked: request.chunked,
    });
    let mut prompt = prompt.map_err(|error| Response::error(400, "invalid_json", &error))?;
    let settings = &engine.settings;
    let model = prompt
        .model
        .clone()
        .unwrap_or_else(|| settings.models[0].clone());
    if !settings.models.contains(&model) {
        let message = format!("the model {model:?} is not served here");
        return Err(Response::error(404, "model_not_found", &message));
    }
    let fault = engine.switches.draw();
    if let Some(Fault::Unavailable(retry_after_s)) = fault {
        let mut response = Response::error(503, "unavailable", "told to be unavailable");
        response.retry_after_s = Some(retry_after_s);
        return Err(response);
    }
    let place = match engine.slots.enter() {
        Entry::Running(slot) => Place::Slot(slot),
        Entry::Waiting(ticket) => Place::Ticket(ticket),
        Entry::Full => {
            let mut response = Response::error(503, "queue_full", "the queue is full");
            response.retry_after_s = Some(1);
            return Err(response);
        }
    };
    let events = match api {
        Api::Embeddings => 0,
        _ => prompt.events.unwrap_or(settings.events),
    };
    prompt.stream &= api != Api::Embeddings;
    let number = engine.counters.requests.value();
    let shape = Shape::new(api, number, model, prompt.include_usage, prompt.items);
    let generation = Generation::new(engine, shape, prompt, events, place, fault);
    Ok(Answer::Generation(Box::new(generation)))
}

fn models(engine: &Engine) -> Value {
    let data: Vec<Value> = engine
        .settings
        .models
        .iter()
        .map(|model| {
            json!({
                "id": model, "object": "model", "created": 0, "owned_by": "pointsman-bench",
                "max_model_len": 131_072,
            })
        })
        .collect();
    json!({"object": "list", "data": data})
}

fn describe(last: &LastRequest) -> Value {
    let hex = |bytes: &[u8]| {
        use std::fmt::Write;
        bytes
            .iter()
            .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
    };
    json!({
        "head_hex": hex(&last.head),
        "body_hex": hex(&last.body),
        "body_framing": if last.chunked { "chunked" } else { "sized" },
    })
}
