//! Response heads: any split reads the same, and what is written for a client has one meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pointsman_proxy::wire::framing::ResponseFraming;
use pointsman_proxy::wire::head::{HeadLimits, HeadSearch, Version};
use pointsman_proxy::wire::http1_write::{ClientResponse, Relay, RequestId, write_response};
use pointsman_proxy::wire::orca::LoadReport;
use pointsman_proxy::wire::response_head::ResponseHead;
use pointsman_proxy_fuzz::cut;

fuzz_target!(|data: &[u8]| {
    let (input, pieces) = cut(data);
    let limits = HeadLimits::default();
    let whole = ResponseHead::parse(input, &mut HeadSearch::default(), &limits, false);
    let (mut buffer, mut search) = (Vec::new(), HeadSearch::default());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        match ResponseHead::parse(&buffer, &mut search, &limits, false) {
            Ok(None) => {}
            Ok(Some(head)) => {
                assert_eq!(Ok(Some(head)), whole);
                break;
            }
            Err(_) => {
                assert!(whole.is_err(), "{whole:?}");
                break;
            }
        }
    }
    let Ok(Some(head)) = whole else { return };
    let _ = LoadReport::of(&head, input);
    if head.is_interim() {
        return;
    }
    for version in [Version::Http10, Version::Http11] {
        let mut out = Vec::new();
        let id = RequestId::made(7);
        let response = ClientResponse {
            version,
            keep_alive: true,
            takes_trailers: false,
            request_id: &id,
            why: None,
        };
        let relay = write_response(&mut out, &head, input, &response);
        let wide = HeadLimits {
            head_bytes: 1 << 20,
            headers: 256,
            target_bytes: 1 << 20,
        };
        let written = ResponseHead::parse(&out, &mut HeadSearch::default(), &wide, false);
        let written = written.expect("what we write is a head").expect("and a whole one");
        assert_eq!((written.len, written.status), (out.len(), head.status));
        let expected = match relay {
            Relay::Nothing => ResponseFraming::None,
            Relay::Sized(length) => ResponseFraming::Sized(length),
            Relay::Chunked | Relay::WrapInChunks => ResponseFraming::Chunked,
            Relay::Unwrap | Relay::UntilClose => ResponseFraming::UntilClose,
        };
        // A head that forbids a body may still state a length, which then frames nothing.
        if !matches!(relay, Relay::Nothing) {
            assert_eq!(written.framing, expected);
        }
        assert_eq!(written.header(&out, "endpoint-load-metrics"), None);
    }
});
