//! The requests: which class, which key, in which order.
//!
//! A key is bytes, like a session id in a header, and is hashed inside the measured call. It is
//! written to the stack before, because a request's bytes have just been parsed when it is routed;
//! it is made from its number, so that no list of keys competes for the caches with the tables.

use pointsman_proxy::decide::mix::mix;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Bytes of a key: a UUID's text.
pub(super) const KEY_BYTES: usize = 36;

/// One request: its class's position in the policy and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) class: u16,
    pub(super) key: [u8; KEY_BYTES],
}

/// The order in which requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    InTurn,
    AtRandom,
}

/// An endless series of requests.
#[derive(Clone, Debug)]
pub(super) struct Asks {
    count: u64,
    classes: u16,
    order: Order,
    next: u64,
    seed: u64,
    random: SmallRng,
}

impl Asks {
    /// `count` keys, a power of two, spread over `classes`.
    pub(super) fn new(count: u64, classes: u16, order: Order, seed: u64) -> Self {
        debug_assert!(count.is_power_of_two(), "the next key is found by a mask");
        debug_assert!(classes > 0, "a request has a class");
        Self {
            count,
            classes,
            order,
            next: 0,
            seed,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    /// Number of different keys.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The next request.
    #[inline]
    pub(super) fn next(&mut self) -> Ask {
        let at = match self.order {
            Order::InTurn => self.next,
            Order::AtRandom => self.random.random(),
        };
        self.next = self.next.wrapping_add(1);
        self.ask(at & (self.count - 1))
    }

    fn ask(&self, number: u64) -> Ask {
        let (high, low) = (mix(number, self.seed), mix(self.seed, number));
        Ask {
            class: (number % u64::from(self.classes)) as u16,
            key: uuid(u128::from(high) << 64 | u128::from(low)),
        }
    }
}

/// The text of a UUID, eight digits at a time: what a key costs to make is time in which the calls
/// are not repeated, and so more of the calls that find something new.
fn uuid(number: u128) -> [u8; KEY_BYTES] {
    let digits = |shift: u32| hexadecimal((number >> shift) as u32);
    let (first, second, third, last) = (digits(96), digits(64), digits(32), digits(0));
    let mut text = [b'-'; KEY_BYTES];
    text[..8].copy_from_slice(&first);
    text[9..13].copy_from_slice(&second[..4]);
    text[14..18].copy_from_slice(&second[4..]);
    text[19..23].copy_from_slice(&third[..4]);
    text[24..28].copy_from_slice(&third[4..]);
    text[28..].copy_from_slice(&last);
    text
}

/// The eight digits of a number, all in one register.
fn hexadecimal(number: u32) -> [u8; 8] {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // Spread to four bits a byte, the lowest digit in the lowest byte.
    let mut digits = u64::from(number);
    digits = (digits | digits << 16) & 0x0000_ffff_0000_ffff;
    digits = (digits | digits << 8) & 0x00ff_00ff_00ff_00ff;
    digits = (digits | digits << 4) & (0x0f * EACH);
    // 6 more makes 16 or more of each that is a letter.
    let letters = ((digits + 6 * EACH) >> 4) & EACH;
    let text = digits + u64::from(b'0') * EACH + letters * u64::from(b'a' - b'0' - 10);
    text.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_in_turn_come_round_with_their_classes() {
        let mut asks = Asks::new(64, 16, Order::InTurn, 1);
        let first: Vec<Ask> = (0..64).map(|_| asks.next()).collect();
        assert!((0..16).all(|class| first[usize::from(class)].class == class));
        let again: Vec<Ask> = (0..64).map(|_| asks.next()).collect();
        assert_eq!(first, again);
        let keys: HashSet<[u8; KEY_BYTES]> = first.iter().map(|ask| ask.key).collect();
        assert_eq!(keys.len() as u64, asks.count());
    }

    #[test]
    fn keys_at_random_are_the_same_for_a_seed() {
        let series = |seed| {
            let mut asks = Asks::new(1_024, 100, Order::AtRandom, seed);
            (0..100).map(|_| asks.next()).collect::<Vec<Ask>>()
        };
        assert_eq!(series(1), series(1));
        assert_ne!(series(1), series(2));
        assert!(series(1).iter().all(|ask| ask.class < 100));
    }

    #[test]
    fn a_key_is_a_uuids_text() {
        let text = uuid(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(&text, b"01234567-89ab-cdef-0123-456789abcdef");
        assert_eq!(&uuid(u128::MAX), b"ffffffff-ffff-ffff-ffff-ffffffffffff");
        assert_eq!(&uuid(9 << 60), b"00000000-0000-0000-9000-000000000000");
    }
}
