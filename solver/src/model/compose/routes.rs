//! The routes of a policy: the topology's, with the places that its classes have in that policy.
//!
//! There may be thousands, and from pass to pass they change only with the topology. So a list that
//! stands and says the same is kept, and frontends share it; to write it anew for each would cost a
//! pass more than its classes do.

use std::cell::RefCell;
use std::sync::Arc;

use pointsman_shm::policy::Route;

use crate::model::topology::{self, Topology};

/// A class's position in a policy, by class of the topology; `None` for one that is not in it.
pub(super) type Places = Vec<Option<u16>>;

/// The lists that one pass came to.
#[derive(Debug, Default)]
pub(super) struct Lists(RefCell<Vec<(Places, Arc<Vec<Route>>)>>);

impl Lists {
    /// The routes of a policy whose classes have these places, where `standing` may be them.
    pub(super) fn of(
        &self,
        topology: &Topology,
        places: Places,
        standing: Option<&Arc<Vec<Route>>>,
    ) -> Arc<Vec<Route>> {
        let mut lists = self.0.borrow_mut();
        if let Some((_, list)) = lists.iter().find(|(of, _)| *of == places) {
            return Arc::clone(list);
        }
        let list = match standing {
            Some(list) if says(list, topology, &places) => Arc::clone(list),
            _ => Arc::new(placed(topology, &places).map(written).collect()),
        };
        lists.push((places, Arc::clone(&list)));
        list
    }
}

/// The routes that a policy has, each with its class's place there.
fn placed<'a>(
    topology: &'a Topology,
    places: &'a Places,
) -> impl Iterator<Item = (&'a topology::Route, u16)> {
    let one = |route: &'a topology::Route| Some((route, places[route.class.0]?));
    topology.routes.iter().filter_map(one)
}

fn written((route, class): (&topology::Route, u16)) -> Route {
    Route {
        name: route.name.clone(),
        model: route.model.clone(),
        adapter: route.adapter.clone(),
        class,
        endpoints: route.endpoints,
        features: route.features,
        body_bytes_min: route.body_bytes_min,
        body_bytes_max: route.body_bytes_max,
        headers: route.headers.clone(),
        default_priority: route.default_priority,
        listed: route.listed,
    }
}

/// Whether a list is what would be written.
fn says(list: &[Route], topology: &Topology, places: &Places) -> bool {
    let mut list = list.iter();
    let mut same = |(route, class): (&topology::Route, u16)| {
        // Taken apart, so that a field that is added cannot be forgotten.
        let Some(Route {
            name,
            model,
            adapter,
            class: place,
            endpoints,
            features,
            body_bytes_min,
            body_bytes_max,
            headers,
            default_priority,
            listed,
        }) = list.next()
        else {
            return false;
        };
        (name, model, adapter, headers)
            == (&route.name, &route.model, &route.adapter, &route.headers)
            && (*place, *endpoints, *features) == (class, route.endpoints, route.features)
            && (*body_bytes_min, *body_bytes_max) == (route.body_bytes_min, route.body_bytes_max)
            && (*default_priority, *listed) == (route.default_priority, route.listed)
    };
    placed(topology, places).all(&mut same) && list.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two models, and two classes: an engine more serves the second.
    fn two() -> Topology {
        let engine = |name: &str, models: &str| {
            format!(
                "[[engines]]\nname = \"{name}\"\nregion = \"r\"\nkind = \"k\"\n\
                 address = \"127.0.0.1:1\"\ncapacity = {{ rps = 1 }}\nmodels = [{models}]\n"
            )
        };
        let text = format!(
            "[[frontends]]\nname = \"f\"\nregion = \"r\"\n[[rtt]]\nfrontend = \"f\"\n\
             region = \"r\"\nms = 1\n{}{}[[routes]]\nname = \"a\"\nmodel = \"a\"\n\
             [[routes]]\nname = \"b\"\nmodel = \"b\"\n",
            engine("e0", "\"a\", \"b\""),
            engine("e1", "\"b\""),
        );
        Topology::parse("t.toml", &text).expect("good")
    }

    #[test]
    fn a_list_that_says_the_same_is_kept_and_shared_and_any_other_is_written() {
        let two = two();
        let places: Places = (0..two.classes.len()).map(|c| Some(c as u16)).collect();
        let written = Lists::default().of(&two, places.clone(), None);
        let models: Vec<&str> = written.iter().map(|route| route.model.as_str()).collect();
        assert_eq!((models.as_slice(), places.len()), (&["a", "b"][..], 2));

        let lists = Lists::default();
        let kept = lists.of(&two, places.clone(), Some(&written));
        assert!(Arc::ptr_eq(&kept, &written));
        assert!(Arc::ptr_eq(&lists.of(&two, places.clone(), None), &written));

        let others: [fn(&mut Vec<Route>); 5] = [
            |list| list[1].model.push('x'),
            |list| list[1].listed ^= true,
            |list| list[1].class += 1,
            |list| list.truncate(1),
            |list| list.push(list[1].clone()),
        ];
        for (which, change) in others.iter().enumerate() {
            let mut other = Vec::clone(&written);
            change(&mut other);
            let list = Lists::default().of(&two, places.clone(), Some(&Arc::new(other)));
            assert_eq!(list, written, "change {which}");
        }
        let mut moved = places.clone();
        moved[0] = None;
        let fewer = lists.of(&two, moved, Some(&written));
        let models: Vec<&str> = fewer.iter().map(|route| route.model.as_str()).collect();
        assert_eq!(models, ["b"], "the class of the other is not in the policy");
        assert_eq!(lists.of(&two, places, None), written);
    }
}
