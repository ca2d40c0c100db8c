//! Writers and readers of `policy` and `engines` on real files.

#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use pointsman_shm::region::{Kind, MAX_PAYLOAD_BYTES, PAUSE_NS, Read, Reader, Stamp, Writer};
use pointsman_shm::{Error, boottime_ns};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn writer(dir: &Path) -> Writer {
    Writer::open_without_pause_for_tests(dir, Kind::Policy).unwrap()
}

fn stamp(version: u64) -> Stamp {
    Stamp { version, epoch: 1 }
}

/// The payload that stands, if any.
fn read(reader: &mut Reader) -> Result<Option<(u64, Vec<u8>)>, Error> {
    let mut bytes = Vec::new();
    Ok(match reader.read(&mut bytes)? {
        Read::Fresh(stamp) => Some((stamp.version, bytes)),
        Read::Empty => None,
        Read::Busy => panic!("nobody writes"),
    })
}

#[test]
fn what_is_published_is_read_and_the_sequence_tells_of_it() {
    let dir = folder();
    assert!(matches!(
        Reader::open(dir.path(), Kind::Policy),
        Err(Error::Absent { .. })
    ));
    let mut writer = writer(dir.path());
    let mut reader = Reader::open(dir.path(), Kind::Policy).unwrap();
    assert_eq!(writer.last(), None);
    assert_eq!(reader.sequence(), 0);
    assert_eq!(read(&mut reader).unwrap(), None);
    for version in 1..=5u64 {
        writer
            .publish(stamp(version), &vec![version as u8; version as usize * 3])
            .unwrap();
        assert_eq!(reader.sequence(), version);
        let expected = (version, vec![version as u8; version as usize * 3]);
        assert_eq!(read(&mut reader).unwrap(), Some(expected.clone()));
        assert_eq!(
            read(&mut reader).unwrap(),
            Some(expected),
            "reading twice is fine"
        );
    }
    writer.publish(stamp(6), b"").unwrap();
    assert_eq!(read(&mut reader).unwrap(), Some((6, Vec::new())));
    assert_eq!(reader.busy_count(), 0);
}

#[test]
fn a_second_writer_is_refused_by_name_until_the_first_is_gone() {
    let dir = folder();
    let first = writer(dir.path());
    match Writer::open(dir.path(), Kind::Policy) {
        Err(Error::Locked { path, pid }) => {
            assert_eq!(path, dir.path().join("policy"));
            assert_eq!(pid, std::process::id());
        }
        other => panic!("{other:?}"),
    }
    Writer::open(dir.path(), Kind::Engines).expect("the other file has a lock of its own");
    drop(first);
    Writer::open(dir.path(), Kind::Policy).unwrap();
}

#[test]
fn versions_rise_epochs_do_not_fall_and_publications_keep_their_distance() {
    let dir = folder();
    let mut writer = Writer::open(dir.path(), Kind::Policy).unwrap();
    assert!(matches!(
        writer.publish(stamp(0), b"x"),
        Err(Error::NotRising { .. })
    ));
    writer
        .publish(
            Stamp {
                version: 5,
                epoch: 2,
            },
            b"five",
        )
        .unwrap();
    let too_soon = writer.publish(
        Stamp {
            version: 6,
            epoch: 2,
        },
        b"six",
    );
    match too_soon {
        Err(Error::TooSoon { wait_ns, .. }) => assert!(wait_ns > 0 && wait_ns <= PAUSE_NS),
        other => panic!("{other:?}"),
    }
    drop(writer);
    let mut writer = Writer::open_without_pause_for_tests(dir.path(), Kind::Policy).unwrap();
    for (version, epoch) in [(5, 2), (4, 2), (6, 1)] {
        let error = writer.publish(Stamp { version, epoch }, b"x").unwrap_err();
        assert!(matches!(
            error,
            Error::NotRising {
                have_version: 5,
                have_epoch: 2,
                ..
            }
        ));
    }
    let huge = vec![0; MAX_PAYLOAD_BYTES + 1];
    assert!(matches!(
        writer.publish(stamp(9), &huge),
        Err(Error::TooLarge { .. })
    ));
    let mut reader = Reader::open(dir.path(), Kind::Policy).unwrap();
    assert_eq!(read(&mut reader).unwrap(), Some((5, b"five".to_vec())));
}

#[test]
fn a_larger_payload_gets_a_larger_file_and_open_readers_follow() {
    let dir = folder();
    let mut writer = writer(dir.path());
    writer.publish(stamp(1), b"small").unwrap();
    writer.heartbeat(77);
    let mut reader = Reader::open(dir.path(), Kind::Policy).unwrap();
    read(&mut reader).unwrap();
    let (small, before) = (
        fs::metadata(dir.path().join("policy")).unwrap(),
        reader.sequence(),
    );
    writer.publish(stamp(2), &vec![2; 100_000]).unwrap();
    let large = fs::metadata(dir.path().join("policy")).unwrap();
    assert_ne!(small.ino(), large.ino());
    assert_eq!(small.len(), 4096 + 2 * 4096);
    assert_eq!(
        large.len(),
        4096 + 2 * 126_976,
        "a quarter to spare, in whole pages, twice"
    );
    assert!(
        large.blocks() * 512 >= large.len(),
        "every block is allocated"
    );
    assert_ne!(
        reader.sequence(),
        before,
        "the old map tells of the replacement"
    );
    assert_eq!(read(&mut reader).unwrap(), Some((2, vec![2; 100_000])));
    assert_eq!(
        reader.heartbeat_age_ns(100),
        Some(23),
        "the heartbeat moves along"
    );
    writer.publish(stamp(3), &vec![3; 110_000]).unwrap();
    assert_eq!(
        fs::metadata(dir.path().join("policy")).unwrap().ino(),
        large.ino()
    );
    assert_eq!(read(&mut reader).unwrap(), Some((3, vec![3; 110_000])));
    let names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "policy and its lock: {names:?}");
}

#[test]
fn i10_a_restarted_writer_adopts_what_stands_and_goes_on() {
    let dir = folder();
    let mut first = writer(dir.path());
    first.publish(stamp(7), b"seven").unwrap();
    drop(first);
    let mut reader = Reader::open(dir.path(), Kind::Policy).unwrap();
    let mut second = writer(dir.path());
    assert_eq!(second.last(), Some(stamp(7)));
    assert!(second.repaired().is_none());
    assert_eq!(read(&mut reader).unwrap(), Some((7, b"seven".to_vec())));
    second.publish(stamp(8), b"eight").unwrap();
    assert_eq!(read(&mut reader).unwrap(), Some((8, b"eight".to_vec())));
}

#[test]
fn a_heartbeat_has_an_age_unless_it_is_of_another_boot_or_none() {
    let dir = folder();
    let mut writer = writer(dir.path());
    writer.publish(stamp(1), b"one").unwrap();
    let reader = Reader::open(dir.path(), Kind::Policy).unwrap();
    assert_eq!(reader.heartbeat_age_ns(boottime_ns()), None, "never");
    writer.heartbeat(1_000);
    assert_eq!(reader.heartbeat_age_ns(1_500), Some(500));
    assert_eq!(
        reader.heartbeat_age_ns(900),
        Some(0),
        "clocks of two cores may differ a little"
    );
    writer.heartbeat(10_000_000_000);
    assert_eq!(reader.heartbeat_age_ns(1_500), None, "not of this clock");
    writer.heartbeat(1_000);
    // A file that survived a reboot, as on a folder that is not in memory.
    let path = dir.path().join("policy");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xaa; 16], 5 * 8).unwrap();
    let mut reader = Reader::open(dir.path(), Kind::Policy).unwrap();
    assert_eq!(reader.heartbeat_age_ns(1_500), None, "infinitely old");
    assert_eq!(read(&mut reader).unwrap(), Some((1, b"one".to_vec())));
    drop(writer);
    let writer = self::writer(dir.path());
    assert!(
        writer
            .repaired()
            .unwrap()
            .to_string()
            .contains("another boot")
    );
    assert_eq!(writer.last(), Some(stamp(1)), "the policy itself is kept");
    assert_eq!(read(&mut reader).unwrap(), Some((1, b"one".to_vec())));
}

#[test]
fn i10_no_damaged_byte_of_the_header_leads_to_a_wrong_policy() {
    let dir = folder();
    let mut first = writer(dir.path());
    first.publish(stamp(1), b"older").unwrap();
    first.publish(stamp(2), b"standing").unwrap();
    drop(first);
    let path = dir.path().join("policy");
    let whole = fs::read(&path).unwrap();
    let mut refused = 0;
    // The words in use reach to the heartbeat; the rest of the page is spare.
    for at in 0..36 * 8 {
        for flip in [1u8, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] ^= flip;
            // In place, as an intruder would: the reader below opens it anew.
            fs::write(&path, &damaged).unwrap();
            let seen = Reader::open(dir.path(), Kind::Policy).and_then(|mut r| read(&mut r));
            match seen {
                Ok(Some(found)) => assert_eq!(found, (2, b"standing".to_vec()), "byte {at}"),
                Ok(None) => assert!(at / 8 == 16, "byte {at} empties the file"),
                Err(_) => refused += 1,
            }
            // A writer repairs it, and keeps the versions rising where it can.
            let mut writer = writer(dir.path());
            let next = writer.last().map_or(1, |stamp| stamp.version + 1);
            writer.publish(stamp(next), b"repaired").unwrap();
            let mut reader = Reader::open(dir.path(), Kind::Policy).unwrap();
            assert_eq!(
                read(&mut reader).unwrap(),
                Some((next, b"repaired".to_vec()))
            );
        }
    }
    assert!(refused >= 6 * 8 * 3, "only {refused} refusals");
}

#[test]
fn i10_headers_of_other_kinds_layouts_and_byte_orders_are_named() {
    let dir = folder();
    let mut first = writer(dir.path());
    first.publish(stamp(1), b"one").unwrap();
    drop(first);
    let path = dir.path().join("policy");
    let whole = fs::read(&path).unwrap();
    let refusal = |word: usize, value: u64| {
        let mut changed = whole.clone();
        changed[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
        fs::write(&path, &changed).unwrap();
        Reader::open(dir.path(), Kind::Policy)
            .unwrap_err()
            .to_string()
    };
    let magic = u64::from_le_bytes(whole[..8].try_into().unwrap());
    assert!(
        refusal(0, magic.swap_bytes()).contains("its magic is"),
        "byte order"
    );
    assert!(refusal(1, 2).contains("its layout version is 0x2, expected 0x1"));
    assert!(
        refusal(1, 0).contains("its layout version is 0x0"),
        "never completed"
    );
    assert!(refusal(2, 2).contains("its kind is 0x2, expected 0x1"));
    assert!(refusal(3, 8192).contains("its header length is"));
    assert!(refusal(4, u64::MAX).contains("impossible file length"));
    assert!(refusal(4, 1 << 20).contains("its header needs 1048576"));
    assert!(refusal(4, 4096).contains("its buffer length is"));
    assert!(refusal(8, 0).contains("its buffer length is 0x0"));
}

#[test]
fn i10_a_version_that_falls_is_refused_by_a_reader_that_knows_better() {
    let dir = folder();
    let mut first = writer(dir.path());
    first.publish(stamp(9), b"nine").unwrap();
    let mut reader = Reader::open(dir.path(), Kind::Policy).unwrap();
    read(&mut reader).unwrap();
    drop(first);
    fs::remove_file(dir.path().join("policy")).unwrap();
    let mut second = writer(dir.path());
    second.publish(stamp(3), b"three").unwrap();
    assert!(reader.is_replaced());
    assert!(matches!(
        read(&mut reader),
        Err(Error::NotRising {
            have_version: 9,
            found_version: 3,
            ..
        })
    ));
    second.publish(stamp(10), b"ten").unwrap();
    assert_eq!(read(&mut reader).unwrap(), Some((10, b"ten".to_vec())));
}
