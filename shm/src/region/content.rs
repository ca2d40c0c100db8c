//! What stands in a buffer: a head of eight words, then the payload as words.
//!
//! The checksum covers the head's other words and the payload, so that a page of zeroes, a page of
//! another publication or a flipped bit is never taken for a policy. The number of the publication
//! is in the head too: a damaged sequence that leads to the wrong buffer is noticed.

use xxhash_rust::xxh3::Xxh3;

use super::Stamp;

/// Words of the head.
pub(crate) const HEAD_WORDS: usize = 8;
/// Positions in the head. Word 0 belongs to the sequence protocol: the words in use.
pub(crate) const AT_USED: usize = 0;
pub(crate) const AT_NUMBER: usize = 1;
pub(crate) const AT_VERSION: usize = 2;
pub(crate) const AT_EPOCH: usize = 3;
pub(crate) const AT_PAYLOAD_BYTES: usize = 4;
pub(crate) const AT_CHECKSUM: usize = 5;

/// Writes head and payload into `words`.
pub(crate) fn pack(words: &mut Vec<u64>, number: u64, stamp: Stamp, payload: &[u8]) {
    let used = HEAD_WORDS + payload.len().div_ceil(8);
    words.clear();
    words.resize(HEAD_WORDS, 0);
    words[AT_USED] = used as u64;
    words[AT_NUMBER] = number;
    words[AT_VERSION] = stamp.version;
    words[AT_EPOCH] = stamp.epoch;
    words[AT_PAYLOAD_BYTES] = payload.len() as u64;
    words.extend(payload.chunks(8).map(|chunk| {
        let mut eight = [0u8; 8];
        eight[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(eight)
    }));
    words[AT_CHECKSUM] = checksum(&words[..HEAD_WORDS], payload);
    debug_assert_eq!(words.len(), used);
}

/// Checks words that were copied from the buffer of publication `number` and puts the payload into
/// `into`; an error says what does not hold.
pub(crate) fn unpack(
    words: &[u64],
    number: u64,
    into: &mut Vec<u8>,
) -> Result<Stamp, &'static str> {
    let Some((head, body)) = words.split_at_checked(HEAD_WORDS) else {
        return Err("its buffer is shorter than a head");
    };
    if head[AT_NUMBER] != number {
        return Err("its buffer is of another publication than its sequence");
    }
    let bytes = usize::try_from(head[AT_PAYLOAD_BYTES]).unwrap_or(usize::MAX);
    if bytes.div_ceil(8) != body.len() {
        return Err("its payload length does not match its buffer");
    }
    into.clear();
    into.reserve(body.len() * 8);
    body.iter()
        .for_each(|word| into.extend_from_slice(&word.to_le_bytes()));
    into.truncate(bytes);
    if checksum(head, into) != head[AT_CHECKSUM] {
        into.clear();
        return Err("its checksum does not match its payload");
    }
    Ok(Stamp {
        version: head[AT_VERSION],
        epoch: head[AT_EPOCH],
    })
}

fn checksum(head: &[u64], payload: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    head[..AT_CHECKSUM]
        .iter()
        .for_each(|word| hash.update(&word.to_le_bytes()));
    hash.update(payload);
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_comes_back_and_no_flipped_bit_does() {
        let stamp = Stamp {
            version: 7,
            epoch: 3,
        };
        let (mut words, mut into) = (Vec::new(), Vec::new());
        for len in 0..40usize {
            let payload: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
            pack(&mut words, 4, stamp, &payload);
            assert_eq!(unpack(&words, 4, &mut into), Ok(stamp));
            assert_eq!(into, payload);
        }
        for bit in 64..(AT_CHECKSUM + 1) * 64 {
            let mut flipped = words.clone();
            flipped[bit / 64] ^= 1 << (bit % 64);
            assert!(unpack(&flipped, 4, &mut into).is_err(), "head bit {bit}");
        }
        for bit in 0..39 * 8 {
            let mut flipped = words.clone();
            flipped[HEAD_WORDS + bit / 64] ^= 1 << (bit % 64);
            assert!(unpack(&flipped, 4, &mut into).is_err(), "payload bit {bit}");
        }
        assert!(unpack(&words, 5, &mut into).is_err());
        assert!(unpack(&words[..words.len() - 1], 4, &mut into).is_err());
        assert!(unpack(&[0; HEAD_WORDS], 0, &mut into).is_err());
        assert!(unpack(&[], 0, &mut into).is_err());
    }
}
