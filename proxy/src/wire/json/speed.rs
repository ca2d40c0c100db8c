//! How fast the scan goes over base64, which is nearly all of a body with pictures in it. A figure
//! to read, not a bound: how fast a machine is at this moment is no property of the code.

use std::time::Instant;

use super::*;

/// The blob's length, the bound of a body where the configuration sets no other.
const BLOB_BYTES: usize = 32 * 1024 * 1024;
/// As much as one read of a large body brings.
const PIECE_BYTES: usize = 64 * 1024;
/// The fastest counts: the others shared the processor.
const ROUNDS: usize = 32;

#[test]
#[ignore = "prints a speed; wants an optimised build"]
fn d01_base64_is_scanned_at_this_speed() {
    let body = with_blob();
    let mut fastest_s = f64::INFINITY;
    for _ in 0..ROUNDS {
        let mut scan = JsonScan::new(Endpoints::CHAT);
        let begun = Instant::now();
        for piece in body.chunks(PIECE_BYTES) {
            scan.feed(piece).unwrap();
        }
        let facts = scan.finish().unwrap();
        fastest_s = fastest_s.min(begun.elapsed().as_secs_f64());
        assert_eq!(facts.model.as_deref(), Some("m"));
        assert!(facts.features.contains(Features::IMAGES));
    }
    println!(
        "{} bytes, nearly all of them base64, in pieces of {PIECE_BYTES}: {:.3e} bytes/s",
        body.len(),
        body.len() as f64 / fastest_s
    );
}

/// A chat body whose model stands behind a picture.
fn with_blob() -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut body = br#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,"#.to_vec();
    let mut state = 1_u64;
    body.extend((0..BLOB_BYTES).map(|_| {
        // A generator by Marsaglia ("Xorshift RNGs", 2003): the same blob each time.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        DIGITS[(state >> 58) as usize]
    }));
    body.extend_from_slice(br#""}}]}],"model":"m"}"#);
    body
}
