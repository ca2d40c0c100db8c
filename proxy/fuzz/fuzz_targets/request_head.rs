//! Request heads: any split reads the same, and what is written for an engine has one meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pointsman_proxy::wire::framing::RequestFraming;
use pointsman_proxy::wire::head::{HeadLimits, HeadSearch};
use pointsman_proxy::wire::http1_write::{EngineRequest, RequestId, write_request};
use pointsman_proxy::wire::request_head::RequestHead;
use pointsman_proxy_fuzz::cut;

fuzz_target!(|data: &[u8]| {
    let (input, pieces) = cut(data);
    let limits = HeadLimits::default();
    let whole = RequestHead::parse(input, &mut HeadSearch::default(), &limits);
    let (mut buffer, mut search) = (Vec::new(), HeadSearch::default());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        match RequestHead::parse(&buffer, &mut search, &limits) {
            Ok(None) => {}
            Ok(Some(head)) => {
                assert_eq!(Ok(Some(head)), whole);
                break;
            }
            // A piece may show what is wrong before the rest is there, never the reverse.
            Err(_) => {
                assert!(whole.is_err(), "{whole:?}");
                break;
            }
        }
    }
    let Ok(Some(head)) = whole else { return };
    let mut out = Vec::new();
    let id = RequestId::choose(&head, input, 7);
    let request = EngineRequest {
        authority: "engine.test:1",
        framing: RequestFraming::Sized(5),
        bearer: Some(b"token"),
        request_id: &id,
        withheld: None,
    };
    write_request(&mut out, &head, input, &request);
    let wide = HeadLimits {
        head_bytes: 1 << 20,
        headers: 256,
        target_bytes: 1 << 20,
    };
    let written = RequestHead::parse(&out, &mut HeadSearch::default(), &wide);
    let written = written.expect("what we write is a head").expect("and a whole one");
    assert_eq!(written.len, out.len(), "nothing stands behind it");
    assert_eq!(written.framing, RequestFraming::Sized(5));
    assert_eq!(written.authority.of(&out), b"engine.test:1");
    assert_eq!(written.method_span.of(&out), head.method_span.of(input));
    assert!(!written.expects_continue);
    if !head.path.is_empty() {
        assert_eq!(written.path.of(&out), head.path.of(input));
    }
    assert_eq!(written.all(&out, "authorization").collect::<Vec<_>>(), [b"Bearer token"]);
    assert_eq!(written.all(&out, "x-request-id").count(), 1);
    for name in ["upgrade", "te", "keep-alive", "http2-settings", "proxy-authorization"] {
        assert_eq!(written.header(&out, name), None, "{name}");
    }
});
