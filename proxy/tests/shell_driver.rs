//! io_uring where the kernel allows it and epoll where it does not, told by a real process under a
//! seccomp filter such as containers have.
//!
//! Entries I02, I03 and I06 of the list of known failures, each by name.

#![expect(clippy::unwrap_used, reason = "a test may end at any surprise")]
#![expect(
    unsafe_code,
    reason = "a seccomp filter is installed between fork and exec"
)]

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use pointsman_tests::client::{chat, get};
use pointsman_tests::engine::Engine;
use pointsman_tests::folder::Folder;
use pointsman_tests::metrics::Page;
use pointsman_tests::policy::{Draft, FRONTEND, Publisher};
use pointsman_tests::process::{Daemon, run};
use pointsman_tests::proxy::{Driver, Proxy, io_uring_available};
use pointsman_tests::wait::{SOON, eventually, eventually_equals};
use pointsman_tests::{both_drivers, client, sys};

/// A system call that the filter refuses.
#[derive(Clone, Copy)]
struct Refuse {
    call: libc::c_long,
    /// Refused only when the call's first argument is larger.
    above: u32,
    errno: i32,
}

/// The proxy's command with a filter that is in force before it starts.
fn filtered(folder: &Folder, io_driver: &str, refuse: Refuse) -> Command {
    let text = format!(
        "frontend = \"{FRONTEND}\"\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\n\
         io_driver = \"{io_driver}\"\nshards = 2\nrun_dir = \"{}\"\nstate_dir = \"{}\"\n",
        folder.run_dir().display(),
        folder.state_dir().display(),
    );
    let config = folder.write("proxy.toml", &text);
    let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman-proxy"));
    command.arg("run").arg("--config").arg(config);
    // SAFETY: between fork and exec the closure makes two system calls on values it owns.
    unsafe { command.pre_exec(move || install(refuse)) };
    command
}

/// Installs the filter on this process.
fn install(refuse: Refuse) -> std::io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let jump = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let errno = libc::SECCOMP_RET_ERRNO | refuse.errno as u32;
    let mut filter = [
        // The number of the call is the first word of what the filter sees.
        statement(load, 0),
        jump(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            refuse.call as u32,
            0,
            3,
        ),
        // The low half of the first argument is at byte 16.
        statement(load, 16),
        jump(
            libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K,
            refuse.above,
            0,
            1,
        ),
        statement(libc::BPF_RET | libc::BPF_K, errno),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program lives until the kernel has copied it, and its length is its array's.
    let results = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ),
        ]
    };
    if results == [0, 0] {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

const REFUSED_SETUP: Refuse = Refuse {
    call: libc::SYS_io_uring_setup,
    above: 0,
    errno: libc::EPERM,
};

/// What a filtered proxy said of itself.
struct Said {
    io_driver: String,
    /// Whether the metrics say io_uring, and whether they say epoll.
    drivers: [f64; 2],
    ring_entries: f64,
    log: String,
}

/// Starts a filtered proxy on one engine, sends a request through it, and gives what it said.
fn serves(refuse: Refuse) -> Said {
    let engine = Engine::named("only");
    let folder = Folder::new();
    let mut publisher = Publisher::open(&folder.region_dir(FRONTEND));
    publisher.publish(&Draft::single(engine.address()));
    let command = filtered(&folder, "auto", refuse);
    let daemon = Daemon::start("pointsman-proxy", command, folder.path().join("proxy.log"));
    let address = |value: &serde_json::Value| value.as_str().unwrap().parse().unwrap();
    let (listen, admin) = (
        address(&daemon.ready()["listen"][0]),
        address(&daemon.ready()["admin"]),
    );
    eventually_equals(SOON, "/readyz", &200, || get(admin, "/readyz").status());
    assert_eq!(client::ask(listen, chat(false)).status(), 200);
    assert_eq!(engine.requests().len(), 1);
    let page = Page::fetch(admin);
    let driver = |name| page.sum("pointsman_proxy_io_driver", &[("driver", name)]);
    Said {
        io_driver: daemon.ready()["io_driver"].as_str().unwrap().to_owned(),
        drivers: ["io_uring", "epoll"].map(driver),
        ring_entries: page.sum("pointsman_proxy_ring_entries", &[]),
        log: daemon.log(),
    }
}

#[test]
fn i02_refused_rings_fall_back_to_epoll_for_all_shards() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let Said {
            io_driver,
            drivers,
            log,
            ..
        } = serves(Refuse {
            errno,
            ..REFUSED_SETUP
        });
        assert_eq!((io_driver.as_str(), drivers), ("epoll", [0.0, 1.0]));
        assert_eq!(log.matches("io_uring is refused here").count(), 1, "{log}");
    }
}

#[test]
fn i02_a_ring_that_can_be_made_but_not_run_falls_back_too() {
    // The call's first argument is the ring's descriptor, which is above 0.
    let call = libc::SYS_io_uring_enter;
    let Said {
        io_driver, drivers, ..
    } = serves(Refuse {
        call,
        ..REFUSED_SETUP
    });
    assert_eq!((io_driver.as_str(), drivers), ("epoll", [0.0, 1.0]));
}

#[test]
fn i02_refused_rings_are_fatal_where_they_are_demanded() {
    let folder = Folder::new();
    let finished = run(filtered(&folder, "io_uring", REFUSED_SETUP), SOON);
    assert_eq!(finished.code, 1, "{finished:?}");
    for words in [
        "io_driver is `io_uring`",
        "kernel.io_uring_disabled",
        "`auto` or `epoll`",
    ] {
        assert!(
            finished.stderr.contains(words),
            "{words}: {}",
            finished.stderr
        );
    }
    assert_eq!(finished.stdout, "", "no ready line");
}

#[test]
fn i03_rings_shrink_where_memory_for_them_is_short() {
    if !io_uring_available() {
        eprintln!("nothing to shrink: this machine refuses io_uring");
        return;
    }
    let Said {
        io_driver,
        ring_entries,
        log,
        ..
    } = serves(Refuse {
        above: 300,
        errno: libc::ENOMEM,
        ..REFUSED_SETUP
    });
    assert_eq!((io_driver.as_str(), ring_entries), ("io_uring", 256.0));
    assert!(log.contains("RLIMIT_MEMLOCK"), "{log}");
}

#[test]
fn i03_no_memory_for_the_smallest_ring_means_epoll() {
    let Said {
        io_driver,
        ring_entries,
        log,
        ..
    } = serves(Refuse {
        above: 200,
        errno: libc::ENOMEM,
        ..REFUSED_SETUP
    });
    assert_eq!((io_driver.as_str(), ring_entries), ("epoll", 0.0));
    assert!(log.contains("ring of 256 entries"), "{log}");
    assert!(log.contains("RLIMIT_MEMLOCK"), "{log}");
}

both_drivers!(i06_signals_and_stops_fail_no_request,);

fn i06_signals_and_stops_fail_no_request(driver: Driver) {
    let engine = Engine::named("only");
    let proxy = Proxy::start(driver, &Draft::single(engine.address()));
    let pid = proxy.daemon.pid();
    let name = |thread: &u32| std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm"));
    let shards: Vec<u32> = proxy
        .daemon
        .threads()
        .into_iter()
        .filter(|thread| name(thread).is_ok_and(|name| name.starts_with("shard-")))
        .collect();
    assert_eq!(shards.len(), 1);
    let mut client = proxy.connect();
    for round in 0..50 {
        client.send(chat(false));
        // Directed at the shard's thread, where a signal that is not blocked would end the process.
        for signal in [libc::SIGALRM, libc::SIGUSR1] {
            assert!(sys::kill_thread(pid, shards[0], signal));
        }
        // A stop and continue interrupts the wait whatever is blocked.
        proxy.daemon.signal(libc::SIGSTOP);
        proxy.daemon.signal(libc::SIGCONT);
        assert_eq!(client.response().status(), 200, "round {round}");
    }
    eventually(SOON, "all requests reached the engine", || {
        (engine.requests().len() == 50).then_some(())
    });
}
