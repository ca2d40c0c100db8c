//! A history as it is read: ticks in order, and what is missing between them.
//!
//! Anybody who may read the folder may read it, also while a solver writes. What cannot be read is
//! told and skipped; it never makes the rest unreadable.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use super::record::{self, Before, Head, Tick};
use super::segment::{self, Piece};
use crate::error::Error;

/// One thing found in a history.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A whole tick.
    Tick(Box<Tick>),
    /// A tick of which only the head can be read: one before it is lost.
    Head(Box<Head>),
    /// Something is missing here.
    Gap(String),
}

/// Heads of a history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heads {
    /// By rising number, with the segment each is in.
    pub heads: Vec<(Head, PathBuf)>,
    /// What could not be read.
    pub gaps: Vec<String>,
}

/// Segments of a folder, oldest first.
///
/// # Errors
///
/// The folder cannot be listed, or holds no segment.
pub fn segments(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let found = segment::list(dir).map_err(|error| Error::io("list", dir, error))?;
    if found.is_empty() {
        let why = format!(
            "{}: no history there (--state-dir, or `history_ticks` and `history_mib` in the \
             topology)",
            dir.display()
        );
        return Err(Error::Other(why));
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// The heads of all segments of a folder, without unpacking anything else.
///
/// # Errors
///
/// The folder cannot be listed, or holds no segment.
pub fn heads(dir: &Path) -> Result<Heads, Error> {
    let mut found = Heads::default();
    for path in segments(dir)? {
        let (bytes, pieces) = match open(&path) {
            Ok(opened) => opened,
            Err(why) => {
                found.gaps.push(why);
                continue;
            }
        };
        for piece in pieces {
            let head = match &piece {
                Piece::Body(body) => record::head(&bytes[body.clone()]),
                gap => Err(missing(gap)),
            };
            match head {
                Ok(head) => found.heads.push((head, path.clone())),
                Err(why) => found.gaps.push(format!("{}: {why}", path.display())),
            }
        }
    }
    Ok(found)
}

/// Walks over the ticks of segments.
#[derive(Debug)]
pub struct Walk {
    files: VecDeque<PathBuf>,
    open: Option<Segment>,
    before: Before,
    /// Number of the last tick, while the next can follow from it.
    follows: Option<u64>,
}

#[derive(Debug)]
struct Segment {
    path: PathBuf,
    bytes: Vec<u8>,
    pieces: VecDeque<Piece>,
}

impl Walk {
    /// Over these segments, in their order.
    #[must_use]
    pub fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            files: files.into_iter().collect(),
            open: None,
            before: Before::default(),
            follows: None,
        }
    }

    fn tick(&mut self, body: &[u8]) -> Result<Item, String> {
        let head = record::head(body)?;
        let number = head.number;
        let follows = head.starts || self.follows.is_some_and(|last| last + 1 == number);
        self.follows = None;
        if !follows {
            return Ok(Item::Head(Box::new(head)));
        }
        let tick = self.before.unpack(body)?;
        self.follows = Some(number);
        Ok(Item::Tick(Box::new(tick)))
    }
}

impl Iterator for Walk {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        loop {
            let Some(mut segment) = self.open.take() else {
                let path = self.files.pop_front()?;
                self.follows = None;
                match open(&path) {
                    Ok((bytes, pieces)) => {
                        let pieces = pieces.into();
                        self.open = Some(Segment {
                            path,
                            bytes,
                            pieces,
                        });
                        continue;
                    }
                    Err(why) => return Some(Item::Gap(why)),
                }
            };
            let Some(piece) = segment.pieces.pop_front() else {
                continue;
            };
            let item = match &piece {
                Piece::Body(body) => self.tick(&segment.bytes[body.clone()]),
                gap => {
                    self.follows = None;
                    Err(missing(gap))
                }
            };
            let item =
                item.unwrap_or_else(|why| Item::Gap(format!("{}: {why}", segment.path.display())));
            self.open = Some(segment);
            return Some(item);
        }
    }
}

fn open(path: &Path) -> Result<(Vec<u8>, Vec<Piece>), String> {
    let bytes = match segment::bytes(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(format!("{}: was deleted meanwhile", path.display()));
        }
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let scan = segment::scan(&bytes).map_err(|why| format!("{} {why}", path.display()))?;
    Ok((bytes, scan.pieces))
}

fn missing(gap: &Piece) -> String {
    match gap {
        Piece::Body(body) => format!("bytes {} to {}", body.start, body.end),
        Piece::Damaged(bytes) => format!(
            "bytes {} to {} are damaged and skipped",
            bytes.start, bytes.end
        ),
        Piece::Torn(bytes) => format!(
            "{} bytes at the end are no whole record: a solver was stopped there, or writes now",
            bytes.len()
        ),
    }
}
