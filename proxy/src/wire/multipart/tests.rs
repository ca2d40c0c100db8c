//! Forms as clients send them and as nobody should, whole and cut everywhere.

use proptest::prelude::*;

use super::*;

fn boundary(text: &str) -> Boundary {
    Boundary::of(format!("multipart/form-data; boundary=\"{text}\"").as_bytes()).unwrap()
}

fn scan_cut(bytes: &[u8], cuts: &[usize]) -> Result<BodyFacts, MultipartError> {
    let mut scan = MultipartScan::new(&boundary("B"));
    let mut from = 0;
    for &cut in cuts {
        scan.feed(&bytes[from..cut])?;
        from = cut;
    }
    scan.feed(&bytes[from..])?;
    scan.finish()
}

/// The one answer of a form, whatever its split.
fn scanned(bytes: &[u8]) -> Result<BodyFacts, MultipartError> {
    let whole = scan_cut(bytes, &[]);
    for cut in 0..=bytes.len() {
        assert_eq!(scan_cut(bytes, &[cut]), whole, "cut at {cut}");
    }
    let each: Vec<usize> = (1..bytes.len()).collect();
    assert_eq!(scan_cut(bytes, &each), whole, "byte by byte");
    whole
}

fn model(bytes: &[u8]) -> Result<Option<String>, MultipartError> {
    scanned(bytes).map(|facts| facts.model)
}

fn field(name: &str, value: &str) -> String {
    format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

fn file(content: &str) -> String {
    format!(
        "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
         Content-Type: audio/wav\r\n\r\n{content}\r\n"
    )
}

const END: &str = "--B--\r\n";

#[test]
fn d11_a_model_is_found_before_and_behind_a_file() {
    let trap = "\r\n--Bx\r\n\r\n--B-\r\n--\r\n\r\r\n-name=\"model\"\r\n\r\nevil\r\n--";
    let (file, named) = (file(trap), field("model", "m"));
    let behind = format!("{file}{named}{END}");
    assert_eq!(model(behind.as_bytes()), Ok(Some("m".to_owned())));
    let before = format!("\r\n{named}{file}--B--");
    assert_eq!(model(before.as_bytes()), Ok(Some("m".to_owned())));
    let without = format!("{file}{END}");
    assert_eq!(model(without.as_bytes()), Ok(None));
}

#[test]
fn d11_names_of_every_form_are_read() {
    for head in [
        "Content-Disposition: form-data; name=model",
        "content-disposition:form-data;name=\"model\";",
        "X: y\r\nCONTENT-DISPOSITION: Form-Data ; foo=bar ; Name=\"mo\\del\"",
        "Content-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: 8bit",
    ] {
        let body = format!("--B\r\n{head}\r\n\r\nm 1\r\n{END}");
        let expected = if head.contains('\\') {
            None
        } else {
            Some("m 1".to_owned())
        };
        assert_eq!(model(body.as_bytes()), Ok(expected), "{head}");
    }
    let facts = scanned(
        format!(
            "{}{}{}{END}",
            field("stream", "True"),
            field("user", "u"),
            field("model", "é\r\nx")
        )
        .as_bytes(),
    )
    .unwrap();
    assert_eq!(facts.features, Features::STREAM);
    assert_eq!(facts.user.as_deref(), Some("u"));
    assert_eq!(facts.model.as_deref(), Some("é\r\nx"), "no trimming");
}

#[test]
fn d11_what_parsers_read_differently_is_refused() {
    let m = field("model", "m");
    let part = |head: &str| format!("--B\r\n{head}\r\n\r\nm\r\n{END}");
    let malformed =
        |body: String| matches!(model(body.as_bytes()), Err(MultipartError::PartHead { .. }));
    for head in [
        "Content-Disposition: form-data",
        "Content-Disposition: attachment; name=\"model\"",
        "Content-Disposition: form-data; name=\"a\"; name=\"model\"",
        "Content-Disposition: form-data; name=\"a\"; name*=utf-8''model",
        "Content-Disposition: form-data; name=\"model",
        "Content-Disposition: form-data;\r\n name=\"model\"",
        "Content-Disposition : form-data; name=\"model\"",
        "Content-Disposition: form-data; name=\"a\"\r\nContent-Disposition: form-data; name=\"model\"",
        "X: y",
        "no colon",
        "X: a\rb",
    ] {
        assert!(malformed(part(head)), "{head}");
    }
    assert!(matches!(
        model(b"--B\nContent-Disposition: form-data; name=\"model\"\n\nm"),
        Err(MultipartError::Delimiter { offset: 3 })
    ));
    let refused = |text: String| model(text.as_bytes()).unwrap_err();
    assert_eq!(refused(format!("junk{m}{END}")), MultipartError::Preamble);
    assert_eq!(
        refused(format!("{m}{m}{END}")),
        MultipartError::DuplicateField { field: "model" }
    );
    for more in [
        "; filename=\"x\"\r\n",
        "\r\nContent-Transfer-Encoding: base64\r\n",
    ] {
        let head = format!(
            "Content-Disposition: form-data; name=\"model\"{}",
            more.trim_end()
        );
        assert_eq!(
            refused(part(&head)),
            MultipartError::NotPlain { field: "model" }
        );
    }
    for tail in [
        "--B \r\n",
        "--B\t\r\n",
        "--B\n",
        "--B\rx",
        "--B--x",
        "--B-- \r\n",
    ] {
        let text = format!("{m}{tail}");
        assert!(
            matches!(refused(text), MultipartError::Delimiter { .. }),
            "{tail:?}"
        );
    }
}

#[test]
fn d11_an_unclosed_form_is_refused_at_its_end() {
    let m = field("model", "m");
    for cut in ["", "--", "--B", "--B\r\n", "--B-", "--B\r\nX: y\r\n"] {
        let text = format!("{m}{cut}");
        assert_eq!(
            model(text.as_bytes()),
            Err(MultipartError::Unclosed),
            "{cut:?}"
        );
    }
    assert_eq!(model(b""), Err(MultipartError::Unclosed));
    assert_eq!(model(b"--B--"), Ok(None), "a form of no part");
}

#[test]
fn everything_is_bounded() {
    let named = |length: usize| format!("{}{END}", field("model", &"x".repeat(length)));
    let whole = |text: String| scan_cut(text.as_bytes(), &[]).map(|facts| facts.model);
    assert_eq!(
        whole(named(MAX_MODEL_BYTES)),
        Ok(Some("x".repeat(MAX_MODEL_BYTES)))
    );
    assert_eq!(
        whole(named(MAX_MODEL_BYTES + 1)),
        Err(MultipartError::ModelTooLong)
    );
    assert_eq!(whole(named(0)), Err(MultipartError::Model));
    let parts = |count: usize| format!("{}{END}", field("a", "b").repeat(count));
    assert_eq!(whole(parts(MAX_PARTS)), Ok(None));
    assert_eq!(
        whole(parts(MAX_PARTS + 1)),
        Err(MultipartError::TooManyParts)
    );
    let long = format!("--B\r\nX: {}", "y".repeat(MAX_PART_HEAD_BYTES));
    assert_eq!(whole(long), Err(MultipartError::PartHeadTooLong));
}

proptest! {
    /// Any bytes, any split: one answer, and no panic.
    #[test]
    fn any_split_of_anything_gives_one_answer(
        pieces in proptest::collection::vec(
            prop_oneof![
                Just("\r\n--B".to_owned()), Just("--B\r\n".to_owned()), Just("--".to_owned()),
                Just("\r".to_owned()), Just("\n".to_owned()), Just("--B--\r\n".to_owned()),
                Just("Content-Disposition: form-data; name=\"model\"\r\n\r\n".to_owned()),
                "[a-c:;\"= ]{0,4}",
            ],
            0..24,
        ),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6),
    ) {
        let bytes = pieces.concat().into_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        prop_assert_eq!(scan_cut(&bytes, &cuts), scan_cut(&bytes, &[]));
    }

    /// A file may hold anything but its own delimiter, and hides no model.
    #[test]
    fn d11_no_file_hides_the_model(content in proptest::collection::vec(any::<u8>(), 0..400)) {
        let text = String::from_utf8_lossy(&content).replace("--B", "--b");
        let body = format!("{}{}{END}", file(&text), field("model", "m"));
        let facts = scan_cut(body.as_bytes(), &[]).unwrap();
        prop_assert_eq!(facts.model.as_deref(), Some("m"));
    }
}
