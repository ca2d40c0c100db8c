//! Latency curves: read, found by kind and model, or assumed.
//!
//! Latencies are made non-decreasing here, because a fitted curve that falls with load would make
//! load look like a remedy; that load x latency is convex is made sure of where segments are
//! built (`model::segments`).

mod prompt;

use std::collections::BTreeMap;

use prompt::Prompt;
use toml::Spanned;

use super::topology::{Mix, Point, Profile, ProfileId, TopologyError, locate::Source, raw};
use super::units::NonNegative;

/// The built-in curve of engines without a profile: 200 ms and 20 ms at idle, rising convexly to
/// several times that at full load. Not a measurement of anything.
const ASSUMED: [(f64, f64, f64); 7] = [
    (0.0, 200.0, 20.0),
    (0.5, 220.0, 23.0),
    (0.7, 280.0, 27.0),
    (0.8, 350.0, 32.0),
    (0.9, 550.0, 42.0),
    (0.95, 850.0, 50.0),
    (1.0, 1_500.0, 60.0),
];
/// Most points of one profile.
const MAX_POINTS: usize = 64;
/// Largest utilisation a point may stand at.
const MAX_UTILISATION: f64 = 4.0;

/// Profiles of a file and how engines find theirs.
pub(super) struct Profiles {
    list: Vec<Profile>,
    keys: Vec<(Option<String>, Option<String>, Option<String>)>,
    warnings: Vec<String>,
    /// By profile of the file: the prompt it is measured at, where it says.
    prompts: Vec<Option<Prompt>>,
    /// Profiles made for other requests: of which one, for which tokens (by their bits).
    made: BTreeMap<(usize, [u64; 3]), ProfileId>,
}

impl Profile {
    /// Time to first token and time between tokens at a utilisation, milliseconds: linear between
    /// points, with the last slope beyond them.
    #[must_use]
    pub fn at(&self, utilisation: f64) -> (f64, f64) {
        let after = self
            .points
            .partition_point(|p| p.utilisation <= utilisation);
        let right = after.clamp(1, self.points.len() - 1);
        let (a, b) = (self.points[right - 1], self.points[right]);
        let t = (utilisation - a.utilisation) / (b.utilisation - a.utilisation);
        // Exact at both ends.
        let mix = |x: f64, y: f64| if t == 1.0 { y } else { x + (y - x) * t };
        (mix(a.ttft_ms, b.ttft_ms), mix(a.tbot_ms, b.tbot_ms))
    }

    /// The built-in curve.
    #[must_use]
    pub fn assumed(name: String) -> Self {
        let point = |&(utilisation, ttft_ms, tbot_ms)| Point {
            utilisation,
            ttft_ms,
            tbot_ms,
        };
        Self {
            name,
            assumed: true,
            points: ASSUMED.iter().map(point).collect(),
        }
    }
}

impl Profiles {
    /// The profile of an engine kind for a model: the one named, or that of kind and model, or
    /// that of the kind, or the built-in one.
    pub(super) fn resolve(
        &mut self,
        source: &Source<'_>,
        named: Option<&Spanned<String>>,
        kind: &Spanned<String>,
        model: &str,
    ) -> Result<ProfileId, TopologyError> {
        if let Some(named) = named {
            let wanted = Some(named.get_ref());
            let found = self.keys.iter().position(|(n, _, _)| n.as_ref() == wanted);
            return found.map(ProfileId).ok_or_else(|| {
                let names = self.keys.iter().filter_map(|(n, _, _)| n.as_ref());
                super::topology::parse::unknown(source, "engines: profile", named, &mut { names })
            });
        }
        let kind = kind.get_ref();
        let find = |model: Option<&str>| {
            let matches = |(_, k, m): &(_, Option<String>, Option<String>)| {
                k.as_ref() == Some(kind) && m.as_deref() == model
            };
            self.keys.iter().position(matches)
        };
        if let Some(found) = find(Some(model)).or_else(|| find(None)) {
            return Ok(ProfileId(found));
        }
        let kind = kind.clone();
        self.warnings.push(format!(
            "kind {kind:?} has no profile: its latency curve is assumed, not measured"
        ));
        self.list
            .push(Profile::assumed(format!("assumed for {kind}")));
        self.keys.push((None, Some(kind), None));
        Ok(ProfileId(self.list.len() - 1))
    }

    /// A profile for such requests: itself, where it does not say what it is for.
    pub(super) fn at_mix(&mut self, id: ProfileId, mix: Mix) -> ProfileId {
        let Some(prompt) = self.prompts.get(id.0).copied().flatten() else {
            return id;
        };
        let request = prompt.request_of(mix);
        if request == prompt.request {
            return id;
        }
        let key = (id.0, request.bits());
        if let Some(made) = self.made.get(&key) {
            return *made;
        }
        let made = ProfileId(self.list.len());
        self.list.push(prompt.scaled(&self.list[id.0], request));
        self.made.insert(key, made);
        made
    }

    pub(super) fn profile(&self, id: ProfileId) -> &Profile {
        &self.list[id.0]
    }

    /// Takes what is worth telling.
    pub(super) fn warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    pub(super) fn into_list(self) -> Vec<Profile> {
        self.list
    }
}

pub(super) fn read(
    source: &Source<'_>,
    raw: &[Spanned<raw::Profile>],
) -> Result<Profiles, TopologyError> {
    let mut profiles = Profiles {
        list: Vec::new(),
        keys: Vec::new(),
        warnings: Vec::new(),
        prompts: Vec::new(),
        made: BTreeMap::new(),
    };
    for entry in raw {
        let given = entry.get_ref();
        let name = given.name.as_ref().map(|n| n.get_ref().clone());
        if name.is_none() && given.kind.is_none() {
            let problem = "profiles: give a name, or the kind (and model) it is for";
            return Err(source.refuse(entry.span(), problem));
        }
        let label = name.clone().unwrap_or_else(|| {
            [given.kind.as_deref(), given.model.as_deref()]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(" ")
        });
        let key = (name, given.kind.clone(), given.model.clone());
        let twice = |k: &(Option<String>, Option<String>, Option<String>)| {
            (k.0.is_some() && k.0 == key.0) || (k.1.is_some() && (&k.1, &k.2) == (&key.1, &key.2))
        };
        if profiles.keys.iter().any(twice) {
            let problem =
                format!("profiles {label:?}: given twice for one name, or kind and model");
            return Err(source.refuse(entry.span(), problem));
        }
        profiles.prompts.push(prompt::read(source, &label, given)?);
        let points = points(source, &label, &given.points, &mut profiles.warnings)?;
        profiles.list.push(Profile {
            name: label,
            assumed: false,
            points,
        });
        profiles.keys.push(key);
    }
    Ok(profiles)
}

fn points(
    source: &Source<'_>,
    label: &str,
    raw: &Spanned<Vec<Spanned<raw::Point>>>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Point>, TopologyError> {
    let key = |suffix: &str| format!("profiles {label:?}: {suffix}");
    if raw.get_ref().is_empty() || raw.get_ref().len() > MAX_POINTS {
        let problem = key(&format!(
            "points: must be a list of 1 to {MAX_POINTS} points"
        ));
        return Err(source.refuse(raw.span(), problem));
    }
    let mut list: Vec<Point> = Vec::new();
    let mut lowered = false;
    for entry in raw.get_ref() {
        let given = entry.get_ref();
        let number = |suffix: &str, value| {
            source
                .number::<NonNegative>(key(suffix), value)
                .map(NonNegative::value)
        };
        let mut point = Point {
            utilisation: number("utilisation", &given.utilisation)?,
            ttft_ms: number("ttft_ms", &given.ttft_ms)?,
            tbot_ms: number("tbot_ms", &given.tbot_ms)?,
        };
        if point.utilisation > MAX_UTILISATION {
            let allowed = format!("at most {MAX_UTILISATION}");
            return Err(source.refuse_value(key("utilisation"), &given.utilisation, allowed));
        }
        if let Some(last) = list.last() {
            if point.utilisation <= last.utilisation {
                let allowed = format!("above the point before it, {}", last.utilisation);
                return Err(source.refuse_value(key("utilisation"), &given.utilisation, allowed));
            }
            lowered |= point.ttft_ms < last.ttft_ms || point.tbot_ms < last.tbot_ms;
            point.ttft_ms = point.ttft_ms.max(last.ttft_ms);
            point.tbot_ms = point.tbot_ms.max(last.tbot_ms);
        }
        list.push(point);
    }
    if lowered {
        warnings.push(key(
            "latency falls with load somewhere; it is taken as level there",
        ));
    }
    close(&mut list);
    Ok(list)
}

/// Makes the curve begin at 0, level, and reach at least 1, with its last slope.
fn close(points: &mut Vec<Point>) {
    if points[0].utilisation > 0.0 {
        points.insert(
            0,
            Point {
                utilisation: 0.0,
                ..points[0]
            },
        );
    }
    let last = points[points.len() - 1];
    if points.len() == 1 {
        points.push(Point {
            utilisation: 1.0,
            ..last
        });
    } else if last.utilisation < 1.0 {
        let before = points[points.len() - 2];
        let t = (1.0 - before.utilisation) / (last.utilisation - before.utilisation);
        points.push(Point {
            utilisation: 1.0,
            ttft_ms: before.ttft_ms + (last.ttft_ms - before.ttft_ms) * t,
            tbot_ms: before.tbot_ms + (last.tbot_ms - before.tbot_ms) * t,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_exact_at_points_and_linear_between() {
        let profile = Profile::assumed("x".to_owned());
        assert_eq!(profile.at(0.0), (200.0, 20.0));
        assert_eq!(profile.at(0.25), (210.0, 21.5));
        assert_eq!(profile.at(0.5), (220.0, 23.0));
        assert_eq!(profile.at(1.0), (1_500.0, 60.0));
    }

    #[test]
    fn a_curve_is_closed_with_its_last_slope() {
        let point = |utilisation, ttft_ms| Point {
            utilisation,
            ttft_ms,
            tbot_ms: 0.0,
        };
        let mut points = vec![point(0.25, 100.0), point(0.5, 200.0)];
        close(&mut points);
        assert_eq!(
            points,
            [
                point(0.0, 100.0),
                point(0.25, 100.0),
                point(0.5, 200.0),
                point(1.0, 400.0)
            ]
        );
    }
}
