//! What is refused, and with which words: file, line, key, value, what is allowed.

use pointsman_solver::model::topology::{ClassId, EngineId, FrontendId, Topology};
use pointsman_solver::model::units::Share;

const GOOD: &str = r#"[solver]
demand = "configured"
[[frontends]]
name = "A"
[[engines]]
name = "one"
kind = "h100"
models = ["m"]
address = "127.0.0.1:9001"
capacity = { rps = 10 }
[[rtt]]
frontend = "A"
engine = "one"
ms = 1
[[routes]]
name = "chat"
model = "m"
"#;

fn refused(text: &str) -> String {
    Topology::parse("t.toml", text)
        .expect_err("it must be refused")
        .to_string()
}

fn with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from:?} is in the text");
    refused(&GOOD.replacen(from, to, 1))
}

#[test]
fn the_good_one_is_good() {
    let topology = Topology::parse("t.toml", GOOD).expect("good");
    assert_eq!(topology.classes[0].eligible.len(), 1);
    assert_eq!(
        topology.warnings,
        ["kind \"h100\" has no profile: its latency curve is assumed, not measured"]
    );
}

#[test]
fn an_unknown_key() {
    assert_eq!(
        with("ms = 1\n", "ms = 1\nmiles = 3\n"),
        "t.toml:15: unknown key `miles`: expected one of `frontend`, `engine`, `region`, `ms`, \
         `egress_per_mtok`"
    );
}

#[test]
fn a_wrong_type() {
    assert_eq!(
        with("{ rps = 10 }", "{ rps = \"ten\" }"),
        "t.toml:10: rps = \"ten\": invalid type: string \"ten\", expected f64"
    );
    assert_eq!(
        with("demand = \"configured\"", "demand = \"guessed\""),
        "t.toml:2: demand = \"guessed\": unknown variant `guessed`, expected `signals` or \
         `configured`"
    );
}

#[test]
fn broken_syntax() {
    let text = with("name = \"chat\"", "name = chat");
    assert!(text.starts_with("t.toml:16: name = "), "{text}");
}

#[test]
fn a_duplicate_name() {
    let text = format!("{GOOD}[[routes]]\nname = \"chat\"\nmodel = \"x\"\n");
    assert_eq!(
        refused(&text),
        "t.toml:19: routes: name = \"chat\": is given twice; names must be unique"
    );
}

#[test]
fn a_missing_round_trip_time() {
    assert_eq!(
        with("[[rtt]]\nfrontend = \"A\"\nengine = \"one\"\nms = 1\n", ""),
        "t.toml:11: route \"chat\": the round-trip time from frontend \"A\" to engine \"one\" is \
         missing: add [[rtt]] with frontend = \"A\", engine = \"one\", ms = a number"
    );
}

#[test]
fn numbers_out_of_range() {
    assert_eq!(
        with("{ rps = 10 }", "{ rps = 0 }"),
        "t.toml:10: engines \"one\": capacity.rps = 0: must be a finite number above 0"
    );
    assert_eq!(
        with("ms = 1", "ms = -0.5"),
        "t.toml:14: rtt: ms = -0.5: must be a finite number, at least 0"
    );
    assert_eq!(
        with("[solver]", "[solver]\ntable_bits = 15"),
        "t.toml:2: solver.table_bits = 15: must be a whole number from 6 to 14"
    );
    assert_eq!(
        with("name = \"A\"", "name = \"A\"\nhosts = 0"),
        "t.toml:5: frontends \"A\": hosts = 0: must be a whole number from 1 to 1000000"
    );
}

#[test]
fn h06_nan_and_infinity_are_refused_with_their_names() {
    for bad in ["nan", "inf", "-inf"] {
        assert_eq!(
            with("ms = 1", &format!("ms = {bad}")),
            format!("t.toml:14: rtt: ms = {bad}: must be a finite number, at least 0")
        );
        assert_eq!(
            with("{ rps = 10 }", &format!("{{ rps = {bad} }}")),
            format!(
                "t.toml:10: engines \"one\": capacity.rps = {bad}: must be a finite number above 0"
            )
        );
    }
}

#[test]
fn a_capacity_that_says_too_much_or_nothing() {
    assert_eq!(
        with("{ rps = 10 }", "{ rps = 10, max_running = 3 }"),
        "t.toml:10: engines \"one\": capacity = { rps = 10, max_running = 3 }: must be one of rps, \
         or prefill_tps with decode_tps, or max_running"
    );
    assert_eq!(
        with("capacity = { rps = 10 }\n", ""),
        "t.toml:5: engines \"one\": capacity is missing: give rps, or prefill_tps and decode_tps, \
         or max_running, here or in its profile"
    );
}

#[test]
fn a_missing_key() {
    assert_eq!(
        with("kind = \"h100\"\n", ""),
        "t.toml:5: key `kind` is missing"
    );
}

#[test]
fn names_that_nothing_has() {
    assert_eq!(
        with("engine = \"one\"", "engine = \"two\""),
        "t.toml:13: rtt: engine = \"two\": must be one of \"one\""
    );
    let demand = "[[demand]]\nfrontend = \"B\"\nroute = \"chat\"\nrps = 1\n";
    assert_eq!(
        refused(&format!("{GOOD}{demand}")),
        "t.toml:19: demand: frontend = \"B\": must be one of \"A\""
    );
}

#[test]
fn static_weights() {
    let weights = |table: &str| {
        format!(
            "{GOOD}mode = \"observe\"\n[[weights]]\nfrontend = \"A\"\nroute = \"chat\"\nweights = {table}\n"
        )
    };
    assert_eq!(
        refused(&weights("{ two = 1 }")),
        "t.toml:22: weights: weights.two: unknown engine; route \"chat\" may use \"one\""
    );
    assert_eq!(
        refused(&weights("{ one = -1 }")),
        "t.toml:22: weights: weights.one = -1: must be a finite number, at least 0"
    );
    assert_eq!(
        refused(&weights("{ one = nan }")),
        "t.toml:22: weights: weights.one = nan: must be a finite number, at least 0"
    );
    assert_eq!(
        refused(&weights("{ one = 0 }")),
        "t.toml:22: weights: weights = { one = 0 }: must be weights of which one is a finite \
         number above 0"
    );
    assert_eq!(
        refused(&format!("{GOOD}mode = \"observe\"\n")),
        "t.toml:15: route \"chat\": mode \"observe\" publishes the operator's weights, and those \
         of frontend \"A\" are missing: add [[weights]] with frontend = \"A\", route = \"chat\""
    );
}

#[test]
fn e02_weights_are_kept_as_given_or_made_to_sum_to_one() {
    let two = GOOD.replacen(
        "[[rtt]]",
        "[[engines]]\nname = \"two\"\nkind = \"h100\"\nmodels = [\"m\"]\naddress = \
         \"127.0.0.1:9002\"\ncapacity = { rps = 10 }\n[[rtt]]\nfrontend = \"A\"\nengine = \
         \"two\"\nms = 1\n[[rtt]]",
        1,
    );
    let weights = |table: &str| {
        let text = format!(
            "{two}mode = \"observe\"\n[[weights]]\nfrontend = \"A\"\nroute = \"chat\"\nweights = \
             {table}\n"
        );
        let topology = Topology::parse("t.toml", &text).expect("good");
        topology.classes[ClassId(0).0].static_weights[0]
            .clone()
            .expect("given")
    };
    let sum: f64 = 0.1 + 0.9;
    assert!((sum - 1.0).abs() < 1e-9);
    assert_eq!(weights("{ one = 0.1, two = 0.9 }"), [0.1, 0.9]);
    assert_eq!(weights("{ one = 0.0, two = 1.0 }"), [0.0, 1.0]);
    assert_eq!(weights("{ one = 1, two = 3 }"), [0.25, 0.75]);
}

#[test]
fn too_many_engines() {
    let mut text = "[[frontends]]\nname = \"A\"\n".to_owned();
    for e in 0..=4_096 {
        text += &format!("[[engines]]\nname = \"e{e}\"\nkind = \"k\"\nmodels = [\"m\"]\n");
    }
    assert_eq!(
        refused(&text),
        "t.toml:16387: engines: at most 4096 are allowed"
    );
}

#[test]
fn a_profile_that_goes_backwards() {
    let profile = "[[profiles]]\nname = \"p\"\npoints = [\n{ utilisation = 0.5, ttft_ms = 1, \
                   tbot_ms = 0 },\n{ utilisation = 0.5, ttft_ms = 2, tbot_ms = 0 },\n]\n";
    assert_eq!(
        refused(&format!("{GOOD}{profile}")),
        "t.toml:22: profiles \"p\": utilisation = 0.5: must be above the point before it, 0.5"
    );
}

#[test]
fn priorities_whose_costs_are_too_close() {
    let text = format!(
        "{GOOD}[[priorities]]\nname = \"high\"\nshed_cost_ms = 100\n[[priorities]]\nname = \
         \"low\"\nshed_cost_ms = 90\n"
    );
    assert_eq!(
        refused(&text),
        "t.toml:23: priorities \"low\": shed_cost_ms = 90: must be at most 83.333, which is 1/1.2 \
         of the next higher priority's"
    );
}

#[test]
fn a_replica_group_is_warned_of() {
    let text = GOOD.replacen("kind = \"h100\"", "kind = \"h100\"\nreplicas = 4", 1);
    let topology = Topology::parse("t.toml", &text).expect("good");
    assert!(
        topology.warnings.iter().any(|w| w.starts_with(
            "engine \"one\" stands for 4 replicas behind one address: affinity ends at that address"
        )),
        "{:?}",
        topology.warnings
    );
}

#[test]
fn routes_share_a_class_when_nothing_tells_them_apart() {
    let text = format!(
        "{GOOD}[[routes]]\nname = \"same\"\nmodel = \"m\"\nheaders = {{ X-Team = \"blue\" }}\n\
         [[routes]]\nname = \"long\"\nmodel = \"m\"\nprompt_tokens = 5000\n"
    );
    let topology = Topology::parse("t.toml", &text).expect("good");
    let classes: Vec<usize> = topology.routes.iter().map(|r| r.class.0).collect();
    assert_eq!(classes, [0, 0, 1]);
    assert_eq!(topology.classes[1].name, "long");
    assert_eq!(
        topology.routes[1].headers,
        [("x-team".to_owned(), "blue".to_owned())]
    );
}

#[test]
fn capacity_in_the_units_an_operator_knows() {
    let rps = |capacity: &str| {
        let text = GOOD.replacen("{ rps = 10 }", capacity, 1);
        let capacity = Topology::parse("t.toml", &text).expect("good").engines[0].capacity;
        (capacity.rps.value(), capacity.assumed)
    };
    // 500 prompt and 100 output tokens: 0.05 s + 0.1 s.
    assert_eq!(
        rps("{ prefill_tps = 10000, decode_tps = 1000 }"),
        (1.0 / (0.05 + 0.1), false)
    );
    // The built-in curve at full load: 1,500 ms + 100 tokens x 60 ms.
    assert_eq!(rps("{ max_running = 15 }"), (2.0, true));
}

#[test]
fn egress_is_a_price_by_engine_before_that_by_region() {
    let text = GOOD
        .replacen("[solver]", "[solver]\nmoney_ms = 1000", 1)
        .replacen("kind = \"h100\"", "kind = \"h100\"\nregion = \"eu\"", 1)
        .replacen("ms = 1\n", "ms = 1\negress_per_mtok = 2\n", 1);
    let two = "[[engines]]\nname = \"two\"\nkind = \"h100\"\nregion = \"eu\"\nmodels = [\"m\"]\n\
               address = \"127.0.0.1:9002\"\ncapacity = { rps = 10 }\n[[rtt]]\nfrontend = \"A\"\n\
               region = \"eu\"\nms = 3\negress_per_mtok = 5\n";
    let topology = Topology::parse("t.toml", &format!("{text}{two}")).expect("good");
    let cost_ms = |engine: usize| topology.egress_ms(FrontendId(0), EngineId(engine), 600.0);
    // 600 tokens of a million, at 2 and at 5, each worth 1,000 ms of one request.
    assert_eq!(
        [cost_ms(0), cost_ms(1)],
        [600.0 / 1e6 * 2e3, 600.0 / 1e6 * 5e3]
    );
    let free = Topology::parse("t.toml", GOOD).expect("good");
    assert_eq!(free.egress_ms(FrontendId(0), EngineId(0), 600.0), 0.0);
}

#[test]
fn egress_is_refused_below_nothing_and_without_its_worth() {
    assert_eq!(
        with("ms = 1\n", "ms = 1\negress_per_mtok = -1\n"),
        "t.toml:15: rtt: egress_per_mtok = -1: must be a finite number, at least 0"
    );
    assert_eq!(
        with("ms = 1\n", "ms = 1\negress_per_mtok = 2\n"),
        "t.toml:15: rtt: egress_per_mtok needs solver.money_ms: the milliseconds of one request \
         that one unit of money is worth"
    );
    assert_eq!(
        with("[solver]", "[solver]\nmoney_ms = -1"),
        "t.toml:2: solver.money_ms = -1: must be a finite number, at least 0"
    );
}

#[test]
fn kv_tokens_are_all_of_an_engine_and_those_of_one_server_in_a_profile() {
    let of = |text: &str| {
        let topology = Topology::parse("t.toml", text).expect("good");
        topology.engines[0].capacity.kv_tokens.map(|t| t.value())
    };
    let own = "capacity = { rps = 10 }";
    let stated = "capacity = { rps = 10, kv_tokens = 50000 }";
    let four = |own: &str| format!("{own}\nreplicas = 4");
    let engine = GOOD.replacen(own, &four(stated), 1);
    assert_eq!(of(&engine), Some(50_000.0));
    let profile = format!(
        "[[profiles]]\nname = \"p\"\nkind = \"h100\"\n{stated}\npoints = [ {{ utilisation = 0.0, \
         ttft_ms = 200.0, tbot_ms = 0.0 }}, {{ utilisation = 1.0, ttft_ms = 300.0, tbot_ms = 0.0 \
         }} ]\n"
    );
    let server = GOOD.replacen(own, "replicas = 4", 1);
    assert_eq!(of(&format!("{server}{profile}")), Some(200_000.0));
    assert_eq!(of(GOOD), None);
    assert_eq!(
        with("{ rps = 10 }", "{ rps = 10, kv_tokens = 0 }"),
        "t.toml:10: engines \"one\": capacity.kv_tokens = 0: must be a finite number above 0"
    );
}

#[test]
fn context_tokens_are_read_beside_any_unit_and_stand_for_each_server() {
    let of = |capacity: &str| {
        let text = GOOD.replacen("{ rps = 10 }", capacity, 1);
        let capacity = Topology::parse("t.toml", &text).expect("good").engines[0].capacity;
        let tps = capacity.decode_tps.value();
        (
            capacity.rps.value(),
            tps,
            capacity.context_tokens.map(|t| t.value()),
        )
    };
    // 500 prompt and 100 output tokens; a token of these reads 550, which is twice at 550: 0.05 s
    // and 0.2 s.
    assert_eq!(
        of("{ prefill_tps = 10000, decode_tps = 1000, context_tokens = 550 }"),
        (1.0 / (0.05 + 0.2), 1_000.0, Some(550.0))
    );
    // 50 tokens of answer for the prompt, 200 for the answer: 10 times that a second.
    assert_eq!(
        of("{ rps = 10, context_tokens = 550 }"),
        (10.0, 2_500.0, Some(550.0))
    );
    assert_eq!(of("{ rps = 10 }"), (10.0, 1_500.0, None));
    assert_eq!(
        of("{ max_running = 15, context_tokens = 550 }").2,
        Some(550.0)
    );
    let profile = "[[profiles]]\nname = \"p\"\nkind = \"h100\"\ncapacity = { prefill_tps = 10000, \
                   decode_tps = 1000, context_tokens = 550 }\npoints = [{ utilisation = 0, ttft_ms \
                   = 200, tbot_ms = 10 }]\n";
    let four = GOOD.replacen("capacity = { rps = 10 }", "replicas = 4", 1);
    let topology = Topology::parse("t.toml", &format!("{four}{profile}")).expect("good");
    let capacity = topology.engines[0].capacity;
    assert_eq!(capacity.decode_tps.value(), 4_000.0);
    assert_eq!(capacity.context_tokens.map(|t| t.value()), Some(550.0));
    assert_eq!(
        with("{ rps = 10 }", "{ rps = 10, context_tokens = 0 }"),
        "t.toml:10: engines \"one\": capacity.context_tokens = 0: must be a finite number above 0"
    );
}

#[test]
fn cached_tokens_are_part_of_a_prompt_and_of_what_a_rate_is_stated_at() {
    let cached = "name = \"chat\"\ncached_tokens = 400";
    let text = GOOD.replacen("name = \"chat\"", cached, 1);
    let seconds = |text: &str| {
        let topology = Topology::parse("t.toml", text).expect("good");
        let mix = topology.classes[0].mix;
        assert_eq!(mix.cached_tokens.value(), 400.0);
        mix.engine_seconds(&topology.engines[0].capacity)
    };
    // 10 of the route's own requests a second, or of such that find nothing: 110 tokens, not 150.
    assert_eq!(seconds(&text), 0.1);
    let stated = |tokens: &str| text.replacen("rps = 10", &format!("rps = 10, {tokens}"), 1);
    assert_eq!(
        seconds(&stated("prompt_tokens = 500")),
        110.0 / 150.0 / 10.0
    );
    assert_eq!(seconds(&stated("cached_tokens = 0")), 110.0 / 150.0 / 10.0);
    // What is cached tells routes apart.
    let other = "[[routes]]\nname = \"other\"\nmodel = \"m\"\nrequires = [\"tools\"]\n";
    let topology = Topology::parse("t.toml", &format!("{text}{other}")).expect("good");
    assert_eq!(topology.classes.len(), 2);
    assert_eq!(
        with("name = \"chat\"", "name = \"chat\"\ncached_tokens = 501"),
        "t.toml:17: routes \"chat\": cached_tokens = 501: must be at most prompt_tokens, 500"
    );
    assert_eq!(
        with("{ rps = 10 }", "{ rps = 10, cached_tokens = 501 }"),
        "t.toml:10: engines \"one\": capacity.cached_tokens = 501: must be at most prompt_tokens, \
         500"
    );
    let profile = |keys: &str| {
        format!(
            "{GOOD}[[profiles]]\nkind = \"h100\"\n{keys}\npoints = [{{ utilisation = 0, ttft_ms = 200, \
             tbot_ms = 10 }}]\n"
        )
    };
    assert_eq!(
        refused(&profile("prompt_tokens = 200\ncached_tokens = 300")),
        "t.toml:21: profiles \"h100\": cached_tokens = 300: must be at most prompt_tokens, 200"
    );
    assert_eq!(
        refused(&profile("cached_tokens = 300")),
        "t.toml:20: profiles \"h100\": cached_tokens needs prompt_tokens: the prompt that ttft_ms \
         is of"
    );
    // Of 200 tokens, half of them cached, as many are computed as of the 100 that the curve is of.
    let long = profile("prompt_tokens = 100").replacen(
        "name = \"chat\"",
        "name = \"chat\"\nprompt_tokens = 200\ncached_tokens = 100",
        1,
    );
    let topology = Topology::parse("t.toml", &long).expect("good");
    assert_eq!(topology.profiles.len(), 1);
}

#[test]
fn max_share_bounds_an_engine_and_a_region() {
    let region = "[[regions]]\nname = \"eu\"\nmax_share = 0.6\n";
    let named = GOOD.replacen(
        "kind = \"h100\"",
        "kind = \"h100\"\nregion = \"eu\"\nmax_share = 0.25",
        1,
    );
    let topology = Topology::parse("t.toml", &format!("{named}{region}")).expect("good");
    let share = |share: Option<Share>| share.map(Share::value);
    let engine = &topology.engines[0];
    assert_eq!(share(engine.max_share), Some(0.25));
    let eu = &topology.regions[topology.region_of(engine)];
    assert_eq!((eu.name.as_str(), share(eu.max_share)), ("eu", Some(0.6)));
    let free = Topology::parse("t.toml", GOOD).expect("good");
    assert_eq!(share(free.engines[0].max_share), None);
    assert!(free.regions.iter().all(|r| r.max_share.is_none()));

    assert_eq!(
        with("kind = \"h100\"", "kind = \"h100\"\nmax_share = 1.5"),
        "t.toml:8: engines \"one\": max_share = 1.5: must be a number from 0 to 1"
    );
    let end = |more: &str| refused(&format!("{named}{more}"));
    assert_eq!(
        end(&region.replacen("0.6", "-0.1", 1)),
        "t.toml:22: regions \"eu\": max_share = -0.1: must be a number from 0 to 1"
    );
    assert_eq!(
        end(&format!("{region}{region}")),
        "t.toml:24: regions: name = \"eu\": is given twice"
    );
    let unknown = end(&region.replacen("eu", "mars", 1));
    assert!(
        unknown.starts_with("t.toml:21: regions: name = \"mars\""),
        "{unknown}"
    );
}
