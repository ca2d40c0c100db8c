//! The two casts that a stage can have: the three regions of simulated engines with their users,
//! or somebody's real engines.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::child::Child;
use super::folder::Folder;
use super::scene::{self, Demand, Engine, Frontend, Scene};
use super::stage::Stage;
use super::traffic::Traffic;
use super::{Args, address_in, relay};
use crate::alarm::Alarm;

impl<'a> Stage<'a> {
    /// The three regions of simulated engines, users included.
    pub(super) async fn three_regions(
        args: &Args,
        alarm: &Rc<Alarm>,
        folder: &'a Folder,
    ) -> anyhow::Result<Self> {
        let frontends = scene::REGIONS
            .iter()
            .map(|&(name, rate_rps, _)| Frontend {
                name: name.to_owned(),
                region: name.to_ascii_lowercase(),
                rate_rps,
            })
            .collect();
        let scene = Scene {
            model: "m".to_owned(),
            frontends,
            engines: Vec::new(),
            simulated: true,
        };
        let mut stage = Self::empty(args, folder, scene)?;
        let regions = scene::REGIONS
            .iter()
            .map(|&(name, _, capacity)| (name, capacity, true));
        let (outside, capacity) = scene::OUTSIDE;
        for (name, capacity_rps, eligible) in regions.chain([(outside, capacity, false)]) {
            stage
                .add_simulated(alarm, name, capacity_rps, eligible)
                .await?;
        }
        let demand = if args.once {
            Demand::Configured
        } else {
            Demand::Signals
        };
        stage.start_solver(demand).await?;
        let sources = stage.start_proxies().await?;
        let rates = stage
            .scene
            .frontends
            .iter()
            .map(|frontend| frontend.rate_rps);
        let sources: Vec<(SocketAddr, f64)> = sources.into_iter().zip(rates).collect();
        let (template, tokens) = (stage.template(), scene::OUTPUT_TOKENS);
        let traffic = Traffic::start(alarm, template, tokens, &sources, args.seed);
        stage.open_view(Some(traffic))?;
        Ok(stage)
    }

    /// One frontend before somebody's real engines, without users.
    pub(super) async fn real(args: &Args, folder: &'a Folder) -> anyhow::Result<Self> {
        let frontend = Frontend {
            name: "local".to_owned(),
            region: "here".to_owned(),
            rate_rps: 0.0,
        };
        let engines = args.engines.iter().enumerate().map(|(number, url)| {
            let (protocol, address) = parse_url(url)?;
            Ok(Engine {
                name: format!("engine-{}", number + 1),
                region: "here".to_owned(),
                capacity: format!("{{ max_running = {} }}", args.engine_running),
                protocol,
                address,
                far: Vec::new(),
                eligible: true,
            })
        });
        let scene = Scene {
            model: args.model.clone().context("--engine needs --model")?,
            frontends: vec![frontend],
            engines: engines.collect::<anyhow::Result<_>>()?,
            simulated: false,
        };
        let mut stage = Self::empty(args, folder, scene)?;
        stage.start_solver(Demand::Signals).await?;
        stage.start_proxies().await?;
        stage.open_view(None)?;
        Ok(stage)
    }

    /// Starts a simulated engine, and a relay to it for each far frontend.
    async fn add_simulated(
        &mut self,
        alarm: &Rc<Alarm>,
        name: &str,
        capacity_rps: f64,
        eligible: bool,
    ) -> anyhow::Result<()> {
        let true_rps = capacity_rps * scene::TRUE_CAPACITY;
        let ttft = scene::TTFT_MS;
        let arguments = [
            ("--listen", "127.0.0.1:0".to_owned()),
            ("--name", name.to_owned()),
            ("--model", self.scene.model.clone()),
            ("--capacity-rps", true_rps.to_string()),
            // Past its capacity an engine is as slow again for every tenth of it.
            ("--profile", format!("0:{ttft},1:{ttft},1.1:{}", 2.0 * ttft)),
            ("--tbot", format!("0:{}", scene::TBOT_MS)),
            ("--events", scene::OUTPUT_TOKENS.to_string()),
            ("--max-running", "512".to_owned()),
        ];
        let arguments = arguments
            .iter()
            .flat_map(|(flag, value)| [*flag, value.as_str()]);
        let arguments: Vec<&str> = ["engine"].into_iter().chain(arguments).collect();
        let own = std::env::current_exe().context("where is this program?")?;
        let process = format!("engine-{name}");
        let child = Child::start(&process, &own, &arguments, self.folder).await?;
        let address = address_in(child.ready(), "/listen/0")?;
        let mut far = Vec::new();
        for frontend in &self.scene.frontends {
            let rtt = Duration::from_millis(scene::rtt_ms(&frontend.name, name));
            if frontend.name != name {
                let relay = relay::start(alarm, address, rtt).await?;
                far.push((frontend.name.clone(), relay));
            }
        }
        self.scene.engines.push(Engine {
            name: name.to_owned(),
            region: name.to_ascii_lowercase(),
            capacity: scene::rps_capacity(capacity_rps),
            protocol: "http1",
            address: address.to_string(),
            far,
            eligible,
        });
        self.engine_addresses.insert(name.to_owned(), address);
        self.engines.insert(name.to_owned(), child);
        Ok(())
    }
}

/// Protocol and address of an engine's URL.
fn parse_url(url: &str) -> anyhow::Result<(&'static str, String)> {
    let (protocol, rest, port) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
        (Some(rest), _) => ("http1", rest, 80),
        (_, Some(rest)) => ("http1-tls", rest, 443),
        _ => bail!("--engine: {url:?} does not begin with http:// or https://"),
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    ensure!(
        !authority.is_empty() && !authority.contains(['/', '?', '#', '@', ' ', '"']),
        "--engine: {url:?} must be scheme, host and port only, as http://127.0.0.1:8000"
    );
    let has_port = authority.rsplit_once(':').is_some_and(|(host, port)| {
        port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
    });
    Ok((
        protocol,
        if has_port {
            authority.to_owned()
        } else {
            format!("{authority}:{port}")
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_urls_are_scheme_host_and_port() {
        assert_eq!(
            parse_url("http://h:81").unwrap(),
            ("http1", "h:81".to_owned())
        );
        assert_eq!(
            parse_url("http://10.0.0.1/").unwrap(),
            ("http1", "10.0.0.1:80".to_owned())
        );
        assert_eq!(
            parse_url("https://[::1]").unwrap(),
            ("http1-tls", "[::1]:443".to_owned())
        );
        for url in ["h:81", "http://", "http://h/v1", "http://a@h", "ftp://h"] {
            assert!(parse_url(url).is_err(), "{url}");
        }
    }
}
