//! A proxy under test: its configuration, its policy region, and questions to it.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::OnceLock;

use crate::client::{Client, ask, get};
use crate::folder::Folder;
use crate::locate::binary;
use crate::metrics::{Page, await_sum};
use crate::policy::{Draft, FRONTEND, Publisher};
use crate::process::Daemon;
use crate::wait::{SOON, eventually, eventually_equals};
use crate::wire::Message;

/// How the proxy does its I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Completion queues.
    IoUring,
    /// Readiness.
    Epoll,
}

impl Driver {
    /// The name that `proxy.toml` and the ready line use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Driver::IoUring => "io_uring",
            Driver::Epoll => "epoll",
        }
    }
}

/// Whether this machine lets the proxy use io_uring: asked of a proxy itself, once.
#[must_use]
pub fn io_uring_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let folder = Folder::new();
        let daemon = start(&folder, "auto", "");
        daemon.ready()["io_driver"] == Driver::IoUring.name()
    })
}

/// A running proxy with a policy region of its own.
pub struct Proxy {
    /// Its process.
    pub daemon: Daemon,
    /// Where it serves.
    pub address: SocketAddr,
    /// Where it serves with TLS, if anywhere.
    pub tls: Option<SocketAddr>,
    /// Where it answers operators.
    pub admin: SocketAddr,
    /// The writer of its policy region, for proxies that no solver feeds.
    pub publisher: Option<Publisher>,
    folder: Folder,
}

impl Proxy {
    /// Starts a proxy on `draft` and waits until it is ready to serve by it.
    #[must_use]
    pub fn start(driver: Driver, draft: &Draft) -> Self {
        Self::configured(driver, draft, "")
    }

    /// The same, started by another program that is given the proxy's command line and becomes the
    /// proxy: one that traces or measures it.
    #[must_use]
    pub fn under(program: &[&str], driver: Driver, draft: &Draft) -> Self {
        let folder = Folder::new();
        let mut publisher = Publisher::open(&folder.region_dir(FRONTEND));
        publisher.publish(draft);
        let daemon = start_under(program, &folder, driver.name(), "");
        let mut proxy = Self::of(daemon, folder, driver);
        proxy.publisher = Some(publisher);
        proxy.await_ready();
        proxy
    }

    /// The same with more configuration: TOML that follows the top-level keys.
    #[must_use]
    pub fn configured(driver: Driver, draft: &Draft, more: &str) -> Self {
        let folder = Folder::new();
        let mut publisher = Publisher::open(&folder.region_dir(FRONTEND));
        publisher.publish(draft);
        let mut proxy = Self::without_policy(folder, driver, more);
        proxy.publisher = Some(publisher);
        proxy.await_ready();
        proxy
    }

    /// Starts a proxy on whatever stands in the folder, which may be nothing.
    #[must_use]
    pub fn without_policy(folder: Folder, driver: Driver, more: &str) -> Self {
        let daemon = start(&folder, driver.name(), more);
        Self::of(daemon, folder, driver)
    }

    fn of(daemon: Daemon, folder: Folder, driver: Driver) -> Self {
        let ready = daemon.ready();
        assert_eq!(ready["io_driver"], driver.name(), "{ready}");
        let parse = |value: &serde_json::Value| {
            let text = value
                .as_str()
                .unwrap_or_else(|| panic!("no address in {ready}"));
            text.parse()
                .unwrap_or_else(|_| panic!("no address in {ready}"))
        };
        let (address, admin) = (parse(&ready["listen"][0]), parse(&ready["admin"]));
        let tls = ready["listen_tls"].get(0).map(parse);
        Self {
            daemon,
            address,
            tls,
            admin,
            publisher: None,
            folder,
        }
    }

    /// Where it serves with TLS.
    ///
    /// # Panics
    /// When it was not configured to.
    #[must_use]
    pub fn secure(&self) -> SocketAddr {
        self.tls.expect("this proxy serves with TLS")
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Publishes a policy and waits until the proxy runs by it.
    ///
    /// # Panics
    /// When a solver feeds this proxy.
    pub fn adopt(&mut self, draft: &Draft) {
        let publisher = self
            .publisher
            .as_mut()
            .expect("this proxy's policies are handmade");
        let version = publisher.publish(draft);
        self.await_metric("pointsman_proxy_policy_version", &[], version as f64);
    }

    /// Waits until `/readyz` says 200.
    pub fn await_ready(&self) {
        eventually_equals(SOON, "/readyz", &200, || {
            get(self.admin, "/readyz").status()
        });
    }

    /// Asks once over a connection of its own.
    #[must_use]
    pub fn ask(&self, request: impl AsRef<[u8]>) -> Message {
        ask(self.address, request)
    }

    /// Connects a client.
    #[must_use]
    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Its metrics now.
    #[must_use]
    pub fn metrics(&self) -> Page {
        Page::fetch(self.admin)
    }

    /// Waits until a metric's sum is `expected`.
    pub fn await_metric(&self, name: &str, labels: &[(&str, &str)], expected: f64) {
        await_sum(self.admin, name, labels, expected);
    }

    /// Waits until every gauge of work in progress is 0.
    pub fn await_rest(&self) {
        self.await_metric("pointsman_proxy_in_flight", &[], 0.0);
        self.await_metric("pointsman_proxy_engine_in_flight", &[], 0.0);
        self.await_metric("pointsman_proxy_client_connections", &[], 0.0);
        self.await_metric("pointsman_proxy_panics_total", &[], 0.0);
    }

    /// Waits until so many requests are in flight.
    pub fn await_in_flight(&self, count: usize) {
        self.await_metric("pointsman_proxy_in_flight", &[], count as f64);
    }

    /// Waits until it holds no more sockets than `base`.
    pub fn await_sockets(&self, base: usize) {
        let what = format!("the proxy's sockets are down to {base}");
        eventually(SOON, &what, || {
            (self.daemon.sockets() <= base).then_some(())
        });
    }
}

fn start(folder: &Folder, driver: &str, more: &str) -> Daemon {
    start_under(&[], folder, driver, more)
}

fn start_under(program: &[&str], folder: &Folder, driver: &str, more: &str) -> Daemon {
    let path = folder.write("proxy.toml", &configuration(folder, driver, more));
    let mut command = match program {
        [] => Command::new(binary("pointsman-proxy")),
        [name, arguments @ ..] => {
            let mut command = Command::new(name);
            command.args(arguments).arg(binary("pointsman-proxy"));
            command
        }
    };
    command.arg("run").arg("--config").arg(path);
    Daemon::start("pointsman-proxy", command, folder.path().join("proxy.log"))
}

/// `more` comes after the top-level keys, and may replace one of them by naming it first.
fn configuration(folder: &Folder, driver: &str, more: &str) -> String {
    let base = format!(
        "frontend = \"{FRONTEND}\"\n\
         listen = [\"127.0.0.1:0\"]\n\
         admin = \"127.0.0.1:0\"\n\
         io_driver = \"{driver}\"\n\
         shards = 1\n\
         pin = false\n\
         run_dir = \"{}\"\n\
         state_dir = \"{}\"\n",
        folder.run_dir().display(),
        folder.state_dir().display(),
    );
    let replaced = |line: &&str| {
        let key = line.split(' ').next().unwrap_or_default();
        !more
            .lines()
            .any(|other| other.split(' ').next() == Some(key))
    };
    let kept: Vec<&str> = base.lines().filter(replaced).collect();
    // On a busy machine one of two engines is slow by chance, a scripted engine takes a health check for
    // a request, and nobody tells a proxy of a handmade policy how engines are. A test that is about
    // either names its table.
    let unnamed = ["penalties", "probes"].iter().filter(|table| {
        let head = format!("[{table}]");
        !more.contains(&head)
    });
    let off: String = unnamed
        .map(|table| format!("[{table}]\nenabled = false\n"))
        .collect();
    format!("{}\n{more}\n{off}", kept.join("\n"))
}
