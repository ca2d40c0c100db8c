//! The choice of an I/O driver on a command line: for the relay, and for the proxies that an
//! instrument starts.
//!
//! The product's own choice stands in its configuration and knows nothing of command lines; this
//! is that list with names that clap can read.

use clap::ValueEnum;
use pointsman_proxy::config;

/// How the kernel is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IoDriver {
    /// io_uring where it works, else epoll.
    Auto,
    /// io_uring.
    #[value(name = "io_uring", alias = "io-uring")]
    IoUring,
    /// epoll.
    Epoll,
}

impl IoDriver {
    /// As the product's configuration and the relay's flag want it.
    pub(crate) fn name(self) -> &'static str {
        config::IoDriver::from(self).name()
    }
}

impl From<IoDriver> for config::IoDriver {
    fn from(wanted: IoDriver) -> Self {
        match wanted {
            IoDriver::Auto => Self::Auto,
            IoDriver::IoUring => Self::IoUring,
            IoDriver::Epoll => Self::Epoll,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_named_as_the_products_setting() {
        for driver in IoDriver::value_variants() {
            let read = IoDriver::from_str(driver.name(), false);
            assert_eq!(read, Ok(*driver));
        }
        assert_eq!(IoDriver::from_str("io-uring", false), Ok(IoDriver::IoUring));
        assert!(IoDriver::from_str("kqueue", false).is_err());
    }
}
