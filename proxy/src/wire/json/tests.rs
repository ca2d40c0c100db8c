//! Bodies from the field, bodies that must be refused, and sonic-rs as the oracle.

use proptest::prelude::*;
use sonic_rs::{JsonContainerTrait, JsonValueTrait};

use super::*;

fn scan_in(endpoint: Endpoints, pieces: &[&[u8]]) -> Result<BodyFacts, JsonError> {
    let mut scan = JsonScan::new(endpoint);
    for piece in pieces {
        scan.feed(piece)?;
    }
    scan.finish()
}

/// Scans whole and byte by byte; both must agree.
fn scan(endpoint: Endpoints, body: &[u8]) -> Result<BodyFacts, JsonError> {
    let whole = scan_in(endpoint, &[body]);
    let bytes: Vec<&[u8]> = body.chunks(1).collect();
    assert_eq!(
        scan_in(endpoint, &bytes),
        whole,
        "{:?}",
        String::from_utf8_lossy(body)
    );
    whole
}

fn chat(body: &str) -> Result<BodyFacts, JsonError> {
    scan(Endpoints::CHAT, body.as_bytes())
}

fn model(body: &str) -> Option<String> {
    chat(body).unwrap().model
}

fn opening(endpoint: Endpoints, body: &str) -> Option<u64> {
    scan(endpoint, body.as_bytes()).unwrap().opening
}

#[test]
fn fields_are_found_wherever_they_stand() {
    let body = r#" {"messages":[{"role":"user","content":"x"}],"stream" : true,
        "prompt_cache_key":"k\u00e9\ud83d\ude42\n","cache_salt":"s","user":"u",
        "conversation":{"id":"c","x":{"id":"no"}},"tools":[{}],"model":"m"} "#;
    let facts = chat(body).unwrap();
    assert_eq!(facts.model.as_deref(), Some("m"));
    assert_eq!(facts.features, Features::STREAM.with(Features::TOOLS));
    assert_eq!(facts.prompt_cache_key.as_deref(), Some("ké🙂\n"));
    assert_eq!(facts.cache_salt.as_deref(), Some("s"));
    assert_eq!(facts.user.as_deref(), Some("u"));
    assert_eq!(facts.conversation.as_deref(), Some("c"));
    assert!(facts.opening.is_some());
    assert_eq!(
        chat(r#"{"conversation":"c"}"#)
            .unwrap()
            .conversation
            .as_deref(),
        Some("c")
    );
}

#[test]
fn values_of_other_types_say_nothing() {
    let body = r#"{"stream":false,"prompt_cache_key":null,"conversation":7,"user":["u"],
        "cache_salt":{"id":"x"},"tools":[],"messages":{"role":"user"}}"#;
    assert_eq!(chat(body), Ok(BodyFacts::default()));
    assert_eq!(
        chat(r#"{"stream":"true","tools":null}"#),
        Ok(BodyFacts::default())
    );
    assert_eq!(
        chat(r#"{"x":{"stream":true,"tools":[1]}}"#),
        Ok(BodyFacts::default())
    );
}

#[test]
fn d01_the_model_is_found_behind_a_blob() {
    let blob = "A".repeat(3 << 20);
    let body = format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":[{{\"type\":\"image_url\",\"image_url\":\
         {{\"url\":\"data:image/png;base64,{blob}\"}}}}]}}],\"model\":\"m\"}}"
    );
    let facts = scan_in(Endpoints::CHAT, &[body.as_bytes()]).unwrap();
    assert_eq!(facts.model.as_deref(), Some("m"));
    assert_eq!(facts.features, Features::IMAGES);
    let pieces: Vec<&[u8]> = body.as_bytes().chunks(65_535).collect();
    assert_eq!(scan_in(Endpoints::CHAT, &pieces), Ok(facts));
}

#[test]
fn d02_unusual_but_valid_json_passes() {
    let body = r#"{"z":1e400,"y":1.0,"x":12345678901234567890,"w":"\u00e9","v":-0.0E+1,"u":{},
        "t":[[],{}],"s":"\/\b\f","model":"m"}
        "#;
    assert_eq!(model(body).as_deref(), Some("m"));
}

#[test]
fn d03_duplicate_routing_keys_are_refused_after_unescaping() {
    for (body, key) in [
        (r#"{"model":"a","messages":[],"model":"b"}"#, "model"),
        (r#"{"model":"a","mod\u0065l":"b"}"#, "model"),
        (r#"{"stream":true,"stream":false}"#, "stream"),
        (
            r#"{"prompt_cache_key":"a","prompt_cache_key":"a"}"#,
            "prompt_cache_key",
        ),
        (r#"{"conversation":{"id":"a","id":"b"}}"#, "conversation.id"),
        (r#"{"messages":[],"messages":[]}"#, "messages"),
    ] {
        assert_eq!(chat(body), Err(JsonError::DuplicateKey { key }), "{body}");
    }
    assert_eq!(model(r#"{"x":1,"x":2,"model":"m"}"#).as_deref(), Some("m"));
}

#[test]
fn d05_nested_and_quoted_models_are_not_mistaken() {
    for body in [
        r#"{"messages":[{"role":"user","content":"{\"model\":\"evil\"}"}],"model":"m"}"#,
        r#"{"x":{"model":"evil"},"model":"m"}"#,
        r#"{"model ":"evil","model":"m"}"#,
        r#"{"Model":"evil","model":"m"}"#,
        r#"{"x":"model","model":"m"}"#,
        r#"{"model\u0000":"evil","model":"m"}"#,
        r#"{"model-with-a-very-long-suffix-indeed":"evil","model":"m"}"#,
    ] {
        assert_eq!(model(body).as_deref(), Some("m"), "{body}");
    }
    assert_eq!(chat(r#"[{"model":"evil"}]"#), Err(JsonError::NotAnObject));
}

#[test]
fn d07_missing_and_odd_models() {
    assert_eq!(model("{}"), None);
    for body in ["[]", "\"m\"", "7", "null", "-", " true"] {
        assert_eq!(chat(body), Err(JsonError::NotAnObject), "{body}");
    }
    for body in [
        r#"{"model":null}"#,
        r#"{"model":7}"#,
        r#"{"model":["m"]}"#,
        r#"{"model":""}"#,
        r#"{"model":{"id":"m"}}"#,
    ] {
        assert_eq!(chat(body), Err(JsonError::Model), "{body}");
    }
    assert_eq!(model(r#"{"model":" m"}"#).as_deref(), Some(" m"));
    assert_eq!(model(r#"{"model":"a\"b\nc"}"#).as_deref(), Some("a\"b\nc"));
    assert_eq!(chat(""), Err(JsonError::Invalid { offset: 0 }));
    assert_eq!(chat("  "), Err(JsonError::Invalid { offset: 2 }));
    assert_eq!(
        chat(r#"{"model":"m""#),
        Err(JsonError::Invalid { offset: 12 })
    );
    assert_eq!(
        chat(r#"{"model":"m"}x"#),
        Err(JsonError::Trailing { offset: 13 })
    );
    assert_eq!(
        chat(r#"{"model":"m"}{"model":"n"}"#),
        Err(JsonError::Trailing { offset: 13 })
    );
    let named = |len: usize| format!("{{\"model\":\"{}\"}}", "n".repeat(len));
    assert_eq!(
        model(&named(MAX_MODEL_BYTES)).unwrap().len(),
        MAX_MODEL_BYTES
    );
    assert_eq!(
        chat(&named(MAX_MODEL_BYTES + 1)),
        Err(JsonError::ModelTooLong)
    );
    assert_eq!(chat(&named(10 << 10)), Err(JsonError::ModelTooLong));
}

#[test]
fn malformed_bodies_name_the_byte() {
    for (body, offset) in [
        ("{a}", 1),
        ("{\"a\" 1}", 5),
        ("{\"a\":}", 5),
        ("{\"a\":1,}", 7),
        ("{\"a\":[1,]}", 8),
        ("{\"a\":[1}", 7),
        ("{\"a\":{]", 6),
        ("{\"a\":01}", 6),
        ("{\"a\":1.}", 7),
        ("{\"a\":1e}", 7),
        ("{\"a\":-}", 6),
        ("{\"a\":.1}", 5),
        ("{\"a\":+1}", 5),
        ("{\"a\":nul}", 8),
        ("{\"a\":NaN}", 5),
        ("{\"a\":\"\\x\"}", 7),
        ("{\"a\":\"\\u00g0\"}", 10),
        ("{\"a\":\"\n\"}", 6),
        ("{,}", 1),
        ("{\"a\":1 \"b\":2}", 7),
        ("\u{feff}{}", 0),
    ] {
        assert_eq!(chat(body), Err(JsonError::Invalid { offset }), "{body:?}");
    }
}

#[test]
fn nesting_is_bounded_and_size_is_not() {
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(chat(&nested(MAX_DEPTH - 1)), Ok(BodyFacts::default()));
    let offset = 4 + MAX_DEPTH as u64;
    assert_eq!(chat(&nested(MAX_DEPTH)), Err(JsonError::TooDeep { offset }));
    let wide = format!("{{\"a\":[{}1]}}", "[[]],".repeat(100_000));
    assert_eq!(
        scan_in(Endpoints::CHAT, &[wide.as_bytes()]),
        Ok(BodyFacts::default())
    );
}

#[test]
fn kept_fields_must_be_unicode_and_are_cut_between_characters() {
    assert_eq!(
        scan(Endpoints::CHAT, b"{\"model\":\"\xff\"}"),
        Err(JsonError::Unicode { key: "model" })
    );
    assert_eq!(
        chat(r#"{"prompt_cache_key":"\ud800x"}"#),
        Err(JsonError::Unicode {
            key: "prompt_cache_key"
        })
    );
    assert_eq!(
        chat(r#"{"user":"\udc00"}"#),
        Err(JsonError::Unicode { key: "user" })
    );
    assert_eq!(chat(r#"{"other":"\ud800"}"#), Ok(BodyFacts::default()));
    let long = format!("{{\"user\":\"x{}\"}}", "é".repeat(1000));
    assert_eq!(chat(&long).unwrap().user.unwrap().len(), 1 + 2 * 511);
}

#[test]
fn images_count_only_as_parts_of_turns() {
    let images = |endpoint, body: &str| {
        scan(endpoint, body.as_bytes())
            .unwrap()
            .features
            .contains(Features::IMAGES)
    };
    for body in [
        r#"{"messages":[{"content":[{"type":"text"},{"type":"image_url"}]}]}"#,
        r#"{"messages":[{"content":[{"type":"tool_result","content":[{"type":"image"}]}]}]}"#,
        r#"{"messages":[{"content":[{"typ\u0065":"input_image"}]}]}"#,
    ] {
        assert!(images(Endpoints::CHAT, body), "{body}");
    }
    let response = r#"{"input":[{"role":"user","content":[{"type":"input_image"}]}]}"#;
    assert!(images(Endpoints::RESPONSES, response));
    for body in [
        r#"{"messages":[{"content":"{\"type\":\"image\"}"}]}"#,
        r#"{"messages":[{"content":[{"type":"tool_use","input":{"type":"image"}}]}]}"#,
        r#"{"messages":[{"content":[{"type":"tool_use","input":{"a":{"type":"image"}}}]}]}"#,
        r#"{"metadata":[{"content":[{"type":"image_url"}]}]}"#,
        r#"{"messages":[{"content":[{"text":"image_url"}]}]}"#,
    ] {
        assert!(!images(Endpoints::CHAT, body), "{body}");
    }
}

#[test]
fn the_opening_is_the_same_on_every_turn() {
    let first = r#"{"model":"m","messages":[{"role":"system","content":"s"},
        {"role":"user","content":"hello"}]}"#;
    let later = r#"{"stream":true,"messages": [ {"role":"system","content":"s"} ,
        {"role":"user","content":"hello"},{"role":"assistant","content":"hi"},
        {"role":"user","content":"more"}],"model":"other"}"#;
    let hash = opening(Endpoints::CHAT, first);
    assert!(hash.is_some());
    assert_eq!(opening(Endpoints::CHAT, later), hash);
    let other = first.replace("hello", "hullo");
    assert_ne!(opening(Endpoints::CHAT, &other), hash);
    let other = first.replace("\"s\"", "\"t\"");
    assert_ne!(opening(Endpoints::CHAT, &other), hash);
    let role_last = r#"{"messages":[{"content":"hello","role":"user"},{"content":1}]}"#;
    let role_last_alone = r#"{"messages":[{"content":"hello","role":"user"}]}"#;
    assert_eq!(
        opening(Endpoints::CHAT, role_last),
        opening(Endpoints::CHAT, role_last_alone)
    );
    assert_eq!(opening(Endpoints::CHAT, r#"{"messages":[]}"#), None);
    assert_eq!(opening(Endpoints::EMBEDDINGS, r#"{"input":"x"}"#), None);
}

#[test]
fn the_system_prompt_counts_wherever_it_stands() {
    let messages = r#""messages":[{"role":"user","content":"x"}]"#;
    let system = r#""system":[{"type":"text","text":"s"}]"#;
    let before = opening(Endpoints::MESSAGES, &format!("{{{system},{messages}}}"));
    let after = opening(Endpoints::MESSAGES, &format!("{{{messages},{system}}}"));
    assert_eq!(before, after);
    let without = opening(Endpoints::MESSAGES, &format!("{{{messages}}}"));
    assert_ne!(without, after);
    assert_eq!(opening(Endpoints::MESSAGES, &format!("{{{system}}}")), None);
    let text = |instructions: &str| {
        let body = format!("{{\"instructions\":\"{instructions}\",\"input\":\"hi\"}}");
        opening(Endpoints::RESPONSES, &body)
    };
    assert_eq!(text("a"), text("a"));
    assert_ne!(text("a"), text("b"));
}

#[test]
fn a_prompt_opens_with_its_first_bytes() {
    let prompt = |len: usize, tail: &str| {
        let body = format!("{{\"prompt\":\"{}{tail}\"}}", "p".repeat(len));
        opening(Endpoints::COMPLETIONS, &body)
    };
    assert_eq!(prompt(255, "first"), prompt(255, "second turn"));
    assert_ne!(prompt(100, "first"), prompt(100, "second turn"));
    assert_ne!(prompt(254, "a"), prompt(254, "b"));
}

#[test]
fn a_long_opening_hashes_as_its_bytes_do() {
    use xxhash_rust::xxh3::Xxh3;
    let hash = |bytes: &[u8]| {
        let mut hasher = Xxh3::with_seed(opening::OPENING_SEED);
        hasher.update(bytes);
        hasher.digest()
    };
    for length in [10, 900, 990, 991, 992, 1_024, 1_025, 5_000] {
        let long = "x".repeat(length);
        let turns = format!("{{\"role\":\"system\",\"content\":\"{long}\"}}");
        let last = "{\"role\":\"user\",\"content\":\"hello\"}";
        let body = format!("{{\"messages\":[{turns}, {last}]}}");
        let both = [hash((turns + last).as_bytes()).to_le_bytes(), [0; 8]].concat();
        assert_eq!(
            opening(Endpoints::CHAT, &body),
            Some(hash(&both)),
            "{length}"
        );
    }
}

#[test]
fn a_string_runs_to_the_first_byte_that_ends_its_plain_part() {
    for length in [0, 1, 31, 32, 127, 128, 129, 160, 4_224, 4_225, 10_000] {
        let plain: Vec<u8> = (0..length).map(|at| b"a~\x7f\x80\xff "[at % 6]).collect();
        assert_eq!(string_run(&plain), length);
        let places = [0, 1, 31, 32, 126, 127, 128, 130, 4_223, 4_224, 4_230, 9_999];
        for at in places.into_iter().filter(|at| *at < length) {
            for stop in [b'"', b'\\', b'\n', 0, 0x1f] {
                let mut bytes = plain.clone();
                bytes[at] = stop;
                assert_eq!(string_run(&bytes), at, "{stop} at {at} of {length}");
                // One of another kind behind it changes nothing.
                for later in (at + 1..length).step_by(7) {
                    bytes[later] = if stop < 0x20 { b'"' } else { 1 };
                }
                assert_eq!(string_run(&bytes), at, "{stop} at {at} of {length}");
            }
        }
    }
}

#[test]
fn openings_are_pinned_for_every_host() {
    let body = r#"{"messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(opening(Endpoints::CHAT, body), Some(PINNED_OPENING));
}

const PINNED_OPENING: u64 = 1_973_867_904_395_788_281;

fn json_text() -> impl Strategy<Value = String> {
    let key = proptest::sample::select(vec![
        "model",
        "stream",
        "messages",
        "input",
        "role",
        "type",
        "content",
        "id",
        "conversation",
        "tools",
        "mod\\u0065l",
        "é",
        "\\n",
        "x",
    ]);
    let leaf = proptest::sample::select(vec![
        "1",
        "-0.5e+3",
        "true",
        "false",
        "null",
        "\"\"",
        "\"m\"",
        "\"user\"",
        "\"image_url\"",
        "\"a\\\"b\\\\\"",
        "\"\\ud83d\\ude42\"",
        "\"long string that spans more than one block\"",
        "[]",
        "{}",
        " [ ] ",
        "\"é🙂\"",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(5, 48, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5)
                .prop_map(|items| format!("[{}]", items.join(", "))),
            proptest::collection::vec((key.clone(), inner), 0..5).prop_map(|fields| {
                let fields: Vec<String> = fields
                    .iter()
                    .map(|(key, value)| format!("\"{key}\" :{value}"))
                    .collect();
                format!("{{{}}}", fields.join(","))
            }),
        ]
    })
}

/// What sonic-rs makes of a body, in our words: `None` where it is refused.
fn oracle(body: &[u8]) -> Option<BodyFacts> {
    let value = sonic_rs::from_slice::<sonic_rs::Value>(body).ok()?;
    let object = value.as_object()?;
    let text = |key: &str| {
        object
            .get(&key)
            .and_then(|value| value.as_str())
            .map(str::to_owned)
    };
    let mut facts = BodyFacts {
        model: text("model"),
        ..BodyFacts::default()
    };
    if object.get(&"stream").and_then(|value| value.as_bool()) == Some(true) {
        facts.features = facts.features.with(Features::STREAM);
    }
    if object
        .get(&"tools")
        .and_then(|v| v.as_array())
        .is_some_and(|tools| !tools.is_empty())
    {
        facts.features = facts.features.with(Features::TOOLS);
    }
    facts.conversation = text("conversation").or_else(|| {
        object
            .get(&"conversation")?
            .as_object()?
            .get(&"id")?
            .as_str()
            .map(str::to_owned)
    });
    Some(facts)
}

fn agree_with_oracle(body: &[u8]) -> Result<(), TestCaseError> {
    let ours = scan_in(Endpoints::CHAT, &[body]);
    match (&ours, oracle(body)) {
        (Ok(facts), Some(oracle)) => {
            let features = Features(facts.features.0 & !Features::IMAGES.0);
            prop_assert_eq!(&facts.model, &oracle.model);
            prop_assert_eq!(features, oracle.features);
            prop_assert_eq!(&facts.conversation, &oracle.conversation);
        }
        (Err(JsonError::DuplicateKey { .. } | JsonError::Model), _) => {}
        (Err(JsonError::NotAnObject), None) => {}
        (Err(_), None) => {}
        (_, oracle) => prop_assert!(false, "{ours:?} but the oracle says {oracle:?}"),
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_split_gives_the_same_answer_and_the_oracle_agrees(
        text in json_text(),
        splits in proptest::collection::vec(1usize..9, 0..100),
    ) {
        let mut pieces = Vec::new();
        let mut rest = text.as_bytes();
        for length in splits {
            let (piece, after) = rest.split_at(length.min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        let whole = scan_in(Endpoints::CHAT, &[text.as_bytes()]);
        prop_assert_eq!(scan_in(Endpoints::CHAT, &pieces), whole);
        agree_with_oracle(text.as_bytes())?;
    }

    #[test]
    fn damaged_bodies_are_refused_where_the_oracle_refuses_them(
        text in json_text(),
        at in any::<proptest::sample::Index>(),
        byte in proptest::sample::select(b"{}[]\",:\\0e.-tn \x01x".to_vec()),
        cut in any::<bool>(),
    ) {
        let mut bytes = format!("{{\"k\":{text}}}").into_bytes();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        // Half of a surrogate pair, or of a character, is JSON to us and not to the oracle.
        if std::str::from_utf8(&bytes).is_ok_and(|text| !text.contains("\\ud")) {
            agree_with_oracle(&bytes)?;
        }
        let pieces: Vec<&[u8]> = bytes.chunks(3).collect();
        prop_assert_eq!(
            scan_in(Endpoints::CHAT, &pieces),
            scan_in(Endpoints::CHAT, &[&bytes])
        );
    }
}
