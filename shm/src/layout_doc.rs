//! The test that keeps `LAYOUT.md` and the constants of the code the same.

use crate::bytes::MAX_TEXT;
use crate::id::{
    MAX_CLASSES, MAX_ENGINES, MAX_PAIRS, MAX_PRIORITIES, MAX_ROUTES, MAX_STANDBY, TABLE_BITS,
};
use crate::policy::{MAX_ADDRESSES, MAX_HEADERS, MAX_PROFILE_POINTS};
use crate::region::{content, header};
use crate::signals::{HISTOGRAM_BUCKETS, bucket_floor_us, layout};

const LAYOUT: &str = include_str!("../LAYOUT.md");

/// The part of the page from one line to the next of the same kind.
fn part(from: &str, to: &str) -> &'static str {
    let start = LAYOUT
        .find(from)
        .unwrap_or_else(|| panic!("{from:?} is not in LAYOUT.md"));
    let rest = &LAYOUT[start..];
    &rest[..rest
        .find(to)
        .unwrap_or_else(|| panic!("{to:?} is not after {from:?}"))]
}

/// Every row of the part's table is one of `words`, and the other way round.
fn check(part: &str, words: &[(usize, &str)]) {
    let rows: Vec<(usize, String)> = part
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" |");
            let offset = cells.next()?.trim().parse().ok()?;
            Some((offset, cells.next()?.trim().to_owned()))
        })
        .collect();
    let expected: Vec<(usize, String)> = words
        .iter()
        .map(|(at, name)| (at * 8, (*name).to_owned()))
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn headers_are_as_the_page_says() {
    use header::*;
    assert_eq!(
        (HEADER_BYTES, LAYOUT_VERSION, MAX_FILE_BYTES),
        (4096, 1, 4 << 30)
    );
    assert_eq!((KIND_POLICY, KIND_ENGINES, KIND_SIGNALS), (1, 2, 3));
    check(
        part("## Header, 4096 bytes", "Behind them in `policy`"),
        &[
            (AT_MAGIC, "magic"),
            (AT_LAYOUT_VERSION, "layout version"),
            (AT_KIND, "kind"),
            (AT_HEADER_BYTES, "header length"),
            (AT_FILE_BYTES, "file length"),
            (AT_BOOT_ID, "boot id"),
            (AT_PID, "pid"),
        ],
    );
    check(
        part("Behind them in `policy`", "The sequence has"),
        &[
            (AT_BUFFER_BYTES, "buffer length"),
            (AT_SEQUENCE, "sequence"),
            (AT_BEGUN, "begun"),
            (AT_PUBLISHED_NS, "published"),
            (AT_HEARTBEAT_NS, "heartbeat"),
        ],
    );
    check(
        part("Behind them in a signal file", "## Buffers"),
        &[
            (AT_START_NS, "start"),
            (AT_SHARDS, "shards"),
            (AT_CLASSES, "classes"),
            (AT_ENGINES, "engines"),
            (AT_PAIRS, "pairs"),
            (AT_SEGMENT_HEADER_WORDS, "segment header words"),
            (AT_CLASS_WORDS, "class words"),
            (AT_ENGINE_WORDS, "engine words"),
            (AT_PAIR_WORDS, "pair words"),
            (AT_SEGMENT_WORDS, "segment words"),
            (AT_REPLACED, "replaced"),
        ],
    );
}

#[test]
fn buffers_are_as_the_page_says() {
    use content::*;
    check(
        part("## Buffers of", "A buffer is the first"),
        &[
            (AT_USED, "used"),
            (AT_NUMBER, "number"),
            (AT_VERSION, "version"),
            (AT_EPOCH, "epoch"),
            (AT_PAYLOAD_BYTES, "payload length"),
            (AT_CHECKSUM, "checksum"),
            (HEAD_WORDS, "payload"),
        ],
    );
    assert_eq!(crate::region::MAX_PAYLOAD_BYTES, 64 << 20);
    assert_eq!(crate::region::PAUSE_NS, 20_000_000);
    assert_eq!(crate::seqlock::TRIES, 8);
}

#[test]
fn signal_records_are_as_the_page_says() {
    use layout::*;
    check(
        part("## Segments and records", "The header has 128 bytes"),
        &[
            (AT_BEAT_NS, "beat"),
            (AT_POLICY_VERSION, "policy version"),
            (AT_ATTACHED, "attached"),
            (AT_CARRIED, "carried"),
        ],
    );
    assert_eq!(
        (
            SEGMENT_HEADER_WORDS * 8,
            HISTOGRAM_WORDS * 8,
            HISTOGRAM_BUCKETS
        ),
        (128, 528, 64)
    );
    assert_eq!(
        (CLASS_WORDS * 8, ENGINE_WORDS * 8, PAIR_WORDS * 8),
        (5760, 2816, 128)
    );
    assert_eq!(
        (1..5).map(bucket_floor_us).collect::<Vec<_>>(),
        [64, 96, 128, 192]
    );
    assert_eq!(bucket_floor_us(63), 64 << 31);
    assert_eq!((PARTS, MAX_SHARDS), (256, 1024));
    check(
        part("Class record, 5760 bytes", "The load of a block"),
        &[
            (0, "generation"),
            (AT_MOVED, "moved"),
            (AT_CLIENT_TTFT, "client TTFT"),
            (AT_OFFERED, "offered"),
            (AT_ADMITTED, "admitted"),
            (AT_SHED, "shed"),
            (AT_PART_ARRIVALS, "part arrivals"),
            (AT_PART_WORK, "part work"),
        ],
    );
    check(
        part("Engine record, 2816 bytes", "Pair record"),
        &[
            (0, "generation"),
            (AT_STARTED, "started"),
            (AT_ENDED, "ended"),
            (AT_CONNECT, "connect"),
            (AT_UPLOAD, "upload"),
            (AT_TTFT, "engine TTFT"),
            (AT_TBOT, "TBOT"),
            (AT_RTT, "RTT"),
            (AT_LATE, "late"),
            (AT_PENALISED, "penalised"),
        ],
    );
    check(
        part("Pair record, 128 bytes", "Sizes:"),
        &[
            (0, "generation"),
            (AT_ATTEMPTS, "attempts"),
            (AT_PROMPT_TOKENS, "prompt tokens"),
            (AT_CACHED_TOKENS, "cached tokens"),
            (AT_OUTPUT_TOKENS, "output tokens"),
            (AT_ANSWERS, "answers"),
            (AT_ESTIMATED, "estimated"),
            (AT_TTFT_SUM_US, "TTFT sum"),
            (AT_TTFT_COUNT, "TTFT count"),
            (AT_TBOT_SUM_US, "TBOT sum"),
            (AT_TBOT_GAPS, "TBOT gaps"),
        ],
    );
    let bytes = |classes, engines, pairs| {
        let shape = crate::signals::Shape {
            shards: 1,
            classes,
            engines,
            pairs,
        };
        Geometry::of(shape).unwrap().segment_words * 8
    };
    assert_eq!(bytes(10, 100, 300).div_ceil(1024), 369);
    assert_eq!(bytes(256, 4096, 32_768) * 10 / (1 << 20), 164);
}

#[test]
fn limits_are_as_the_page_says() {
    let limits = part("| what | limit |", "## The copy on disk");
    for (what, limit) in [
        ("routes", MAX_ROUTES),
        ("classes", MAX_CLASSES),
        ("engines", MAX_ENGINES),
        ("pairs", MAX_PAIRS),
        ("priorities", MAX_PRIORITIES),
        ("standby engines of a class", MAX_STANDBY),
        ("addresses of an engine", MAX_ADDRESSES),
        ("points of a profile", MAX_PROFILE_POINTS),
        ("header conditions of a route", MAX_HEADERS),
        ("bytes of a text", MAX_TEXT),
    ] {
        assert!(
            limits.contains(&format!("| {what} | {limit} |")),
            "{what} {limit}"
        );
    }
    let (least, most) = (1 << TABLE_BITS.start(), 1 << TABLE_BITS.end());
    assert!(limits.contains(&format!("| slots of a table | {least} to {most}, ")));
}
