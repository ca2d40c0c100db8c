//! Why TLS failed, in a closed list: words for logs and metrics, not for peers.

use rustls::{AlertDescription, CertificateError, Error};

/// Why a TLS connection could not be made, or broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFailure {
    /// The peer's certificate is past its time.
    CertificateExpired,
    /// The peer's certificate is not valid yet.
    CertificateNotYetValid,
    /// No authority that we trust stands behind the peer's certificate.
    UnknownAuthority,
    /// The peer's certificate is for another name.
    WrongName,
    /// The peer's certificate was revoked, or is unfit in another way.
    BadCertificate,
    /// A client certificate is required and none came.
    NoCertificate,
    /// The peer does not like our certificate.
    CertificateRefused,
    /// The peer ended the handshake for another reason.
    PeerRefused,
    /// The two sides have no protocol for the inside in common.
    NoProtocol,
    /// The two sides have no version or cipher in common.
    Incompatible,
    /// What came is no TLS, or breaks its rules.
    NotTls,
    /// The connection ended before the handshake did.
    Closed,
    /// The handshake took too long.
    Timeout,
    /// Too many handshakes were under way.
    TooMany,
}

impl TlsFailure {
    /// How many there are.
    pub const COUNT: usize = 14;

    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [
        Self::CertificateExpired,
        Self::CertificateNotYetValid,
        Self::UnknownAuthority,
        Self::WrongName,
        Self::BadCertificate,
        Self::NoCertificate,
        Self::CertificateRefused,
        Self::PeerRefused,
        Self::NoProtocol,
        Self::Incompatible,
        Self::NotTls,
        Self::Closed,
        Self::Timeout,
        Self::TooMany,
    ];

    /// What rustls says, in our words.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(certificate) => of_certificate(certificate),
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::AlertReceived(alert) => of_alert(*alert),
            Error::NoApplicationProtocol => Self::NoProtocol,
            Error::PeerIncompatible(_) => Self::Incompatible,
            _ => Self::NotTls,
        }
    }

    /// Its label value.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::CertificateExpired => "certificate_expired",
            Self::CertificateNotYetValid => "certificate_not_yet_valid",
            Self::UnknownAuthority => "unknown_authority",
            Self::WrongName => "wrong_name",
            Self::BadCertificate => "bad_certificate",
            Self::NoCertificate => "no_certificate",
            Self::CertificateRefused => "certificate_refused",
            Self::PeerRefused => "peer_refused",
            Self::NoProtocol => "no_protocol",
            Self::Incompatible => "incompatible",
            Self::NotTls => "not_tls",
            Self::Closed => "closed",
            Self::Timeout => "timeout",
            Self::TooMany => "too_many",
        }
    }
}

fn of_certificate(error: &CertificateError) -> TlsFailure {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            TlsFailure::CertificateExpired
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TlsFailure::CertificateNotYetValid
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            TlsFailure::UnknownAuthority
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            TlsFailure::WrongName
        }
        _ => TlsFailure::BadCertificate,
    }
}

fn of_alert(alert: AlertDescription) -> TlsFailure {
    match alert {
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnknownCA
        | AlertDescription::AccessDenied
        | AlertDescription::DecryptError
        | AlertDescription::CertificateRequired => TlsFailure::CertificateRefused,
        AlertDescription::NoApplicationProtocol => TlsFailure::NoProtocol,
        AlertDescription::ProtocolVersion | AlertDescription::InsufficientSecurity => {
            TlsFailure::Incompatible
        }
        _ => TlsFailure::PeerRefused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_a_place_and_a_word_of_its_own() {
        for (place, failure) in TlsFailure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, place);
        }
        let words: std::collections::BTreeSet<_> = TlsFailure::ALL
            .iter()
            .map(|failure| failure.label())
            .collect();
        assert_eq!(words.len(), TlsFailure::COUNT);
    }

    #[test]
    fn what_rustls_says_is_told_in_our_words() {
        let certificate = |error| TlsFailure::of(&Error::InvalidCertificate(error));
        assert_eq!(
            certificate(CertificateError::Expired),
            TlsFailure::CertificateExpired
        );
        assert_eq!(
            certificate(CertificateError::UnknownIssuer),
            TlsFailure::UnknownAuthority
        );
        assert_eq!(
            certificate(CertificateError::NotValidForName),
            TlsFailure::WrongName
        );
        let alert = |alert| TlsFailure::of(&Error::AlertReceived(alert));
        assert_eq!(
            alert(AlertDescription::CertificateRequired),
            TlsFailure::CertificateRefused
        );
        assert_eq!(
            alert(AlertDescription::InternalError),
            TlsFailure::PeerRefused
        );
        assert_eq!(
            TlsFailure::of(&Error::NoCertificatesPresented),
            TlsFailure::NoCertificate
        );
    }
}
