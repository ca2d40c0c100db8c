//! How prompts wait for each other in an engine that batches.
//!
//! A step of continuous batching takes in the prompts that came during the step before it. With q
//! the part of an engine's time that goes to prompts and p the time of one prompt, the length of a
//! step follows the one before by T' = a + p x Poisson(rate x T), so that its variance over its mean
//! is q p / (1 - q²). A request comes in a step that is longer than the mean by that, waits for half
//! of it, and goes into the next, which is longer by q of it: its first token takes
//!
//! ```text
//! 3/2 T + p (1 + q (1/2 + q) / (1 - q²))
//! ```
//!
//! So a mix of longer prompts waits longer at the same utilisation, for more of that is prompts.
//! How far an engine does so at all is told by its own curve: what does not rise does not batch.

/// Steps by themselves take a part even of a full engine's time.
const FULL: f64 = 0.92;
/// Most of an engine's time that is taken to go to prompts.
const MOST: f64 = 0.95;

/// What a prompt's own time is multiplied by, where prompts take so much of an engine's time.
fn waiting(prefill: f64) -> f64 {
    let q = prefill.clamp(0.0, MOST);
    1.0 + q * (0.5 + q) / (1.0 - q * q)
}

/// Factor on the part of a first token that is not steps, for requests of which `own` of the work
/// is prompt, measured with requests of which `measured` is. `rise` is how much longer than at rest
/// that part was measured at this utilisation: as far as waiting explains it, it is waiting.
#[must_use]
pub fn longer(rise: f64, utilisation: f64, measured: f64, own: f64) -> f64 {
    let at = |share: f64| waiting(FULL * share * utilisation);
    let explains = at(measured) - 1.0;
    if explains <= 0.0 || rise <= 1.0 {
        return 1.0;
    }
    let explained = ((rise - 1.0) / explains).min(1.0);
    1.0 + explained * (at(own) / at(measured) - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_grows_without_end_and_is_nothing_at_rest() {
        assert_eq!(waiting(0.0), 1.0);
        // 1/2 (1/2 + 1/2) / (3/4)
        assert!((waiting(0.5) - 5.0 / 3.0).abs() < 1e-12);
        assert_eq!(waiting(2.0), waiting(MOST));
    }

    #[test]
    fn only_what_rises_with_load_rises_more_with_more_of_prompts() {
        assert_eq!(longer(1.0, 0.8, 0.5, 0.9), 1.0);
        assert_eq!(longer(3.0, 0.0, 0.5, 0.9), 1.0);
        assert_eq!(longer(3.0, 0.8, 0.7, 0.7), 1.0);
        let (measured, own) = (waiting(0.92 * 0.8 * 0.5), waiting(0.92 * 0.8 * 0.9));
        let whole = longer(measured, 0.8, 0.5, 0.9);
        assert!((whole - own / measured).abs() < 1e-12);
        // Beyond what waiting explains it is something else, and no further.
        assert_eq!(longer(2.0 * measured, 0.8, 0.5, 0.9), whole);
        let half = longer(1.0 + (measured - 1.0) / 2.0, 0.8, 0.5, 0.9);
        assert!((half - f64::midpoint(1.0, whole)).abs() < 1e-12);
        assert!(longer(measured, 0.8, 0.5, 0.2) < 1.0);
    }
}
