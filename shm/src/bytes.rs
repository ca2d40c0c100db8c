//! Little-endian bytes in and out: the small grammar that both payloads are written in.
//!
//! Not a general serialiser: a payload is read by every proxy of a fleet, perhaps of another
//! release, so each rule here is part of the contract. A *record* carries its length, and what
//! follows the fields that a reader knows is skipped; a *row list* carries the length of its rows
//! for the same reason. Nothing is allocated by a count that was not checked against the bytes
//! that are there.

use crate::error::Error;

/// Longest text, bytes: its length is one byte.
pub(crate) const MAX_TEXT: usize = 255;

/// Bytes being written.
#[derive(Debug, Default)]
pub(crate) struct Put {
    out: Vec<u8>,
}

/// Bytes being read, front to back.
#[derive(Debug)]
pub(crate) struct Take<'a> {
    rest: &'a [u8],
}

impl Put {
    /// Starts a payload.
    pub(crate) fn payload(magic: [u8; 4], format: u32) -> Put {
        let mut put = Put {
            out: Vec::with_capacity(4096),
        };
        put.out.extend_from_slice(&magic);
        put.u32(format);
        put
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    pub(crate) fn flag(&mut self, value: bool) {
        self.out.push(u8::from(value));
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn f64(&mut self, value: f64) {
        self.u64(value.to_bits());
    }

    /// A text of at most [`MAX_TEXT`] bytes.
    ///
    /// # Panics
    /// When it is longer: validation before encoding refuses it.
    pub(crate) fn text(&mut self, text: &str) {
        let len = u8::try_from(text.len()).expect("a valid payload has no text over 255 bytes");
        self.u8(len);
        self.raw(text.as_bytes());
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("limits keep every count far below 2^32"));
    }

    /// A record: its length, then what `body` writes.
    pub(crate) fn record(&mut self, body: impl FnOnce(&mut Put)) {
        let start = self.out.len();
        self.u32(0);
        body(self);
        let len = u32::try_from(self.out.len() - start - 4).expect("limits bound every record");
        self.out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// A list of rows of `row_len` bytes each.
    pub(crate) fn rows<T>(&mut self, items: &[T], row_len: u16, row: impl Fn(&mut Put, &T)) {
        self.count(items.len());
        self.u16(row_len);
        for item in items {
            let start = self.out.len();
            row(self, item);
            debug_assert_eq!(self.out.len() - start, usize::from(row_len));
        }
    }
}

impl<'a> Take<'a> {
    /// Reads a payload's first bytes; what follows is up to the caller.
    pub(crate) fn payload(bytes: &'a [u8], magic: [u8; 4], format: u32) -> Result<Self, Error> {
        let mut take = Take { rest: bytes };
        let found = take.raw(4, "magic")?;
        if found != magic {
            return Err(invalid("magic", format!("{found:x?}, expected {magic:x?}")));
        }
        let found = take.u32("format")?;
        if found != format {
            return Err(invalid(
                "format",
                format!("{found}, this build reads {format}"),
            ));
        }
        Ok(take)
    }

    pub(crate) fn raw(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], Error> {
        match self.rest.split_at_checked(len) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(invalid(
                field,
                format!("needs {len} bytes, {} are left", self.rest.len()),
            )),
        }
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(N, field)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, Error> {
        Ok(self.array::<1>(field)?[0])
    }

    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool, Error> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(invalid(field, format!("{other} is neither 0 nor 1"))),
        }
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, Error> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn f64(&mut self, field: &'static str) -> Result<f64, Error> {
        Ok(f64::from_bits(self.u64(field)?))
    }

    pub(crate) fn text(&mut self, field: &'static str) -> Result<String, Error> {
        let len = usize::from(self.u8(field)?);
        let bytes = self.raw(len, field)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(e) => Err(invalid(field, format!("not UTF-8: {e}"))),
        }
    }

    /// A count that is within its limit and for which the bytes can be there.
    pub(crate) fn count(
        &mut self,
        field: &'static str,
        limit: usize,
        least_bytes: usize,
    ) -> Result<usize, Error> {
        let count = self.u32(field)?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.check_count(field, count, limit, least_bytes)
    }

    fn check_count(
        &self,
        field: &'static str,
        count: usize,
        limit: usize,
        least_bytes: usize,
    ) -> Result<usize, Error> {
        if count > limit {
            return Err(invalid(
                field,
                format!("{count} of them, the limit is {limit}"),
            ));
        }
        if count.saturating_mul(least_bytes) > self.rest.len() {
            let left = self.rest.len();
            return Err(invalid(
                field,
                format!("{count} of them do not fit in {left} bytes"),
            ));
        }
        Ok(count)
    }

    /// One record: what follows the fields that the caller takes is skipped.
    pub(crate) fn record(&mut self, field: &'static str) -> Result<Take<'a>, Error> {
        let len = self.u32(field)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        Ok(Take {
            rest: self.raw(len, field)?,
        })
    }

    /// A list of records.
    pub(crate) fn records<T>(
        &mut self,
        field: &'static str,
        limit: usize,
        one: impl Fn(&mut Take<'a>) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let count = self.count(field, limit, 4)?;
        let mut items = Vec::with_capacity(count);
        for i in 0..count {
            let item = self
                .record("record")
                .and_then(|mut record| one(&mut record));
            items.push(within(item, || format!("{field}[{i}]"))?);
        }
        Ok(items)
    }

    /// A list of rows, of which the first `row_len` bytes are known.
    pub(crate) fn rows<T>(
        &mut self,
        field: &'static str,
        (limit, row_len): (usize, u16),
        row: impl Fn(&mut Take<'a>) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let count = self.count(field, limit, 0)?;
        let found_len = self.u16(field)?;
        if found_len < row_len {
            return Err(invalid(
                field,
                format!("rows of {found_len} bytes, {row_len} needed"),
            ));
        }
        let found_len = usize::from(found_len);
        self.check_count(field, count, limit, found_len)?;
        let mut items = Vec::with_capacity(count);
        for i in 0..count {
            let mut take = Take {
                rest: self.raw(found_len, field)?,
            };
            items.push(within(row(&mut take), || format!("{field}[{i}]"))?);
        }
        Ok(items)
    }
}

/// An error about one field.
pub(crate) fn invalid(place: &str, why: String) -> Error {
    Error::Invalid {
        place: place.to_owned(),
        why,
    }
}

/// The same error, said from further out.
pub(crate) fn within<T>(
    result: Result<T, Error>,
    outer: impl FnOnce() -> String,
) -> Result<T, Error> {
    result.map_err(|error| match error {
        Error::Invalid { place, why } => Error::Invalid {
            place: format!("{}, {place}", outer()),
            why,
        },
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_trailing_fields_of_records_and_rows_are_skipped() {
        let mut put = Put::payload(*b"TEST", 1);
        put.count(1);
        put.record(|r| {
            r.u16(7);
            r.text("a field of a later release");
        });
        put.rows(&[1u16, 2], 6, |r, n| {
            r.u16(*n);
            r.u32(0xffff_ffff);
        });
        put.u8(9);
        let bytes = put.into_bytes();
        let mut take = Take::payload(&bytes, *b"TEST", 1).unwrap();
        assert_eq!(take.records("records", 1, |r| r.u16("n")).unwrap(), [7]);
        assert_eq!(take.rows("rows", (2, 2), |r| r.u16("n")).unwrap(), [1, 2]);
        assert_eq!(take.u8("last").unwrap(), 9);
        assert!(take.u8("end").is_err());
    }

    #[test]
    fn i10_absurd_counts_are_refused_before_anything_is_allocated() {
        let mut put = Put::payload(*b"TEST", 1);
        put.u32(u32::MAX);
        put.u16(2);
        let bytes = put.into_bytes();
        let mut take = Take::payload(&bytes, *b"TEST", 1).unwrap();
        let error = take.records("engines", 4096, |r| r.u8("n")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "engines: 4294967295 of them, the limit is 4096"
        );
        let mut take = Take::payload(&bytes, *b"TEST", 1).unwrap();
        let error = take
            .rows("rows", (usize::MAX, 2), |r| r.u8("n"))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "rows: 4294967295 of them do not fit in 0 bytes"
        );
        let mut take = Take::payload(
            &[b'T', b'E', b'S', b'T', 1, 0, 0, 0, 9, 0, 0, 0],
            *b"TEST",
            1,
        )
        .unwrap();
        let error = take.record("record").unwrap_err();
        assert_eq!(error.to_string(), "record: needs 9 bytes, 0 are left");
        let error = Take::payload(b"TSET\x01\0\0\0", *b"TEST", 1).unwrap_err();
        assert!(error.to_string().starts_with("magic: "), "{error}");
        let error = Take::payload(b"TEST\0\0\0\x01", *b"TEST", 1).unwrap_err();
        assert_eq!(error.to_string(), "format: 16777216, this build reads 1");
    }
}
