//! How each peer is started: one worker, its configuration filled in.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::Installed;
use crate::protocol::Http;
use crate::stream::system::Peer;

const HAPROXY: &str = include_str!("../../../peers/haproxy.cfg");
const NGINX: &str = include_str!("../../../peers/nginx.conf");
const ENVOY: &str = include_str!("../../../peers/envoy.yaml");

/// HAProxy keeps a copy of each request while it may have to send it again, so only where that is
/// what is measured.
const HAPROXY_RETRIES: &str = "retries 3\n    retry-on conn-failure empty-response";
const NGINX_RETRIES: &str = "proxy_next_upstream error timeout non_idempotent;";
const ENVOY_RETRIES: &str = "retry_policy: {retry_on: \"reset-before-request,connect-failure,\
                             reset\", num_retries: 2}";
/// HTTP/2 by prior knowledge to the engine.
const ENVOY_HTTP2: &str = "typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}";

/// Where a peer stands for one window.
#[derive(Clone, Copy, Debug)]
pub(in crate::stream) struct Place<'a> {
    /// For what it writes.
    pub(in crate::stream) folder: &'a Path,
    pub(in crate::stream) listen: SocketAddr,
    pub(in crate::stream) engine: SocketAddr,
    /// What it speaks to the engine.
    pub(in crate::stream) wire: Http,
    /// A free port for pages of its own.
    pub(in crate::stream) admin_port: u16,
    /// Whether it sends a request again whose reused connection was closed.
    pub(in crate::stream) retries: bool,
}

/// A command line, with the variables it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stream) struct Launch {
    pub(in crate::stream) program: PathBuf,
    pub(in crate::stream) arguments: Vec<OsString>,
    pub(in crate::stream) variables: Vec<(&'static str, &'static str)>,
}

/// Writes a peer's configuration and says how it is started with it.
pub(in crate::stream) fn launch(
    peer: Peer,
    installed: &Installed,
    place: Place<'_>,
) -> anyhow::Result<Launch> {
    let write = |name: &str, text: String| {
        let path = place.folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok::<OsString, anyhow::Error>(path.into_os_string())
    };
    let arguments = match peer {
        Peer::Haproxy => vec![
            "-db".into(),
            "-f".into(),
            write("haproxy.cfg", haproxy(place)?)?,
        ],
        Peer::Nginx => {
            let folder = place.folder.as_os_str().to_owned();
            let config = write("nginx.conf", nginx(place)?)?;
            vec!["-p".into(), folder, "-c".into(), config]
        }
        Peer::Envoy => {
            let config = write("envoy.yaml", envoy(place)?)?;
            let mut arguments = vec!["-c".into(), config];
            let rest = "--concurrency 1 --disable-hot-restart -l warn";
            arguments.extend(rest.split(' ').map(OsString::from));
            arguments
        }
        Peer::Pingora => {
            let mut arguments = vec![place.listen.to_string(), place.engine.to_string()];
            arguments.extend(place.retries.then(|| "retry".to_owned()));
            arguments.into_iter().map(OsString::from).collect()
        }
        Peer::SglangRouter => router("sglang_router.launch_router", "warn", "-1", place),
        Peer::VllmRouter => router("vllm_router.launch_router", "warning", "100000", place),
    };
    Ok(Launch {
        program: installed.program.clone(),
        arguments,
        // The routers look for tokenizers of models: there is none to be had from anywhere.
        variables: vec![("HF_HUB_OFFLINE", "1")],
    })
}

/// Round robin: with one engine there is nothing to choose, and no policy of theirs costs less.
/// Both retry what failed as they come.
fn router(module: &str, level: &str, concurrent: &str, place: Place<'_>) -> Vec<OsString> {
    let (host, port) = (place.listen.ip(), place.listen.port());
    let (engine, admin) = (place.engine, place.admin_port);
    let line = format!(
        "-m {module} --host {host} --port {port} --worker-urls http://{engine} --policy round_robin \
         --log-level {level} --prometheus-host 127.0.0.1 --prometheus-port {admin} \
         --max-concurrent-requests {concurrent} --health-check-interval-secs 3600 \
         --worker-startup-check-interval 1"
    );
    line.split(' ').map(OsString::from).collect()
}

fn haproxy(place: Place<'_>) -> anyhow::Result<String> {
    let protocol = match place.wire {
        Http::H1 => "",
        Http::H2c => "proto h2",
    };
    let retries = if place.retries { HAPROXY_RETRIES } else { "" };
    filled(
        HAPROXY,
        &[
            ("LISTEN", &place.listen.to_string()),
            ("ENGINE", &place.engine.to_string()),
            ("PROTOCOL", protocol),
            ("RETRIES", retries),
        ],
    )
}

fn nginx(place: Place<'_>) -> anyhow::Result<String> {
    ensure!(
        place.wire == Http::H1,
        "nginx speaks no HTTP/2 to the servers behind it"
    );
    let folder = place.folder.to_string_lossy();
    filled(
        NGINX,
        &[
            ("FOLDER", &folder),
            ("LISTEN", &place.listen.to_string()),
            ("ENGINE", &place.engine.to_string()),
            ("RETRIES", if place.retries { NGINX_RETRIES } else { "" }),
        ],
    )
}

fn envoy(place: Place<'_>) -> anyhow::Result<String> {
    let protocol = match place.wire {
        Http::H1 => "",
        Http::H2c => ENVOY_HTTP2,
    };
    filled(
        ENVOY,
        &[
            ("LISTEN_PORT", &place.listen.port().to_string()),
            ("ENGINE_PORT", &place.engine.port().to_string()),
            ("ADMIN_PORT", &place.admin_port.to_string()),
            ("PROTOCOL", protocol),
            ("RETRIES", if place.retries { ENVOY_RETRIES } else { "" }),
        ],
    )
}

/// A template with every `@NAME@` replaced; an error for a value that has no place.
pub(in crate::stream) fn filled(template: &str, values: &[(&str, &str)]) -> anyhow::Result<String> {
    let mut text = template.to_owned();
    for (name, value) in values {
        let mark = format!("@{name}@");
        ensure!(text.contains(&mark), "the configuration has no {mark}");
        text = text.replace(&mark, value);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::peers::Version;

    fn place(folder: &Path, wire: Http, retries: bool) -> Place<'_> {
        Place {
            folder,
            listen: "127.0.0.1:4001".parse().unwrap(),
            engine: "127.0.0.1:4002".parse().unwrap(),
            wire,
            admin_port: 4003,
            retries,
        }
    }

    /// What stands in a configuration, comments left out.
    fn said(text: &str) -> String {
        let lines = text.lines().filter(|line| !line.trim().starts_with('#'));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_configuration_is_filled_in_to_the_last_place() {
        let folder = Path::new("/folder");
        for retries in [false, true] {
            let place = place(folder, Http::H1, retries);
            let texts = [haproxy(place), nginx(place), envoy(place)].map(Result::unwrap);
            for text in &texts {
                let left = said(text).replace("\"@type\"", "");
                assert!(!left.contains('@'), "{left}");
                assert!(text.contains("4001") && text.contains("4002"), "{text}");
            }
            assert_eq!(said(&texts[0]).contains("retry-on"), retries);
            assert_eq!(said(&texts[1]).contains("proxy_next_upstream"), retries);
            assert_eq!(said(&texts[2]).contains("retry_policy"), retries);
        }
    }

    #[test]
    fn http2_goes_to_the_engine_only_where_it_is_asked_for() {
        let folder = Path::new("/folder");
        for (wire, is_http2) in [(Http::H1, false), (Http::H2c, true)] {
            let place = place(folder, wire, false);
            assert_eq!(
                said(&haproxy(place).unwrap()).contains("proto h2"),
                is_http2
            );
            let envoy = said(&envoy(place).unwrap());
            assert_eq!(envoy.contains("http2_protocol_options"), is_http2);
            assert_eq!(nginx(place).is_err(), is_http2);
        }
    }

    #[test]
    fn a_launch_is_one_worker_with_its_configuration_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let installed = Installed {
            program: "/bin/peer".into(),
            version: Version::pinned("1"),
        };
        let line = |peer: Peer, retries: bool| {
            let place = place(folder.path(), Http::H1, retries);
            let launch = launch(peer, &installed, place).unwrap();
            assert_eq!(launch.program, Path::new("/bin/peer"));
            let words = launch.arguments.iter().map(|word| word.to_str().unwrap());
            words.collect::<Vec<_>>().join(" ")
        };
        assert!(line(Peer::Envoy, false).contains("--concurrency 1"));
        assert!(folder.path().join("envoy.yaml").is_file());
        assert_eq!(line(Peer::Pingora, false), "127.0.0.1:4001 127.0.0.1:4002");
        assert_eq!(
            line(Peer::Pingora, true),
            "127.0.0.1:4001 127.0.0.1:4002 retry"
        );
        let router = line(Peer::VllmRouter, false);
        assert!(router.starts_with("-m vllm_router.launch_router --host 127.0.0.1 --port 4001"));
        assert!(router.contains("--worker-urls http://127.0.0.1:4002 --policy round_robin"));
    }

    #[test]
    fn a_value_without_a_place_is_an_error() {
        let error = filled("a @B@", &[("C", "1")]).unwrap_err();
        assert_eq!(error.to_string(), "the configuration has no @C@");
    }
}
