//! What a person is told: the whole text of each complaint, and the defaults of a short file.

use super::*;

const SHORT: &str = "frontend = \"A\"\nlisten = [\"127.0.0.1:8080\"]\n";

fn parsed(text: &str) -> Result<Config, ConfigError> {
    parse(text, Path::new("proxy.toml"), Host { cores: 4 })
}

fn complaint(text: &str) -> String {
    parsed(text).expect_err("the file is wrong").to_string()
}

/// The complaint about `line` appended to a short file, on its line 3.
fn about(line: &str) -> String {
    let text = complaint(&format!("{SHORT}{line}\n"));
    text.strip_prefix("proxy.toml:3: ")
        .unwrap_or_else(|| panic!("not line 3: {text}"))
        .to_owned()
}

#[test]
fn a_short_file_gets_the_documented_defaults() {
    let config = parsed(SHORT).unwrap();
    assert_eq!(config.frontend, "A");
    assert_eq!(
        config.listen,
        ["127.0.0.1:8080".parse::<SocketAddr>().unwrap()]
    );
    assert_eq!(
        config.admin,
        "127.0.0.1:9400".parse::<SocketAddr>().unwrap()
    );
    assert_eq!(
        (config.shards, config.io_driver, config.pin),
        (4, IoDriver::Auto, true)
    );
    assert_eq!(config.state_dir, Path::new("/var/lib/pointsman"));
    assert_eq!(config.disk_dir(), Path::new("/var/lib/pointsman/A"));
    assert_eq!(config.stale_after_ms, 30_000);
    assert_eq!((config.drain_timeout_ms, config.predrain_ms), (600_000, 0));
    assert_eq!(config.half_close, HalfClose::Cancel);
    let limits = Limits {
        head_bytes: 65_536,
        headers: 100,
        body_bytes: 33_554_432,
        flow_bytes: 1 << 30,
        in_flight: 10_000,
        buffer_bytes: 268_435_456,
        pipeline: 16,
        connections: 20_000,
        handshakes: 256,
        engine_idle: 256,
    };
    assert_eq!(config.limits, limits);
    let timeouts = Timeouts {
        handshake_ms: 10_000,
        head_ms: 10_000,
        body_ms: 60_000,
        connect_ms: 1_500,
        first_byte_ms: 600_000,
        idle_ms: 60_000,
        total_ms: None,
        keepalive_ms: 75_000,
        engine_idle_ms: 4_000,
        head_hold_ms: 30_000,
    };
    assert_eq!(config.timeouts, timeouts);
    assert_eq!(config.affinity.headers, ["x-session-id"]);
    assert!(!config.affinity.user);
    assert_eq!(config.priority_header, None);
    assert!(config.paths.is_empty() && config.credentials.is_empty());
    assert_eq!(
        config.log,
        Log {
            access: false,
            level: "info".to_owned()
        }
    );
    assert_eq!(config.shard_buffer_bytes(), 67_108_864);
}

#[test]
fn a_full_file_is_read_as_written() {
    let text = r#"
        frontend = "eu-1"
        listen = ["127.0.0.1:0", "[::1]:8080"]
        admin = "127.0.0.1:0"
        shards = 2
        io_driver = "epoll"
        pin = false
        run_dir = "/tmp/run"
        state_dir = "/tmp/state"
        half_close = "answer"
        [limits]
        body_bytes = 1048576
        [timeouts]
        total_ms = 5000
        [affinity]
        headers = ["X-Conversation", "x-session-id"]
        user = true
        [priority]
        header = "X-Priority"
        [[paths]]
        path = "/v1/custom"
        [[paths]]
        path = "/openai/chat"
        kind = "chat"
        [log]
        access = true
        level = "pointsman_proxy=debug"
    "#;
    let config = parsed(text).unwrap();
    assert_eq!(config.region_dir(), Path::new("/tmp/run/eu-1"));
    assert_eq!(config.half_close, HalfClose::Answer);
    assert_eq!(config.limits.body_bytes, 1_048_576);
    assert_eq!(config.timeouts.total_ms, Some(5_000));
    assert_eq!(config.affinity.headers, ["x-conversation", "x-session-id"]);
    assert_eq!(config.priority_header.as_deref(), Some("x-priority"));
    let paths: Vec<_> = config
        .paths
        .iter()
        .map(|p| (p.path.as_str(), p.endpoint))
        .collect();
    assert_eq!(
        paths,
        [
            ("/v1/custom", Endpoints::OTHER),
            ("/openai/chat", Endpoints::CHAT)
        ]
    );
}

#[test]
fn an_unknown_key_is_named_with_those_that_are_known() {
    let text = about("shard = 2");
    assert!(
        text.starts_with("unknown field `shard`, expected one of `frontend`, `listen`"),
        "{text}"
    );
    assert!(text.ends_with("(in `shard = 2`)"), "{text}");
    let text = complaint(&format!("{SHORT}[limits]\nbodybytes = 1\n"));
    assert!(
        text.starts_with("proxy.toml:4: unknown field `bodybytes`"),
        "{text}"
    );
}

#[test]
fn a_wrong_type_and_broken_syntax_have_their_line() {
    let text = about("pin = 3");
    assert!(
        text.contains("invalid type: integer `3`, expected a boolean"),
        "{text}"
    );
    assert!(text.ends_with("(in `pin = 3`)"), "{text}");
    let text = about("pin = ");
    assert!(text.ends_with("(in `pin =`)"), "{text}");
    let text = complaint("listen = [\"127.0.0.1:1\"]\n");
    assert!(text.contains("missing field `frontend`"), "{text}");
}

#[test]
fn a_number_out_of_range_is_told_its_range() {
    assert_eq!(about("shards = 0"), "`shards` is `0`; allowed: 1 to 1024");
    assert_eq!(about("shards = -1"), "`shards` is `-1`; allowed: 1 to 1024");
    assert_eq!(
        about("predrain_s = 3601"),
        "`predrain_s` is `3601`; allowed: 0 to 3600"
    );
    let text = complaint(&format!("{SHORT}[limits]\n\nheaders = 7\n"));
    assert_eq!(
        text,
        "proxy.toml:5: `limits.headers` is `7`; allowed: 8 to 256"
    );
    let text = complaint(&format!("{SHORT}[timeouts]\nidle_ms = 0\n"));
    assert_eq!(
        text,
        "proxy.toml:4: `timeouts.idle_ms` is `0`; allowed: 1 to 86400000"
    );
}

#[test]
fn a_word_that_is_none_of_the_allowed_is_told_them() {
    let text = about("io_driver = \"uring\"");
    assert_eq!(
        text,
        "`io_driver` is `uring`; allowed: `auto`, `io_uring`, `epoll`"
    );
    let text = about("half_close = \"ignore\"");
    assert_eq!(
        text,
        "`half_close` is `ignore`; allowed: `cancel`, `answer`"
    );
    let text = complaint(&format!("{SHORT}[log]\nlevel = \"pointsman=loud\"\n"));
    assert!(
        text.starts_with("proxy.toml:4: `log.level` is `pointsman=loud`; allowed: "),
        "{text}"
    );
}

#[test]
fn addresses_are_checked() {
    let text = complaint("frontend = \"A\"\nlisten = [\n  \"127.0.0.1:1\",\n  \"localhost\",\n]\n");
    let expected = "proxy.toml:4: `listen` is `localhost`; allowed: an IP address and a port, such \
                    as `127.0.0.1:8080` or `[::]:8080`";
    assert_eq!(text, expected);
    let text = complaint("frontend = \"A\"\nlisten = []\n");
    assert_eq!(
        text,
        "proxy.toml:2: `listen` is `0 addresses`; allowed: 1 to 64 addresses"
    );
    let text = complaint("frontend = \"A\"\nlisten = [\"127.0.0.1:1\", \"127.0.0.1:1\"]\n");
    assert_eq!(
        text,
        "proxy.toml:2: `listen` is `127.0.0.1:1`; allowed: each address once"
    );
    let text = about("admin = \"127.0.0.1:8080\"");
    assert_eq!(
        text,
        "`admin` is `127.0.0.1:8080`; allowed: an address that is not in `listen` or `listen_tls`"
    );
}

#[test]
fn names_that_become_folders_or_headers_are_checked() {
    for name in ["", ".", "..", "a/b", "a b", "\\u0000"] {
        let text = complaint(&format!(
            "frontend = \"{name}\"\nlisten = [\"127.0.0.1:1\"]\n"
        ));
        assert!(text.starts_with("proxy.toml:1: `frontend` is `"), "{text}");
        assert!(text.contains("letters, digits"), "{text}");
    }
    let text = complaint(&format!("{SHORT}[affinity]\nheaders = [\"a\", \"b c\"]\n"));
    assert!(
        text.starts_with("proxy.toml:4: `affinity.headers` is `b c`; allowed: "),
        "{text}"
    );
    let text = complaint(&format!("{SHORT}[priority]\nheader = \"\"\n"));
    assert!(
        text.starts_with("proxy.toml:4: `priority.header` is ``; allowed: "),
        "{text}"
    );
}

#[test]
fn paths_are_checked() {
    let path = |lines: &str| complaint(&format!("{SHORT}[[paths]]\n{lines}\n"));
    let text = path("path = \"v1\"");
    assert!(
        text.starts_with("proxy.toml:4: `paths.path` is `v1`; allowed: a path of"),
        "{text}"
    );
    let text = path("path = \"/v1/models\"");
    assert!(
        text.ends_with("is `/v1/models`; allowed: a path that is not built in"),
        "{text}"
    );
    let text = path("path = \"/a\"\n[[paths]]\npath = \"/a\"");
    assert_eq!(
        text,
        "proxy.toml:6: `paths.path` is `/a`; allowed: each path once"
    );
    let text = path("path = \"/a\"\nkind = \"chats\"");
    assert!(
        text.starts_with("proxy.toml:5: `paths.kind` is `chats`; allowed: `chat`,"),
        "{text}"
    );
}

#[test]
fn the_default_buffers_hold_two_bodies_a_shard_on_a_host_of_any_size() {
    for (shards, body_bytes, expected) in [
        (1, 32 << 20, 256 << 20),
        (64, 32 << 20, 4 << 30),
        (4, 100_000_000, 800_000_000),
    ] {
        let text = format!("shards = {shards}\n{SHORT}[limits]\nbody_bytes = {body_bytes}\n");
        let limits = parsed(&text).unwrap().limits;
        assert_eq!(limits.buffer_bytes, expected, "{shards} shards");
    }
}

#[test]
fn limits_that_contradict_each_other_are_told() {
    let both = "[limits]\nbody_bytes = 100000000\nbuffer_bytes = 268435456\n";
    let text = complaint(&format!("{SHORT}{both}"));
    let expected = "proxy.toml:4: `limits.body_bytes` is `100000000`; allowed: at most one shard's \
                    share of `limits.buffer_bytes`, 268435456 / 4 = 67108864";
    assert_eq!(text, expected);
    let text = complaint(&format!("{SHORT}[limits]\nbuffer_bytes = 1048576\n"));
    assert!(
        text.starts_with("proxy.toml:4: `limits.body_bytes` is `33554432`"),
        "{text}"
    );
    let text = complaint(&format!("{SHORT}[timeouts]\ntotal_ms = 1000\n"));
    let expected = "proxy.toml:4: `timeouts.total_ms` is `1000`; allowed: 0 (off), or more than \
                    `timeouts.connect_ms` = 1500";
    assert_eq!(text, expected);
}

#[test]
fn a_bearer_file_is_read_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let with = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        parsed(&format!(
            "{SHORT}[credentials.gpu]\nbearer_file = \"{}\"\n",
            file.display()
        ))
    };
    let config = with(b"sk-secret\n").unwrap();
    let credential = &config.credentials["gpu"];
    assert_eq!(credential.bearer_file.as_deref(), Some(&*file));
    assert!(!format!("{config:?}").contains("sk-secret"));
    for bad in [&b"\n"[..], b"two words", b"line\nline", &[b'x'; 8_193]] {
        let text = with(bad).expect_err("not a token").to_string();
        assert!(
            text.contains("`credentials.gpu.bearer_file` is `"),
            "{text}"
        );
        assert!(
            !text.contains("two words") && !text.contains("xxxx"),
            "{text}"
        );
    }
}

#[test]
fn who_may_ask_why_is_checked_and_the_secret_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    let text = format!(
        "{SHORT}[why]\nheader = \"X-Ops\"\nsecret_file = \"{}\"\n",
        file.display()
    );
    std::fs::write(&file, "a-secret-of-16-b\n").unwrap();
    let config = parsed(&text).unwrap();
    assert!(!format!("{config:?}").contains("a-secret"));
    let why = config.why.unwrap();
    assert_eq!(why.header, "x-ops");
    assert!(why.secret.is(b"a-secret-of-16-b"));
    for wrong in [
        &b""[..],
        b"a-secret-of-16-B",
        b"a-secret-of-16-",
        b"a-secret-of-16-bb",
    ] {
        assert!(!why.secret.is(wrong));
    }
    std::fs::write(&file, "a-secret-of-15-").unwrap();
    let text = complaint(&text);
    assert!(text.contains(": `why.secret_file` is `"), "{text}");
    assert!(text.ends_with("it has 15 bytes, at least 16"), "{text}");
    assert!(!text.contains("a-secret"), "{text}");
    assert!(complaint(&format!("{SHORT}[why]\nheader = \"x\"\n")).contains("secret_file"));
}

#[test]
fn retries_are_as_documented_unless_set() {
    let rules = |after_send, on_error| RetryRules {
        after_send,
        on_error,
    };
    let expected = Retry {
        rules: rules(true, false),
        attempts: 8,
        budget: true,
    };
    assert_eq!(parsed(SHORT).unwrap().retry, expected);
    let table = "[retry]\nafter_send = false\non_error = true\nattempts = 3\nbudget = false\n";
    let expected = Retry {
        rules: rules(false, true),
        attempts: 3,
        budget: false,
    };
    assert_eq!(parsed(&format!("{SHORT}{table}")).unwrap().retry, expected);
    assert_eq!(
        complaint(&format!("{SHORT}[retry]\nattempts = 9\n")),
        "proxy.toml:4: `retry.attempts` is `9`; allowed: 1 to 8"
    );
}

#[test]
fn credential_files_must_be_there_and_come_in_pairs() {
    let text = complaint(&format!(
        "{SHORT}[credentials.gpu]\nca = \"/nowhere/ca.pem\"\n"
    ));
    let expected = "proxy.toml:4: `credentials.gpu.ca` is `/nowhere/ca.pem`; allowed: a readable \
                    file (No such file or directory (os error 2))";
    assert_eq!(text, expected);
    let text = complaint(&format!(
        "{SHORT}[credentials.gpu]\ncert = \"/nowhere/c.pem\"\n"
    ));
    let expected = "proxy.toml:4: `credentials.gpu` has one of `cert` and `key`; allowed: both";
    assert_eq!(text, expected);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let text = load(Path::new("/nowhere/proxy.toml"), Host { cores: 1 })
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("/nowhere/proxy.toml: cannot be read: No such file"),
        "{text}"
    );
}
