//! Shows how requests fall on keys: where they ended up, and what no table can spread.

use super::shared::Shared;
use crate::collect::keys::Keys;
use crate::metrics;
use crate::tick::HotBlock;

/// Shows realised over planned shares and hot blocks. Engines without a share are left out: what
/// they got came by guards and retries.
pub(super) fn show(shared: &Shared, keys: &Keys, hot: &[HotBlock]) {
    let record = shared.record();
    let topology = &shared.topology;
    let mut ratios: Vec<([&str; 3], f64)> = Vec::new();
    for (frontend, record) in topology.frontends.iter().zip(&record.frontends) {
        let classes = record
            .standing
            .iter()
            .flat_map(|standing| &standing.weights);
        for (class, weights) in classes {
            let realised = keys.realised((&frontend.name, class), weights);
            for (engine, weight) in weights.iter().filter(|(_, weight)| *weight > 0.0) {
                let share = realised.iter().find(|(name, _)| name == engine);
                if let Some((_, share)) = share {
                    let labels = [frontend.name.as_str(), class.as_str(), engine.as_str()];
                    ratios.push((labels, share / weight));
                }
            }
        }
    }
    shared
        .metrics
        .replace(&metrics::REALISED, ratios.into_iter());
    let samples = keys.samples(topology);
    let counts = samples.iter().map(|sample| {
        let frontend = topology.frontends[sample.frontend.0].name.as_str();
        let class = topology.classes[sample.class.0].name.as_str();
        ([frontend, class], sample.hot.len() as f64)
    });
    shared.metrics.replace(&metrics::HOT_BLOCKS, counts);
    let blocks: Vec<String> = hot.iter().map(|hot| hot.block.to_string()).collect();
    let shares = hot.iter().zip(&blocks).map(|(hot, block)| {
        let labels = [
            hot.frontend.as_str(),
            hot.class.as_str(),
            block.as_str(),
            hot.engine.as_str(),
        ];
        (labels, hot.share)
    });
    shared.metrics.replace(&metrics::HOT_BLOCK_SHARE, shares);
}
