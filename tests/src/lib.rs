//! The harness of Pointsman's end-to-end tests: real processes, scripted peers, and waiting that
//! ends.
//!
//! Not a mock of any room: the proxy and the solver run as the binaries that operators run, and
//! meet engines and clients whose every byte a test decides. Nothing here sleeps and hopes; a test
//! waits for a condition under a watchdog ([`wait`]), takes its ports from the kernel and its
//! folders from tmpfs ([`folder`]), and leaves no process behind ([`process`]).

pub mod client;
pub mod client2;
pub mod engine;
pub mod engine2;
pub mod folder;
pub mod frames;
pub mod locate;
pub mod metrics;
pub mod policy;
pub mod process;
pub mod proxy;
mod queues;
pub mod solver;
pub mod sys;
pub mod tls;
pub mod wait;
pub mod wire;

/// Makes one test out of `scenario` for each I/O driver, as `scenario::io_uring` and
/// `scenario::epoll`. A machine that refuses io_uring runs the second one only, and says so.
#[macro_export]
macro_rules! both_drivers {
    ($($(#[$about:meta])* $scenario:ident),+ $(,)?) => {$(
        $(#[$about])*
        mod $scenario {
            #[test]
            fn io_uring() {
                if $crate::proxy::io_uring_available() {
                    super::$scenario($crate::proxy::Driver::IoUring);
                } else {
                    eprintln!("io_uring is refused on this machine: not run");
                }
            }

            #[test]
            fn epoll() {
                super::$scenario($crate::proxy::Driver::Epoll);
            }
        }
    )+};
}
