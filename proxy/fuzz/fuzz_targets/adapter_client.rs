//! The HTTP/2 adapter of engines under a program of operations, theirs and ours.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pointsman_proxy::serve::operate_as_client;

fuzz_target!(|data: &[u8]| operate_as_client(data));
