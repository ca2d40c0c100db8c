//! JSON bodies: any split gives the same facts, and serde_json agrees on grammar and model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pointsman_proxy::wire::json::{BodyFacts, JsonError, JsonScan};
use pointsman_proxy_fuzz::cut;
use pointsman_shm::policy::Endpoints;
use serde::de::IgnoredAny;

fn scan(endpoint: Endpoints, pieces: &[&[u8]]) -> Result<BodyFacts, JsonError> {
    let mut scan = JsonScan::new(endpoint);
    for piece in pieces {
        scan.feed(piece)?;
    }
    scan.finish()
}

/// serde_json's own bound on nesting is lower than ours.
fn is_shallow(input: &[u8]) -> bool {
    input.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() < 120
}

fuzz_target!(|data: &[u8]| {
    let (input, pieces) = cut(data);
    for endpoint in [Endpoints::CHAT, Endpoints::RESPONSES, Endpoints::COMPLETIONS, Endpoints::OTHER] {
        let whole = scan(endpoint, &[input]);
        assert_eq!(scan(endpoint, &pieces), whole);
        if !is_shallow(input) {
            continue;
        }
        let grammar = serde_json::from_slice::<IgnoredAny>(input);
        match &whole {
            Ok(facts) => {
                assert!(grammar.is_ok(), "accepted: {grammar:?}");
                let object = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(input);
                if let Ok(object) = object {
                    let model = object.get("model").and_then(|model| model.as_str());
                    assert_eq!(facts.model.as_deref(), model);
                }
            }
            Err(JsonError::Invalid { .. } | JsonError::Trailing { .. }) => {
                assert!(grammar.is_err(), "refused: {whole:?}");
            }
            Err(_) => {}
        }
    }
});
