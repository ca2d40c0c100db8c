//! A min-cost flow from sources over engines to one root, in integers.
//!
//! Not the problem of a pass: that one is stated in floats and units, and `scale` turns it into
//! this one. Here a flow is a count of work units and a cost a count of cost units per work unit,
//! so that sums are exact and every machine finds the same answer. Three shapes of arc make the
//! whole graph: a source's way to an engine, an engine's *ladder* to the root (the convex cost of
//! its load, rung by rung) and a source's ladder to the root (what refusing costs).

use super::Error;

/// Larger than any flow: the width of what has no bound.
pub const UNBOUNDED: i64 = i64::MAX / 4;
/// Most of all demand together, and of any width that counts.
pub const MOST_FLOW: i64 = 1 << 60;
/// Most of a cost times the count of nodes: a path's cost stays an `i64` with room to add.
const MOST_PATH_COST: i128 = 1 << 59;

/// The problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// Engines that sources of one kind may use, each list by rising number.
    pub groups: Vec<Vec<u32>>,
    /// Where work arises.
    pub sources: Vec<Source>,
    /// By engine: its rungs by rising cost; none for an engine that can do nothing.
    pub engines: Vec<Vec<Rung>>,
}

/// Where work arises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Which of the groups it may use.
    pub group: u32,
    /// Work to be routed or refused.
    pub demand: i64,
    /// Cost of the unbounded way to each engine of the group.
    pub costs: Vec<i64>,
    /// Cheaper, bounded parts of ways, by rising place, then rising cost.
    pub parts: Vec<Part>,
    /// Cost of refusing, rung by rung; the last has no bound, whatever its width says.
    pub shed: Vec<Rung>,
}

/// One step of a convex cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rung {
    /// Work it takes.
    pub width: i64,
    /// Cost of a unit.
    pub cost: i64,
}

/// A bounded part of a way: what stays where it was, or what stays under a cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Place of the engine in the source's group.
    pub place: u32,
    /// Work it takes.
    pub width: i64,
    /// Cost of a unit; not above that of the next part of the place or of the unbounded way.
    pub cost: i64,
}

impl Instance {
    /// Engines that a source may use.
    #[must_use]
    pub fn ways(&self, source: usize) -> &[u32] {
        &self.groups[self.sources[source].group as usize]
    }

    /// Place of an engine among those that a source may use.
    #[must_use]
    pub fn place(&self, source: usize, engine: u32) -> Option<usize> {
        self.ways(source).binary_search(&engine).ok()
    }

    /// Work that an engine can do.
    #[must_use]
    pub fn capacity(&self, engine: usize) -> i64 {
        self.engines[engine]
            .iter()
            .map(|r| r.width)
            .fold(0, i64::saturating_add)
    }

    /// Refuses what the method cannot solve exactly.
    ///
    /// # Errors
    ///
    /// Names the first number that is out of range, out of order or out of place.
    pub fn validate(&self) -> Result<(), Error> {
        for (g, group) in self.groups.iter().enumerate() {
            if !group.windows(2).all(|w| w[0] < w[1]) {
                return Err(Error::Shape {
                    what: format!("group {g}: engines do not rise"),
                });
            }
            if group
                .last()
                .is_some_and(|e| *e as usize >= self.engines.len())
            {
                return Err(Error::Shape {
                    what: format!("group {g}: an engine that is not there"),
                });
            }
        }
        for (e, rungs) in self.engines.iter().enumerate() {
            ladder(&format!("engine {e}"), rungs)?;
        }
        let mut total: i64 = 0;
        for (s, source) in self.sources.iter().enumerate() {
            self.validate_source(s, source)?;
            total = total.saturating_add(source.demand);
        }
        if total > MOST_FLOW {
            return Err(Error::Range {
                what: format!("all demand: {total}"),
                most: MOST_FLOW,
            });
        }
        let nodes = (self.sources.len() + self.engines.len() + 1) as i128;
        let dearest = self.dearest();
        if 8 * nodes * i128::from(dearest) > MOST_PATH_COST {
            let most = (MOST_PATH_COST / (8 * nodes)) as i64;
            return Err(Error::Range {
                what: format!("the dearest cost: {dearest}"),
                most,
            });
        }
        Ok(())
    }

    /// Largest size of any cost.
    pub(super) fn dearest(&self) -> i64 {
        let of_source = |s: &Source| {
            let costs = s.costs.iter().chain(s.parts.iter().map(|p| &p.cost));
            costs
                .chain(s.shed.iter().map(|r| &r.cost))
                .map(|c| c.saturating_abs())
                .max()
        };
        let of_engine = |e: &Vec<Rung>| e.iter().map(|r| r.cost.saturating_abs()).max();
        let sources = self.sources.iter().filter_map(of_source).max();
        sources
            .max(self.engines.iter().filter_map(of_engine).max())
            .unwrap_or(0)
    }

    fn validate_source(&self, s: usize, source: &Source) -> Result<(), Error> {
        let shape = |what: &str| {
            Err(Error::Shape {
                what: format!("source {s}: {what}"),
            })
        };
        let Some(group) = self.groups.get(source.group as usize) else {
            return shape("a group that is not there");
        };
        if group.len() != source.costs.len() {
            return shape("one cost for each engine of the group is needed");
        }
        if source.demand < 0 {
            return Err(Error::Range {
                what: format!("source {s}: demand {}", source.demand),
                most: MOST_FLOW,
            });
        }
        if source.shed.is_empty() {
            return shape("no cost of refusing");
        }
        ladder(&format!("source {s}, shed"), &source.shed)?;
        let mut parts = source.parts.iter().peekable();
        while let Some(part) = parts.next() {
            let Some(&free) = source.costs.get(part.place as usize) else {
                return shape("a part of a way that is not there");
            };
            let same = |p: &&&Part| p.place == part.place;
            let above = parts.peek().filter(same).map_or(free, |next| next.cost);
            let in_order = parts.peek().is_none_or(|next| next.place >= part.place);
            if part.cost > above || !in_order || part.width < 0 {
                return shape("parts of ways are out of order");
            }
        }
        Ok(())
    }
}

/// Rungs rise in cost and hold no negative width.
fn ladder(what: &str, rungs: &[Rung]) -> Result<(), Error> {
    if let Some(rung) = rungs.iter().find(|r| r.width < 0) {
        return Err(Error::Range {
            what: format!("{what}: width {}", rung.width),
            most: MOST_FLOW,
        });
    }
    if rungs.windows(2).all(|w| w[0].cost <= w[1].cost) {
        return Ok(());
    }
    Err(Error::Shape {
        what: format!("{what}: costs fall, and would be filled out of order"),
    })
}

/// Cost of filling rungs in their order, and what did not fit.
pub(super) fn fill(rungs: impl Iterator<Item = Rung>, mut flow: i64) -> (i128, i64) {
    let mut cost = 0;
    for rung in rungs {
        let part = flow.min(rung.width);
        cost += i128::from(part) * i128::from(rung.cost);
        flow -= part;
        if flow == 0 {
            break;
        }
    }
    (cost, flow)
}

/// The rungs of a source's ladder, the last without bound.
pub(super) fn shed_rungs(source: &Source) -> impl Iterator<Item = Rung> + '_ {
    let last = source.shed.len() - 1;
    source.shed.iter().enumerate().map(move |(j, r)| {
        if j == last {
            Rung {
                width: UNBOUNDED,
                cost: r.cost,
            }
        } else {
            *r
        }
    })
}

/// The rungs of one way: its parts, then without bound.
pub(super) fn way_rungs(source: &Source, place: usize) -> impl Iterator<Item = Rung> + '_ {
    let from = source.parts.partition_point(|p| (p.place as usize) < place);
    let parts = source.parts[from..]
        .iter()
        .take_while(move |p| p.place as usize == place);
    let parts = parts.map(|p| Rung {
        width: p.width,
        cost: p.cost,
    });
    parts.chain([Rung {
        width: UNBOUNDED,
        cost: source.costs[place],
    }])
}

/// Cost of the next unit and of the last one, where rungs are filled in order; `None` where there
/// is no such unit.
pub(super) fn margins(
    rungs: impl Iterator<Item = Rung>,
    mut flow: i64,
) -> (Option<i64>, Option<i64>) {
    let mut last = None;
    for rung in rungs.filter(|r| r.width > 0) {
        if flow > 0 {
            last = Some(rung.cost);
        }
        if flow < rung.width {
            return (Some(rung.cost), last);
        }
        flow -= rung.width;
    }
    (None, last)
}
