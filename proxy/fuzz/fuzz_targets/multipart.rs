//! Forms: any split gives the same facts, and no file hides the model behind it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pointsman_proxy::wire::json::{BodyFacts, MAX_MODEL_BYTES};
use pointsman_proxy::wire::multipart::{Boundary, MultipartError, MultipartScan};
use pointsman_proxy_fuzz::cut;

fn scan(pieces: &[&[u8]]) -> Result<BodyFacts, MultipartError> {
    let boundary = Boundary::of(b"multipart/form-data; boundary=B").expect("a boundary");
    let mut scan = MultipartScan::new(&boundary);
    for piece in pieces {
        scan.feed(piece)?;
    }
    scan.finish()
}

fuzz_target!(|data: &[u8]| {
    let (input, pieces) = cut(data);
    let whole = scan(&[input]);
    assert_eq!(scan(&pieces), whole);
    if let Ok(BodyFacts { model: Some(model), .. }) = &whole {
        assert!((1..=MAX_MODEL_BYTES).contains(&model.len()));
        assert!(input.windows(model.len()).any(|window| window == model.as_bytes()));
    }
    let _ = Boundary::of(input);
    // The input as a file that cannot hold a whole delimiter of its form.
    if !input.windows(5).any(|window| window == b"\r\n--B") && !input.starts_with(b"--B") {
        let head: &[u8] = b"--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";
        let model: &[u8] = b"\r\n--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--B--";
        let mut form = vec![head];
        form.extend_from_slice(&pieces);
        form.push(model);
        let facts = scan(&form).expect("the form is right");
        assert_eq!(facts.model.as_deref(), Some("m"));
    }
});
