//! Time a request spends on the way: from one round-trip time, or from what sockets measured.
//!
//! One round trip carries a small request there and its first byte back. A body beyond TCP's
//! initial window needs further rounds, each carrying twice what the one before did (slow start
//! begins anew on connections that idled). A request that opens a connection pays handshakes
//! first; with kept connections few do. What proxies measured takes the place of each estimate. The
//! engine's own time is not in here.

use pointsman_shm::policy::Protocol;

/// Bytes that leave in the first round: ten segments of 1,460 bytes.
const INITIAL_WINDOW: f64 = 14_600.0;
/// Rounds after which slow start has reached any window.
const MOST_ROUNDS: u32 = 16;
/// Bytes that a fresh socket takes at once: two initial windows. A request is sent, as proxies
/// measure it, when the last of it is in there; how long that travels nobody sees.
const SEND_BUFFER: f64 = 2.0 * INITIAL_WINDOW;
/// A measured upload counts up to so many times its estimate and a round trip: what takes longer is
/// an engine that does not read, and no distance.
const MOST_UPLOAD: f64 = 4.0;

/// What proxies measured of the way from a frontend to an engine; `None` is too little for a
/// number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Round trip, milliseconds.
    pub rtt_ms: Option<f64>,
    /// Opening a connection, handshakes included, milliseconds.
    pub connect_ms: Option<f64>,
    /// Share of requests that open one.
    pub opened_share: Option<f64>,
    /// Sending a request, milliseconds.
    pub upload_ms: Option<f64>,
    /// Further rounds of a mean request among those whose sending was measured.
    pub mean_rounds: f64,
}

/// Network time of one request where nothing was measured, milliseconds.
#[must_use]
pub fn network_ms(rtt_ms: f64, body_bytes: f64, handshake_share: f64, protocol: Protocol) -> f64 {
    Measured::default().network_ms(rtt_ms, body_bytes, handshake_share, protocol)
}

impl Measured {
    /// Network time of one request, milliseconds: `rtt_ms` and `handshake_share` are what holds
    /// where nothing was measured.
    #[must_use]
    pub fn network_ms(
        &self,
        rtt_ms: f64,
        body_bytes: f64,
        handshake_share: f64,
        protocol: Protocol,
    ) -> f64 {
        let rtt_ms = self.rtt_ms.unwrap_or(rtt_ms);
        let share = self.opened_share.unwrap_or(handshake_share);
        let connect_ms = self.connect_ms.unwrap_or(rtt_ms * handshakes(protocol));
        rtt_ms + self.sending_ms(rtt_ms, further_rounds(body_bytes)) + share * connect_ms
    }

    /// What a first token's time holds of the network, milliseconds, as proxies measure it: from the
    /// moment the last of a request is in the socket. What sending took until then is not in it.
    /// `rounds` are those of the upload beyond the first.
    #[must_use]
    pub fn in_first_token_ms(&self, rtt_ms: f64, rounds: u32) -> f64 {
        let rtt_ms = self.rtt_ms.unwrap_or(rtt_ms);
        let upload_ms = self.own_upload_ms(rtt_ms, rounds).unwrap_or(0.0);
        let left_ms = rtt_ms * f64::from(rounds) - upload_ms;
        rtt_ms + left_ms.max(unseen_ms(rtt_ms, rounds))
    }

    /// What sending takes beyond the round trip, milliseconds.
    fn sending_ms(&self, rtt_ms: f64, rounds: u32) -> f64 {
        let estimate_ms = rtt_ms * f64::from(rounds);
        let most_ms = MOST_UPLOAD * (estimate_ms + rtt_ms);
        self.own_upload_ms(rtt_ms, rounds)
            .map_or(estimate_ms, |own_ms| {
                own_ms.clamp(unseen_ms(rtt_ms, rounds), most_ms)
            })
    }

    /// What was measured of sending, as that of a request of so many further rounds, milliseconds.
    /// A mean was measured: longer bodies have as much more of it as they have more rounds. Where
    /// all that was sent took one round, nothing says what a further one takes: the estimate stands.
    fn own_upload_ms(&self, rtt_ms: f64, rounds: u32) -> Option<f64> {
        let mean_ms = self.upload_ms?;
        let rounds = f64::from(rounds);
        Some(match self.mean_rounds > 0.0 {
            true => rounds / self.mean_rounds * mean_ms,
            false => mean_ms.max(rtt_ms * rounds),
        })
    }
}

/// What a socket hides of sending, milliseconds.
fn unseen_ms(rtt_ms: f64, rounds: u32) -> f64 {
    rtt_ms * f64::from(rounds.min(further_rounds(SEND_BUFFER)))
}

/// Round trips of opening a connection.
fn handshakes(protocol: Protocol) -> f64 {
    match protocol {
        Protocol::Http1 | Protocol::Http2 => 1.0,
        Protocol::Http1Tls | Protocol::Http2Tls => 2.0,
    }
}

/// Rounds of an upload beyond the first.
#[must_use]
pub fn further_rounds(body_bytes: f64) -> u32 {
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

    const NOTHING: Measured = Measured {
        rtt_ms: None,
        connect_ms: None,
        opened_share: None,
        upload_ms: None,
        mean_rounds: 0.0,
    };

    #[test]
    fn what_was_not_measured_is_estimated() {
        for bytes in [0.0, 20_000.0, 1e6] {
            for protocol in [Protocol::Http1, Protocol::Http2Tls] {
                let estimate = network_ms(40.0, bytes, 0.25, protocol);
                assert_eq!(NOTHING.network_ms(40.0, bytes, 0.25, protocol), estimate);
                let measured = Measured {
                    rtt_ms: Some(40.0),
                    ..NOTHING
                };
                assert_eq!(measured.network_ms(5.0, bytes, 0.25, protocol), estimate);
            }
        }
    }

    #[test]
    fn measured_connections_take_the_place_of_handshakes() {
        let measured = Measured {
            connect_ms: Some(90.0),
            opened_share: Some(0.5),
            ..NOTHING
        };
        let of = |measured: Measured| measured.network_ms(40.0, 0.0, 0.0, Protocol::Http1Tls);
        assert_eq!(of(measured), 40.0 + 45.0);
        // Each of both alone.
        let share = Measured {
            connect_ms: None,
            ..measured
        };
        assert_eq!(of(share), 40.0 + 0.5 * 80.0);
        let time = Measured {
            opened_share: None,
            ..measured
        };
        assert_eq!(of(time), 40.0);
    }

    #[test]
    fn a_measured_upload_takes_the_place_of_rounds_but_for_what_a_socket_hides() {
        // 120,000 bytes: 14,600, then 29,200, 58,400 and 116,800 in three further rounds.
        let sent = |upload_ms: f64, mean_rounds: f64, bytes: f64| {
            let measured = Measured {
                upload_ms: Some(upload_ms),
                mean_rounds,
                ..NOTHING
            };
            measured.network_ms(40.0, bytes, 0.0, Protocol::Http1) - 40.0
        };
        assert_eq!(further_rounds(120_000.0), 3);
        assert_eq!(sent(150.0, 3.0, 120_000.0), 150.0);
        // Less than the rounds say, on a connection whose window stayed open.
        assert_eq!(sent(60.0, 3.0, 120_000.0), 60.0);
        // The mean of bodies half as many rounds long.
        assert_eq!(sent(60.0, 1.5, 120_000.0), 120.0);
        assert_eq!(sent(60.0, 1.5, 10_000.0), 0.0);
        // A socket took all of it at once: its one further round is not seen.
        assert_eq!(sent(0.0625, 1.0, 24_000.0), 40.0);
        assert_eq!(sent(0.0625, 0.0, 2_000.0), 0.0625);
        // An engine that does not read is not far away.
        assert_eq!(sent(9_000.0, 3.0, 120_000.0), 4.0 * 160.0);
    }

    #[test]
    fn small_requests_say_nothing_of_the_rounds_of_a_large_one() {
        // Only chat went there: its uploads are over at once.
        let small = Measured {
            upload_ms: Some(0.0625),
            ..NOTHING
        };
        let of = |measured: &Measured, bytes: f64| {
            measured.network_ms(40.0, bytes, 0.0, Protocol::Http1)
        };
        assert_eq!(of(&small, 2_000.0), 40.0625);
        assert_eq!(of(&small, 120_000.0), of(&NOTHING, 120_000.0));
        assert_eq!(of(&small, 120_000.0), 160.0);
        // Where even small ones take longer than the rounds say, so do large ones.
        let slow = Measured {
            upload_ms: Some(150.0),
            ..NOTHING
        };
        assert_eq!(of(&slow, 120_000.0), 190.0);
        assert_eq!(slow.in_first_token_ms(40.0, 3), 80.0);
    }

    #[test]
    fn what_was_sent_before_the_clock_starts_is_not_in_a_first_token() {
        let of = |upload_ms: Option<f64>, mean_rounds: f64, rounds: u32| {
            let measured = Measured {
                upload_ms,
                mean_rounds,
                ..NOTHING
            };
            measured.in_first_token_ms(40.0, rounds)
        };
        assert_eq!(of(None, 0.0, 3), 160.0);
        assert_eq!(of(Some(60.0), 3.0, 3), 100.0);
        // The mean of bodies half as many rounds long: this one took twice as long.
        assert_eq!(of(Some(20.0), 1.5, 3), 120.0);
        assert_eq!(of(Some(20.0), 1.5, 0), 40.0);
        // At least the round that the socket hides, and at most all of them.
        assert_eq!(of(Some(500.0), 3.0, 3), 80.0);
        assert_eq!(of(Some(0.125), 1.0, 1), 80.0);
        assert_eq!(of(Some(0.125), 0.0, 0), 40.0);
    }
}
