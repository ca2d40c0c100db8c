//! A token bucket on injected time.
