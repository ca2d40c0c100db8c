//! Files that change under a keeper: what is taken up, what is not, and what is told.

use pointsman_tests::tls::{Authority, Leaf};

use super::*;

struct Host {
    dir: tempfile::TempDir,
    process: Arc<ProcessMetrics>,
    keeper: Keeper,
    handle: SecretsHandle,
}

impl Host {
    /// A host with one certificate, optional client certificates and one credential.
    fn new(authority: &Authority, leaf: &Leaf) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let _ = leaf.write(dir.path(), "own");
        std::fs::write(dir.path().join("ca"), authority.pem()).unwrap();
        std::fs::write(dir.path().join("token"), "first\n").unwrap();
        let text = "frontend = 'A'\nlisten_tls = ['127.0.0.1:0']\n[tls]\n\
                    client_auth = 'optional'\nclient_ca = 'DIR/ca'\n[[tls.certificates]]\n\
                    cert = 'DIR/own.pem'\nkey = 'DIR/own.key'\n[credentials.gpu]\n\
                    bearer_file = 'DIR/token'\nca = 'DIR/ca'\n";
        let text = text.replace("DIR", &dir.path().display().to_string());
        let host = crate::config::Host { cores: 1 };
        let config = crate::config::parse(&text, "proxy.toml".as_ref(), host).unwrap();
        let process = Arc::new(ProcessMetrics::default());
        let mut keeper = Keeper::new(&config, Arc::clone(&process)).unwrap();
        let handle = keeper.handles(1).pop().unwrap();
        Self {
            dir,
            process,
            keeper,
            handle,
        }
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.dir.path().join(file), text).unwrap();
    }

    /// A look at the files, and then the shard's housekeeping: whether it has new secrets.
    fn turn(&mut self) -> bool {
        self.keeper.turn();
        self.handle.take_up()
    }

    fn expiry(&self) -> i64 {
        self.process.expiries()[0].not_after_unix_s
    }
}

#[test]
fn a_changed_token_is_taken_up_and_a_bad_one_is_not() {
    let authority = Authority::new("ca");
    let mut host = Host::new(&authority, &authority.leaf(&["a"]));
    let bearer = |host: &Host| host.handle.current().bearer(Some(0)).map(<[u8]>::to_vec);
    assert_eq!(bearer(&host).as_deref(), Some(&b"first"[..]));
    assert!(!host.turn(), "nothing changed");
    host.write("token", "second, with a space\n");
    assert!(!host.turn());
    assert_eq!(
        bearer(&host).as_deref(),
        Some(&b"first"[..]),
        "the last good one stays"
    );
    assert_eq!(host.process.secret_reloads_failed.value(), 1);
    assert!(!host.turn(), "and is not tried again while it stands");
    assert_eq!(host.process.secret_reloads_failed.value(), 1);
    host.write("token", "third\n");
    assert!(host.turn());
    assert_eq!(bearer(&host).as_deref(), Some(&b"third"[..]));
    assert_eq!(host.process.secret_reloads.value(), 1);
}

#[test]
fn a_certificate_is_taken_up_when_its_key_has_followed() {
    let authority = Authority::new("ca");
    let mut host = Host::new(&authority, &authority.leaf_until(&["a"], 2031, 3, 1));
    assert_eq!(host.expiry(), 1_930_089_600);
    let before = host.handle.current().server.clone().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let (cert, key) = authority
        .leaf_until(&["a"], 2032, 3, 1)
        .write(elsewhere.path(), "new");
    std::fs::copy(cert, host.dir.path().join("own.pem")).unwrap();
    assert!(!host.turn(), "the key is not its own yet");
    assert_eq!(host.process.secret_reloads_failed.value(), 1);
    assert_eq!(host.expiry(), 1_930_089_600);
    std::fs::copy(key, host.dir.path().join("own.key")).unwrap();
    assert!(host.turn());
    assert_eq!(host.expiry(), 1_961_712_000);
    let after = host.handle.current().server.clone().unwrap();
    assert!(!Arc::ptr_eq(&before, &after));
    assert!(
        Arc::ptr_eq(&before.ticketer, &after.ticketer),
        "sessions outlive a certificate"
    );
}

#[test]
fn sessions_do_not_outlive_the_authorities_that_vouched_for_them() {
    let authority = Authority::new("ca");
    let mut host = Host::new(&authority, &authority.leaf(&["a"]));
    let before = host.handle.current().server.clone().unwrap();
    host.write("ca", &Authority::new("other").pem());
    assert!(host.turn());
    let after = host.handle.current().server.clone().unwrap();
    assert!(!Arc::ptr_eq(&before.ticketer, &after.ticketer));
}

#[test]
fn a_file_that_goes_away_changes_nothing_but_the_count() {
    let authority = Authority::new("ca");
    let mut host = Host::new(&authority, &authority.leaf(&["a"]));
    std::fs::remove_file(host.dir.path().join("own.key")).unwrap();
    assert!(!host.turn());
    assert_eq!(host.process.secret_reloads_failed.value(), 1);
    assert!(host.handle.current().server.is_some());
}
