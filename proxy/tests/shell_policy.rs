//! Where a policy comes from and what happens when it is late, damaged, or not meant for this host.
//!
//! Entries E17, I08 and I10 of the list of known failures, each by name. In all of them the proxy
//! goes on by what it had, says so, and takes up the next good policy without a restart.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use pointsman_shm::Error;
use pointsman_shm::policy::Policy;
use pointsman_shm::region::{Kind, Stamp, Writer};
use pointsman_tests::both_drivers;
use pointsman_tests::client::{chat, get};
use pointsman_tests::engine::Engine;
use pointsman_tests::folder::Folder;
use pointsman_tests::policy::{Draft, FRONTEND, Publisher};
use pointsman_tests::proxy::{Driver, Proxy};
use pointsman_tests::wait::{SOON, eventually, eventually_equals};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

both_drivers!(
    e17_ready_within_one_look_of_the_first_policy,
    i08_a_damaged_policy_file_changes_nothing,
    the_copy_on_disk_serves_until_the_region_does,
);

const VERSION: &str = "pointsman_proxy_policy_version";
const REJECTED: &str = "pointsman_proxy_policy_rejected_total";

fn rung(proxy: &Proxy, rung: &str) {
    proxy.await_metric("pointsman_proxy_policy_rung", &[("rung", rung)], 1.0);
}

fn serves(proxy: &Proxy) {
    assert_eq!(proxy.ask(chat(false)).status(), 200);
}

fn e17_ready_within_one_look_of_the_first_policy(driver: Driver) {
    let engine = Engine::named("only");
    let proxy = Proxy::without_policy(Folder::new(), driver, "");
    rung(&proxy, "none");
    let answer = get(proxy.admin, "/readyz");
    assert_eq!((answer.status(), answer.text()), (503, "no policy yet\n"));
    let mut publisher = Publisher::open(&proxy.folder().region_dir(FRONTEND));
    publisher.publish(&Draft::single(engine.address()));
    proxy.await_ready();
    rung(&proxy, "fresh");
    serves(&proxy);
}

/// One way to hurt the policy file, and whether the proxy can see it.
struct Damage {
    name: &'static str,
    hurt: fn(&PathBuf),
    is_seen: bool,
}

const DAMAGES: [Damage; 6] = [
    Damage {
        name: "truncated to nothing",
        hurt: |path| resize(path, 0),
        is_seen: true,
    },
    Damage {
        name: "cut short",
        hurt: |path| resize(path, 100),
        is_seen: false,
    },
    Damage {
        name: "removed",
        hurt: |path| fs::remove_file(path).unwrap(),
        is_seen: false,
    },
    Damage {
        name: "replaced by text",
        hurt: |path| replace(path, b"not a policy\n"),
        is_seen: true,
    },
    Damage {
        name: "replaced by zeroes",
        hurt: |path| replace(path, &[0; 65_536]),
        is_seen: true,
    },
    Damage {
        name: "overwritten in place",
        hurt: overwrite,
        is_seen: false,
    },
];

fn resize(path: &PathBuf, bytes: u64) {
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(bytes)
        .unwrap();
}

/// A new file under the old name, as a copy tool makes it.
fn replace(path: &PathBuf, bytes: &[u8]) {
    let beside = path.with_extension("new");
    let mut file = File::create(&beside).unwrap();
    file.write_all(bytes).unwrap();
    fs::set_permissions(&beside, fs::metadata(path).unwrap().permissions()).unwrap();
    fs::rename(beside, path).unwrap();
}

/// Ones over the whole file, header included, under the readers' feet.
fn overwrite(path: &PathBuf) {
    let file = File::options().write(true).open(path).unwrap();
    let ones = vec![0xff; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.write_all_at(&ones, 0).unwrap();
}

fn i08_a_damaged_policy_file_changes_nothing(driver: Driver) {
    let engine = Engine::named("only");
    let draft = Draft::single(engine.address());
    for Damage {
        name,
        hurt,
        is_seen,
    } in DAMAGES
    {
        let mut proxy = Proxy::start(driver, &draft);
        drop(proxy.publisher.take());
        proxy.await_metric(VERSION, &[], 1.0);
        let path = proxy.folder().region_dir(FRONTEND).join("policy");
        hurt(&path);
        if is_seen {
            eventually(SOON, &format!("{name}: the damage is counted"), || {
                (proxy.metrics().sum(REJECTED, &[]) >= 1.0).then_some(())
            });
        }
        let mut client = proxy.connect();
        for _ in 0..20 {
            client.send(chat(false));
            assert_eq!(client.response().status(), 200, "{name}");
        }
        assert_eq!(get(proxy.admin, "/readyz").status(), 200, "{name}");
        assert_eq!(proxy.metrics().sum(VERSION, &[]), 1.0, "{name}");
        let rejections = proxy.metrics().sum(REJECTED, &[]);
        assert!(
            rejections <= 3.0,
            "{name}: {rejections} complaints about one damage"
        );
        // A writer that starts anew repairs what it finds.
        let mut publisher = Publisher::open(&proxy.folder().region_dir(FRONTEND));
        publisher.publish(&draft);
        let version = publisher.publish(&draft);
        proxy.await_metric(VERSION, &[], version as f64);
        serves(&proxy);
        proxy.await_metric("pointsman_proxy_panics_total", &[], 0.0);
    }
}

#[test]
fn i10_no_published_bytes_can_hurt_the_proxy() {
    const SEED: u64 = 10;
    println!("seed {SEED}");
    let mut random = StdRng::seed_from_u64(SEED);
    let engine = Engine::named("only");
    let draft = Draft::single(engine.address());
    let mut proxy = Proxy::start(Driver::Epoll, &draft);
    drop(proxy.publisher.take());
    let mut writer = Writer::open(&proxy.folder().region_dir(FRONTEND), Kind::Policy).unwrap();
    let (mut adopted, mut rejected) = (1, 0);
    for version in 2..80 {
        let policy = Policy {
            version,
            ..draft.policy().clone()
        };
        let payload = spoilt(policy.encode(), &mut random);
        let is_good = Policy::decode(&payload)
            .is_ok_and(|policy| policy.frontend == FRONTEND && policy.version == version);
        if is_good {
            adopted = version;
        } else {
            rejected += 1;
        }
        publish(&mut writer, version, &payload);
        // Each is taken up, or turned down, before the next replaces it.
        let count = |name| proxy.metrics().sum(name, &[]);
        eventually_equals(
            SOON,
            &format!("version {version}"),
            &(adopted as f64, rejected as f64),
            || (count(VERSION), count(REJECTED)),
        );
    }
    assert!(
        rejected > 20,
        "the damage is too small to test anything: {rejected}"
    );
    let last = Policy {
        version: 80,
        ..draft.policy().clone()
    };
    publish(&mut writer, 80, &last.encode());
    proxy.await_metric(VERSION, &[], 80.0);
    serves(&proxy);
    proxy.await_metric("pointsman_proxy_panics_total", &[], 0.0);
}

/// Valid bytes with one thing wrong: a word of ones (a count of 2^32 - 1, an index out of range, a
/// float that is none), a flipped bit, or a missing end.
fn spoilt(mut payload: Vec<u8>, random: &mut StdRng) -> Vec<u8> {
    let at = random.random_range(0..payload.len() - 4);
    match random.random_range(0..4) {
        0 => payload[at..at + 4].fill(0xff),
        1 => payload[at..at + 4].fill(0),
        2 => payload[at] ^= 1 << random.random_range(0..8),
        _ => payload.truncate(at),
    }
    payload
}

fn publish(writer: &mut Writer, version: u64, payload: &[u8]) {
    let stamp = Stamp { version, epoch: 1 };
    eventually(SOON, "published", || match writer.publish(stamp, payload) {
        Ok(()) => Some(()),
        Err(Error::TooSoon { .. }) => None,
        Err(error) => panic!("version {version}: {error}"),
    });
}

#[test]
fn a_policy_for_another_frontend_is_turned_down() {
    let engine = Engine::named("only");
    let draft = Draft::single(engine.address());
    let mut proxy = Proxy::start(Driver::Epoll, &draft);
    let foreign = draft.with(|policy| policy.frontend = "B".to_owned());
    proxy.publisher.as_mut().unwrap().publish(&foreign);
    proxy.await_metric(REJECTED, &[], 1.0);
    assert_eq!(proxy.metrics().sum(VERSION, &[]), 1.0);
    serves(&proxy);
    let log = proxy.daemon.log();
    assert!(
        log.contains("made for frontend `B`, this host is of `A`"),
        "{log}"
    );
}

fn the_copy_on_disk_serves_until_the_region_does(driver: Driver) {
    let engine = Engine::named("only");
    let draft = Draft::single(engine.address());
    let folder = Folder::new();
    let policy = Policy {
        version: 5,
        ..draft.policy().clone()
    };
    let stamp = Stamp {
        version: 5,
        epoch: policy.epoch,
    };
    let state = folder.state_dir().join(FRONTEND);
    fs::create_dir_all(&state).unwrap();
    pointsman_shm::disk::save(&state, &stamp, &policy.encode()).unwrap();
    let proxy = Proxy::without_policy(folder, driver, "");
    rung(&proxy, "disk");
    assert_eq!(get(proxy.admin, "/readyz").status(), 200);
    serves(&proxy);
    let mut publisher = Publisher::open(&proxy.folder().region_dir(FRONTEND));
    publisher.publish(&draft);
    rung(&proxy, "fresh");
    serves(&proxy);
}

#[test]
fn a_policy_that_nobody_confirms_grows_stale_and_still_serves() {
    let engine = Engine::named("only");
    let draft = Draft::single(engine.address());
    let proxy = Proxy::configured(Driver::Epoll, &draft, "stale_after_s = 1\n");
    rung(&proxy, "stale");
    assert_eq!(get(proxy.admin, "/readyz").status(), 200);
    serves(&proxy);
    proxy.publisher.as_ref().unwrap().confirm();
    rung(&proxy, "fresh");
}

#[test]
fn an_engine_whose_credential_is_missing_here_gets_nothing() {
    let engine = Engine::named("only");
    let draft = Draft::single(engine.address())
        .with(|policy| policy.engines[0].credential = "gpu-cloud".to_owned());
    let proxy = Proxy::start(Driver::Epoll, &draft);
    proxy.await_metric("pointsman_proxy_unknown_credentials", &[], 1.0);
    assert_eq!(proxy.ask(chat(false)).status(), 503);
    assert_eq!(engine.connections(), 0);
    let out = [("reason", "unknown_credential")];
    assert_eq!(proxy.metrics().sum("pointsman_proxy_engine_out", &out), 1.0);
}

#[test]
fn a_credential_of_this_host_reaches_the_engine() {
    let engine = Engine::named("only");
    let draft = Draft::single(engine.address())
        .with(|policy| policy.engines[0].credential = "gpu-cloud".to_owned());
    let secrets = Folder::new();
    let token = secrets.write("token", "sk-secret\n");
    let more = format!(
        "[credentials.gpu-cloud]\nbearer_file = \"{}\"\n",
        token.display()
    );
    let proxy = Proxy::configured(Driver::Epoll, &draft, &more);
    serves(&proxy);
    let requests = engine.requests();
    assert_eq!(
        requests[0].header("authorization"),
        Some("Bearer sk-secret")
    );
    assert!(!proxy.daemon.log().contains("sk-secret"));
}
