//! A segment: one file of frames, appended to by one writer and read by anybody meanwhile.
//!
//! `header` (8 bytes of magic, format, 4 zero bytes), then frames: magic, length of the body,
//! xxh3 over length and body, body. A writer killed in the middle leaves a torn last frame, a bad
//! disk a wrong one: a reader skips to the next frame whose checksum holds and tells how many bytes
//! it skipped. A segment is never changed but at its end and never reopened by a later process.
//! Numbers are little-endian. The name is the number of its first tick, so that names sort by age.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

/// First bytes of a segment.
const MAGIC: [u8; 8] = *b"PTSMHIST";
/// Grammar of the records in it. A reader refuses any other.
pub const FORMAT: u32 = 5;
/// Bytes before the first frame.
pub const HEADER: usize = 16;
/// First bytes of a frame.
const FRAME_MAGIC: [u8; 4] = *b"tick";
/// Bytes of a frame before its body.
pub const FRAME: usize = 16;
/// A file name's ending.
const ENDING: &str = "history";
/// Largest segment that is read, bytes: the largest bound is far below.
const MOST_READ: u64 = 2 << 30;

/// A segment's name.
#[must_use]
pub fn path(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:020}.{ENDING}"))
}

/// Segments in a folder with the number of their first tick, oldest first; none without a folder.
///
/// # Errors
///
/// The folder cannot be listed.
pub fn list(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let ours = path.extension().is_some_and(|ending| ending == ENDING);
        if let Some(first) = stem.filter(|_| ours).and_then(|stem| stem.parse().ok()) {
            found.push((first, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The first bytes of a segment.
#[must_use]
pub fn header() -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    bytes
}

/// A body in its frame; `None` when it is too long for one.
#[must_use]
pub fn frame(body: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(body.len()).ok()?.to_le_bytes();
    let mut bytes = Vec::with_capacity(FRAME + body.len());
    bytes.extend_from_slice(&FRAME_MAGIC);
    bytes.extend_from_slice(&length);
    bytes.extend_from_slice(&checksum(&length, body).to_le_bytes());
    bytes.extend_from_slice(body);
    Some(bytes)
}

fn checksum(length: &[u8; 4], body: &[u8]) -> u64 {
    // The length is mixed in after the body, so that neither is copied.
    let mut word = xxh3_64(body).to_le_bytes().to_vec();
    word.extend_from_slice(length);
    xxh3_64(&word)
}

/// What a segment holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Bodies of whole frames, and gaps between them, in order.
    pub pieces: Vec<Piece>,
}

/// A part of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The body of a whole frame.
    Body(Range<usize>),
    /// Bytes that are no whole frame, skipped.
    Damaged(Range<usize>),
    /// Bytes at the end that are no whole frame: a writer was killed there, or is writing now.
    Torn(Range<usize>),
}

/// The bytes of a segment file.
///
/// # Errors
///
/// It cannot be read, or is larger than any segment.
pub fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MOST_READ + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_READ {
        let text = format!("over {MOST_READ} bytes: no segment of a history");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(bytes)
}

/// Finds the frames in a segment's bytes.
///
/// # Errors
///
/// Says what is wrong with its header.
pub fn scan(bytes: &[u8]) -> Result<Scan, String> {
    let mut scan = Scan::default();
    let Some(head) = bytes.get(..HEADER) else {
        if !bytes.is_empty() {
            scan.pieces.push(Piece::Torn(0..bytes.len()));
        }
        return Ok(scan);
    };
    if head[..8] != MAGIC {
        return Err("is no segment of a history".to_owned());
    }
    let format = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if format != FORMAT {
        return Err(format!("has format {format}; this solver reads {FORMAT}"));
    }
    let mut at = HEADER;
    while at < bytes.len() {
        if let Some(body) = whole(bytes, at) {
            at = body.end;
            scan.pieces.push(Piece::Body(body));
            continue;
        }
        let next = (at + 1..bytes.len()).find(|&next| whole(bytes, next).is_some());
        scan.pieces.push(match next {
            Some(next) => Piece::Damaged(at..next),
            None => Piece::Torn(at..bytes.len()),
        });
        at = next.unwrap_or(bytes.len());
    }
    Ok(scan)
}

/// The body of the frame that begins at `at`, if a whole one does.
fn whole(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let head = bytes.get(at..at + FRAME)?;
    if head[..4] != FRAME_MAGIC {
        return None;
    }
    let length: [u8; 4] = head[4..8].try_into().ok()?;
    let sum = u64::from_le_bytes(head[8..16].try_into().ok()?);
    let start = at + FRAME;
    let end = start.checked_add(u32::from_le_bytes(length) as usize)?;
    let body = bytes.get(start..end)?;
    (checksum(&length, body) == sum).then_some(start..end)
}

/// Creates a segment with its header; one of that name must not be there.
pub(super) fn create(path: &Path) -> io::Result<File> {
    let mut file = File::options().append(true).create_new(true).open(path)?;
    file.write_all(&header())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(bodies: &[&[u8]]) -> Vec<u8> {
        let mut bytes = header().to_vec();
        for body in bodies {
            bytes.extend(frame(body).unwrap());
        }
        bytes
    }

    fn found(bytes: &[u8]) -> (Vec<&[u8]>, Vec<Piece>) {
        let scan = scan(bytes).unwrap();
        let (mut bodies, mut gaps) = (Vec::new(), Vec::new());
        for piece in scan.pieces {
            match piece {
                Piece::Body(range) => bodies.push(&bytes[range]),
                gap => gaps.push(gap),
            }
        }
        (bodies, gaps)
    }

    #[test]
    fn a_segment_cut_anywhere_gives_its_whole_frames() {
        let bodies: [&[u8]; 3] = [b"one", b"", b"three"];
        let bytes = segment(&bodies);
        assert_eq!(found(&bytes), (bodies.to_vec(), vec![]));
        let ends = [HEADER, HEADER + 19, HEADER + 35, HEADER + 56];
        assert_eq!(bytes.len(), ends[3]);
        for cut in 0..bytes.len() {
            let (whole, gaps) = found(&bytes[..cut]);
            let expected = ends.iter().skip(1).filter(|end| **end <= cut).count();
            assert_eq!(whole, bodies[..expected], "cut at {cut}");
            let at = if cut < HEADER { 0 } else { ends[expected] };
            let torn = (cut > at).then_some(Piece::Torn(at..cut));
            assert_eq!(gaps, Vec::from_iter(torn), "cut at {cut}");
        }
    }

    #[test]
    fn a_flipped_bit_loses_its_own_frame_only() {
        let bodies: [&[u8]; 3] = [b"first", b"middle", b"last"];
        let good = segment(&bodies);
        let middle = HEADER + FRAME + 5..HEADER + FRAME + 5 + FRAME + 6;
        for bit in middle.start * 8..middle.end * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (whole, gaps) = found(&bytes);
            assert_eq!(whole, [bodies[0], bodies[2]], "bit {bit}");
            assert_eq!(gaps, [Piece::Damaged(middle.clone())], "bit {bit}");
        }
    }

    #[test]
    fn what_is_no_segment_is_named() {
        assert_eq!(
            scan(b"something else of a length").unwrap_err(),
            "is no segment of a history"
        );
        let mut newer = header();
        newer[8] = 6;
        assert_eq!(
            scan(&newer).unwrap_err(),
            "has format 6; this solver reads 5"
        );
    }

    #[test]
    fn segments_sort_by_age_and_other_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["lock", "x.history", "00000000000000000007.history"] {
            fs::write(dir.path().join(name), b"").unwrap();
        }
        let tenth = path(dir.path(), 10);
        fs::write(&tenth, b"").unwrap();
        let found = list(dir.path()).unwrap();
        assert_eq!(found, [(7, path(dir.path(), 7)), (10, tenth)]);
        assert_eq!(list(&dir.path().join("none")).unwrap(), []);
    }
}
