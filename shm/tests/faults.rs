//! What foreign hands do to region files: cut, copy over, remove, own, open up. Readers keep their
//! last policy, nobody dies, and the next publication mends it.

#![cfg(not(loom))]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that fails says where"
)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pointsman_shm::Error;
use pointsman_shm::region::{Kind, Read, Reader, Stamp, Writer};
use tempfile::TempDir;

const WATCHDOG: Duration = Duration::from_secs(60);
const READERS: usize = 8;
/// Long enough for several pages of buffer.
const PAYLOAD: usize = 40_000;

fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn writer(dir: &Path) -> Writer {
    Writer::open_without_pause_for_tests(dir, Kind::Policy).unwrap()
}

fn publish(writer: &mut Writer, version: u64) {
    let payload = vec![version as u8; PAYLOAD];
    writer
        .publish(Stamp { version, epoch: 1 }, &payload)
        .unwrap();
}

/// Eight threads that read on and on and keep their last policy.
struct Readers {
    stop: Arc<AtomicBool>,
    versions: Vec<Arc<AtomicU64>>,
    errors: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Readers {
    fn start(dir: &Path) -> Readers {
        let stop = Arc::new(AtomicBool::new(false));
        let errors = Arc::new(AtomicU64::new(0));
        let versions: Vec<_> = (0..READERS).map(|_| Arc::new(AtomicU64::new(0))).collect();
        let start = |version: &Arc<AtomicU64>| {
            let mut reader = Reader::open(dir, Kind::Policy).unwrap();
            let (stop, errors) = (Arc::clone(&stop), Arc::clone(&errors));
            let version = Arc::clone(version);
            thread::spawn(move || {
                let mut bytes = Vec::new();
                while !stop.load(Ordering::Acquire) {
                    match reader.read(&mut bytes) {
                        Ok(Read::Fresh(stamp)) => {
                            assert_eq!(bytes, vec![stamp.version as u8; PAYLOAD]);
                            let before = version.swap(stamp.version, Ordering::AcqRel);
                            assert!(stamp.version >= before);
                        }
                        Ok(Read::Busy | Read::Empty) => {}
                        Err(_) => {
                            errors.fetch_add(1, Ordering::AcqRel);
                        }
                    }
                }
            })
        };
        let threads = versions.iter().map(start).collect();
        Readers {
            stop,
            versions,
            errors,
            threads,
        }
    }

    fn wait_for(&self, expected: u64) {
        wait_until("every reader has the version", || {
            self.versions
                .iter()
                .all(|version| version.load(Ordering::Acquire) == expected)
        });
    }

    /// Waits until refusals were met, by all of them in all likelihood.
    fn wait_for_errors(&self) {
        let before = self.errors.load(Ordering::Acquire);
        wait_until("readers meet the damage", || {
            self.errors.load(Ordering::Acquire) > before + 1000
        });
    }

    /// Ends the threads; a reader that saw anything but a whole, rising version panicked.
    fn finish(self) {
        self.stop.store(true, Ordering::Release);
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < WATCHDOG, "waited too long until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Damages the file under eight readers: they keep version 1 and then get version 2.
fn survives(damage: impl FnOnce(&Path)) {
    let dir = folder();
    let mut writer = writer(dir.path());
    publish(&mut writer, 1);
    let readers = Readers::start(dir.path());
    readers.wait_for(1);
    damage(&dir.path().join("policy"));
    readers.wait_for_errors();
    readers.wait_for(1);
    publish(&mut writer, 2);
    readers.wait_for(2);
    publish(&mut writer, 3);
    readers.wait_for(3);
    readers.finish();
}

#[test]
fn i08_truncated_policy_keeps_the_last_one() {
    survives(|path| {
        OpenOptions::new()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(0)
            .unwrap()
    });
}

#[test]
fn i08_policy_cut_inside_its_buffers_keeps_the_last_one() {
    survives(|path| {
        OpenOptions::new()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(5000)
            .unwrap()
    });
}

#[test]
fn i08_foreign_bytes_copied_over_the_policy_keep_the_last_one() {
    // What `cp` does: the same file is cut to nothing and written anew.
    survives(|path| fs::write(path, vec![0x55; 200_000]).unwrap());
}

#[test]
fn i08_policy_overwritten_by_a_shorter_copy_of_itself_keeps_the_last_one() {
    survives(|path| {
        let whole = fs::read(path).unwrap();
        fs::write(path, &whole[..whole.len() / 2]).unwrap();
    });
}

#[test]
fn i08_removed_policy_keeps_the_last_one() {
    survives(|path| fs::remove_file(path).unwrap());
}

#[test]
fn i08_a_policy_copied_over_by_another_whole_one_is_taken_or_refused_but_never_mixed() {
    let dir = folder();
    let other = folder();
    let mut foreign = writer(other.path());
    publish(&mut foreign, 5);
    let mut writer = writer(dir.path());
    publish(&mut writer, 1);
    let readers = Readers::start(dir.path());
    readers.wait_for(1);
    fs::copy(other.path().join("policy"), dir.path().join("policy")).unwrap();
    readers.wait_for(5);
    publish(&mut writer, 6);
    readers.wait_for(6);
    readers.finish();
}

#[test]
fn i08_a_full_file_system_refuses_the_larger_file_by_name_and_keeps_the_last_policy() {
    let Some(mount) = SmallTmpfs::mount() else {
        return;
    };
    let mut writer = writer(&mount.0);
    writer
        .publish(
            Stamp {
                version: 1,
                epoch: 1,
            },
            &[1; 1000],
        )
        .unwrap();
    let mut reader = Reader::open(&mount.0, Kind::Policy).unwrap();
    match writer.publish(
        Stamp {
            version: 2,
            epoch: 1,
        },
        &vec![2; 2 << 20],
    ) {
        Err(Error::NoSpace { needed_bytes, .. }) => assert!(needed_bytes > 2 << 20),
        other => panic!("{other:?}"),
    }
    let mut bytes = Vec::new();
    let fresh = |version| Read::Fresh(Stamp { version, epoch: 1 });
    assert_eq!(reader.read(&mut bytes).unwrap(), fresh(1));
    assert_eq!(bytes, [1; 1000]);
    let left: Vec<_> = fs::read_dir(&mount.0)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(
        left.len(),
        2,
        "policy and its lock, no half-made file: {left:?}"
    );
    // The disk is full to the last block, and a policy that fits its file is published all the same.
    let filler = mount.0.join("filler");
    while OpenOptions::new()
        .create(true)
        .append(true)
        .open(&filler)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[0; 4096]))
        .is_ok()
    {}
    for version in 2..20 {
        writer
            .publish(Stamp { version, epoch: 1 }, &[version as u8; 3000])
            .unwrap();
        assert_eq!(reader.read(&mut bytes).unwrap(), fresh(version));
        assert_eq!(bytes, [version as u8; 3000]);
    }
}

/// A file system of one MiB, unmounted with the test.
struct SmallTmpfs(
    PathBuf,
    #[expect(dead_code, reason = "removed after the unmount")] TempDir,
);

impl SmallTmpfs {
    fn mount() -> Option<SmallTmpfs> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_path_buf();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m,mode=0755", "tmpfs"])
            .arg(&path)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(SmallTmpfs(path, dir)),
            Ok(output) => {
                println!(
                    "skipped: mount says {}",
                    String::from_utf8_lossy(&output.stderr)
                );
                None
            }
            Err(e) => {
                println!("skipped: no mount command: {e}");
                None
            }
        }
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

// === signals that are not ours ===

const BYSTANDER: &str = "POINTSMAN_BYSTANDER_DIR";

#[test]
fn i08_a_bus_error_that_is_not_ours_still_ends_the_process() {
    let dir = folder();
    drop(writer(dir.path()));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "bystander_with_a_map", "--test-threads=1", "-q"])
        .env(BYSTANDER, dir.path())
        // A sanitizer's own handler would turn the signal into a report and an exit code.
        .env("ASAN_OPTIONS", "handle_sigbus=0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let ready = dir.path().join("ready");
    wait_until("the child has mapped the file", || ready.exists());
    let begin = Instant::now();
    // The first goes to the handler that the language's runtime had installed before ours: it only
    // restores the default action, counting on a fault to come again. A later one meets that.
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > WATCHDOG {
            child.kill().unwrap();
            panic!("the child outlived a foreign bus error");
        }
        Command::new("kill")
            .args(["-BUS", &child.id().to_string()])
            .status()
            .unwrap();
        thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.signal(), Some(libc::SIGBUS));
}

/// The child's side: maps a region file, and with it installs the guard, then waits for its end.
#[test]
fn bystander_with_a_map() {
    let Some(dir) = std::env::var_os(BYSTANDER).map(PathBuf::from) else {
        return;
    };
    let reader = Reader::open(&dir, Kind::Policy).unwrap();
    fs::write(dir.join("ready"), b"").unwrap();
    let (begin, parent) = (Instant::now(), std::os::unix::process::parent_id());
    while begin.elapsed() < WATCHDOG && std::os::unix::process::parent_id() == parent {
        assert_eq!(reader.sequence(), 0);
        thread::sleep(Duration::from_millis(10));
    }
}

// === who may write ===

fn refusal(dir: &Path) -> String {
    match Reader::open(dir, Kind::Policy) {
        Err(error @ (Error::Untrusted { .. } | Error::Io { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn i12_files_and_folders_that_others_may_write_are_refused() {
    let dir = folder();
    let mut first = writer(dir.path());
    publish(&mut first, 1);
    drop(first);
    let path = dir.path().join("policy");
    for (mode, text) in [(0o646, "0646"), (0o664, "0664")] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let expected = format!("mode {text} lets others than its owner write");
        assert!(refusal(dir.path()).contains(&expected));
        let error = Writer::open(dir.path(), Kind::Policy).unwrap_err();
        assert!(error.to_string().contains(&expected), "{error}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    Reader::open(dir.path(), Kind::Policy).expect("a private file is fine");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o757)).unwrap();
    assert!(refusal(dir.path()).contains("mode 0757 lets everybody write"));
    assert!(Writer::open(dir.path(), Kind::Policy).is_err());
}

#[test]
fn i12_a_file_of_another_user_is_refused_unless_that_is_root() {
    let dir = folder();
    let mut first = writer(dir.path());
    publish(&mut first, 1);
    drop(first);
    let path = dir.path().join("policy");
    if let Err(e) = chown(&path, Some(12_345), None) {
        println!("skipped: cannot give a file away: {e}");
        return;
    }
    assert!(refusal(dir.path()).contains("user 12345 owns it"));
    assert!(matches!(
        Writer::open(dir.path(), Kind::Policy),
        Err(Error::Untrusted { .. })
    ));
    chown(&path, Some(0), None).unwrap();
    Reader::open(dir.path(), Kind::Policy).unwrap();
    chown(dir.path(), Some(12_345), None).unwrap();
    assert!(refusal(dir.path()).contains("user 12345 owns it"));
}

#[test]
fn i12_links_pipes_and_folders_in_a_files_place_are_refused() {
    let (dir, elsewhere) = (folder(), folder());
    let mut first = writer(elsewhere.path());
    publish(&mut first, 1);
    let path = dir.path().join("policy");
    symlink(elsewhere.path().join("policy"), &path).unwrap();
    assert!(refusal(dir.path()).contains("cannot open"));
    fs::remove_file(&path).unwrap();
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    assert!(refusal(dir.path()).contains("it is not a regular file"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(refusal(dir.path()).contains("it is not a regular file"));
}

#[test]
fn i12_a_policy_removed_by_a_cleaner_is_made_anew_by_the_next_publication() {
    let dir = folder();
    let mut writer = writer(dir.path());
    publish(&mut writer, 1);
    let mut reader = Reader::open(dir.path(), Kind::Policy).unwrap();
    let mut bytes = Vec::new();
    reader.read(&mut bytes).unwrap();
    fs::remove_file(dir.path().join("policy")).unwrap();
    assert!(reader.is_replaced());
    assert!(matches!(reader.read(&mut bytes), Err(Error::Absent { .. })));
    publish(&mut writer, 2);
    assert!(matches!(
        reader.read(&mut bytes),
        Ok(Read::Fresh(Stamp { version: 2, .. }))
    ));
    assert!(!reader.is_replaced());
}
