//! The walk over HTTP/2 frames: any split of the reads keeps, leaves out and counts the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pointsman_proxy::wire::frames::{FRAME_HEAD_BYTES, FrameHead, FrameWalk, Verdict};
use pointsman_proxy_fuzz::cut;

fn judge(head: FrameHead) -> Verdict {
    if head.is_empty_data() { Verdict::LeaveOut } else { Verdict::Keep }
}

/// What goes on, the heads seen, and what is left of a head.
fn walk(pieces: &[&[u8]]) -> (Vec<u8>, Vec<FrameHead>, Vec<u8>) {
    let mut walk = FrameWalk::default();
    let (mut out, mut heads, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for piece in pieces {
        let mut bytes = std::mem::take(&mut rest);
        bytes.extend_from_slice(piece);
        let (kept, all) = walk.walk(&mut bytes, |head| {
            heads.push(head);
            judge(head)
        });
        assert!(kept <= all && all <= bytes.len() && all - kept < FRAME_HEAD_BYTES);
        out.extend_from_slice(&bytes[..kept]);
        rest = bytes[kept..all].to_vec();
    }
    (out, heads, rest)
}

fuzz_target!(|data: &[u8]| {
    let (input, pieces) = cut(data);
    let whole = walk(&[input]);
    assert_eq!(walk(&pieces), whole);
    let empty = whole.1.iter().filter(|head| head.is_empty_data()).count();
    assert_eq!(whole.0.len() + whole.2.len() + empty * FRAME_HEAD_BYTES, input.len());
});
