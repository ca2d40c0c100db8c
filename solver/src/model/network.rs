//! Time a request spends on the way, from one round-trip time.
//!
//! One round trip carries a small request there and its first byte back. A body beyond TCP's
//! initial window needs further rounds, each carrying twice what the one before did (slow start
//! begins anew on connections that idled). A request that opens a connection pays handshakes
//! first; with kept connections few do. The engine's own time is not in here.

use pointsman_shm::policy::Protocol;

/// Bytes that leave in the first round: ten segments of 1,460 bytes.
const INITIAL_WINDOW: f64 = 14_600.0;
/// Rounds after which slow start has reached any window.
const MOST_ROUNDS: u32 = 16;

/// Network time of one request, milliseconds.
#[must_use]
pub fn network_ms(rtt_ms: f64, body_bytes: f64, handshake_share: f64, protocol: Protocol) -> f64 {
    let handshakes = match protocol {
        Protocol::Http1 | Protocol::Http2 => 1.0,
        Protocol::Http1Tls | Protocol::Http2Tls => 2.0,
    };
    rtt_ms * (1.0 + f64::from(further_rounds(body_bytes)) + handshake_share * handshakes)
}

/// Rounds of an upload beyond the first.
fn further_rounds(body_bytes: f64) -> u32 {
    let mut rounds = 0;
    let mut sent = INITIAL_WINDOW;
    let mut window = INITIAL_WINDOW;
    while sent < body_bytes && rounds < MOST_ROUNDS {
        rounds += 1;
        window *= 2.0;
        sent += window;
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_request_costs_exactly_one_round_trip() {
        assert_eq!(network_ms(35.0, 2_000.0, 0.0, Protocol::Http1Tls), 35.0);
        assert_eq!(network_ms(0.1, 14_600.0, 0.0, Protocol::Http1), 0.1);
    }

    #[test]
    fn rounds_double() {
        assert_eq!(further_rounds(14_601.0), 1);
        assert_eq!(further_rounds(43_800.0), 1);
        assert_eq!(further_rounds(43_801.0), 2);
        assert_eq!(further_rounds(f64::MAX), MOST_ROUNDS);
    }

    #[test]
    fn handshakes_are_paid_by_those_that_open_a_connection() {
        assert_eq!(network_ms(40.0, 0.0, 0.25, Protocol::Http1), 50.0);
        assert_eq!(network_ms(40.0, 0.0, 0.25, Protocol::Http2Tls), 60.0);
    }
}
