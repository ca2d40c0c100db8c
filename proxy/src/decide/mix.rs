//! Mixing of hashes already made: one multiplication each, equal on every host.
//!
//! Not a hash of bytes (that is `pointsman_shm::id::stable_hash`): these turn one or two good
//! hashes into another that is independent of both, in a nanosecond.

/// A hash of two hashes; the order counts.
#[must_use]
pub fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b | 1);
    finish((product as u64) ^ ((product >> 64) as u64) ^ b.rotate_left(32))
}

/// A bijection whose every output bit depends on every input bit.
#[must_use]
pub fn finish(mut hash: u64) -> u64 {
    hash ^= hash >> 30;
    hash = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash ^= hash >> 27;
    hash = hash.wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_pinned_for_every_host() {
        assert_eq!(finish(0), 0);
        assert_eq!(finish(1), 0x5692_161d_100b_05e5);
        assert_ne!(mix(1, 2), mix(2, 1));
        assert_ne!(mix(0, 0), 0);
    }

    #[test]
    fn high_and_low_bits_of_a_mix_are_even() {
        let (mut high, mut low) = ([0u32; 16], [0u32; 16]);
        for key in 0..16_000u64 {
            let mixed = mix(key, 7);
            high[(mixed >> 60) as usize] += 1;
            low[(mixed & 15) as usize] += 1;
        }
        // 1,000 expected in each, standard deviation 31.
        for count in high.into_iter().chain(low) {
            assert!((850..1150).contains(&count), "{high:?} {low:?}");
        }
    }
}
