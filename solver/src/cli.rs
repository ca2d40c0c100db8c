//! The command line: what a person types, turned into calls of the pure core or of the daemon.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Arguments of `run`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The topology to serve.
    #[arg(long, value_name = "FILE")]
    pub topology: PathBuf,
    /// Folder of the region files; wins over the topology's `run_dir`.
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Folder of the disk copies; wins over the topology's `state_dir`.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Address of the admin HTTP server; wins over the topology's `listen`.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
}
