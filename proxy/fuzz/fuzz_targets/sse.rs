//! Event streams: any split gives the same events.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pointsman_proxy::wire::sse::{Event, MAX_EVENT_BYTES, SseSniffer, usage_of_body};
use pointsman_proxy_fuzz::cut;

fn sniff(pieces: &[&[u8]]) -> (Vec<(Event, Vec<u8>)>, bool) {
    let mut sniffer = SseSniffer::new();
    let mut events = Vec::new();
    for piece in pieces {
        sniffer.feed(piece, |event, data| {
            assert!(data.len() <= MAX_EVENT_BYTES);
            events.push((*event, data.to_vec()));
        });
    }
    (events, sniffer.is_off())
}

fuzz_target!(|data: &[u8]| {
    let (input, pieces) = cut(data);
    assert_eq!(sniff(&pieces), sniff(&[input]));
    let _ = usage_of_body(input);
});
