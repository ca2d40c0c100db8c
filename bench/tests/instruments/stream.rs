//! The benchmark of streams as a process: interrupted, it leaves nobody behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{bench, wait_until};

/// What an installed router is found by.
const REQUIREMENTS: &str = include_str!("../../peers/requirements.txt");

/// In the place of a router: it starts a worker that minds no SIGTERM, writes down who is there
/// (the worker, and all children of the benchmark), and never serves.
const ROUTER: &str = "#!/bin/sh
trap '' TERM
sleep 600 &
here=$(dirname \"$0\")
echo $! $(cat /proc/$PPID/task/$PPID/children) >\"$here/pids.new\"
mv \"$here/pids.new\" \"$here/pids\"
wait
";

#[test]
fn a_run_that_a_signal_ends_leaves_no_process_behind() {
    // Where these tests were started by nohup, so is what they start, and it ignores HUP.
    let nohup = fs::read_to_string("/proc/self/status").unwrap();
    let nohup = nohup.lines().any(|line| {
        let mask = line.strip_prefix("SigIgn:");
        mask.is_some_and(|digits| {
            digits
                .trim()
                .ends_with(['1', '3', '5', '7', '9', 'b', 'd', 'f'])
        })
    });
    for signal in ["TERM", "INT", if nohup { "TERM" } else { "HUP" }] {
        let folder = tempfile::tempdir().unwrap();
        let bin = install(folder.path());
        let mut run = bench(&["stream", "--quick", "--ours", "none", "--no-install"])
            .args(["--peers", "sglang-router", "--shapes", "unary-small"])
            .arg("--install-dir")
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let listed = bin.join("pids");
        wait_until("the router has started", || {
            let ended = run.try_wait().unwrap();
            assert_eq!(ended, None, "it ended before its router started");
            listed.is_file()
        });
        let listed = fs::read_to_string(&listed).unwrap();
        let pids: Vec<u32> = listed
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect();
        // The worker, the engine, the router.
        assert_eq!(pids.len(), 3, "{listed}");
        assert!(!pids.iter().any(|&pid| is_gone(pid)), "{listed}");
        let kill = format!("kill -{signal} {}", run.id());
        let sent = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(sent.success());
        // It ended by itself, with its report, and not by the signal.
        assert_eq!(run.wait().unwrap().code(), Some(1), "{signal}");
        for pid in pids {
            wait_until(&format!("{pid} has ended after {signal}"), || is_gone(pid));
        }
    }
}

/// A folder of peers in which the routers' Python is the script; where that is.
fn install(folder: &Path) -> std::path::PathBuf {
    let venv = folder.join("venv");
    let bin = venv.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(venv.join("requirements.done"), REQUIREMENTS).unwrap();
    let python = bin.join("python");
    fs::write(&python, ROUTER).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    bin
}

/// Whether a process has ended, waited for or not.
fn is_gone(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_err() || stat.is_ok_and(|text| text.contains(") Z "))
}
