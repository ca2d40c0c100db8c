//! The HTTP/2 adapter of clients under a program of operations, theirs and ours.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pointsman_proxy::serve::operate_as_server;

fuzz_target!(|data: &[u8]| operate_as_server(data));
