//! Certificates for tests, made when they run.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};

/// An authority that signs for tests.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key.
pub(crate) struct Leaf {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    /// An authority of this name.
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { issuer }
    }

    /// Its certificate.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for `names`, valid for long.
    pub(crate) fn leaf(&self, names: &[&str]) -> Leaf {
        self.leaf_until(names, 2199, 1, 1)
    }

    /// A certificate for `names`, valid until midnight before that day.
    pub(crate) fn leaf_until(&self, names: &[&str], year: i32, month: u8, day: u8) -> Leaf {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, month, day);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Leaf { certificate, key }
    }
}

impl Leaf {
    /// The certificate's bytes.
    pub(crate) fn der(&self) -> Vec<u8> {
        self.certificate.der().to_vec()
    }

    /// Writes `<name>.pem` and `<name>.key`.
    pub(crate) fn write(&self, dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (cert, key) = (
            dir.join(format!("{name}.pem")),
            dir.join(format!("{name}.key")),
        );
        std::fs::write(&cert, self.certificate.pem()).unwrap();
        std::fs::write(&key, self.key.serialize_pem()).unwrap();
        (cert, key)
    }
}
