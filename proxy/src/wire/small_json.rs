//! Small pieces of JSON from an engine, parsed into a value: error events and load reports.
//!
//! The parser recurses into nested values, so nesting is looked at before it may: an engine must
//! not be able to overflow a shard's stack, which would end the process and every stream in it.

/// Deepest nesting parsed; what engines send here has three or four levels.
const MAX_DEPTH: usize = 32;

/// The value of `json`; none where it is no JSON, or nested deeper than anything meant here.
pub(crate) fn parse(json: &[u8]) -> Option<sonic_rs::Value> {
    if !is_shallow(json) {
        return None;
    }
    sonic_rs::from_slice(json).ok()
}

/// Whether no bracket outside a string opens below [`MAX_DEPTH`]. What is no JSON gets some answer,
/// and is then refused by the parser: it reads strings and brackets in the same order as this.
fn is_shallow(json: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for &byte in json {
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(depth: usize) -> String {
        "[".repeat(depth) + &"]".repeat(depth)
    }

    #[test]
    fn only_shallow_values_are_parsed() {
        assert!(parse(nested(MAX_DEPTH).as_bytes()).is_some());
        assert!(parse(nested(MAX_DEPTH + 1).as_bytes()).is_none());
        assert!(parse("[".repeat(1_000_000).as_bytes()).is_none());
        assert!(parse("{\"a\":".repeat(1_000_000).as_bytes()).is_none());
        assert!(parse(b"]]]]").is_none());
    }

    #[test]
    fn brackets_in_strings_do_not_count() {
        let text = format!(r#"{{"a":"\"{}\\","b":[1]}}"#, "[".repeat(1_000));
        assert!(parse(text.as_bytes()).is_some());
        // The string ends at its second quote, so these brackets are none of its bytes.
        let text = format!(r#"["\\",{}]"#, nested(1_000));
        assert!(parse(text.as_bytes()).is_none());
    }
}
