"""Problems and answers of `pointsman-bench solve --dump` against HiGHS, by SciPy.

    compare.py FILE

Each line of the file is one problem as a pass of the solver states it, with the product's answer.
Here it is stated again as a linear program, from what solver/MODEL.md says and nothing else:
requests per second, engine-seconds, milliseconds. The product's answer is checked against every
constraint, priced by the pieces of this program, and held to the optimum that HiGHS finds.
"""

import json
import sys
import time

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

# Widest step of the grid over utilisation; width and number, to each side, of those around the load
# that stands; steps from safe to hard capacity; pieces of a shed price, and how much dearer the last
# is than the first.
STEP = 1 / 32
FINE, FINE_STEPS = 1 / 256, 8
OVER_SAFE_STEPS = 10
SHED_PIECES = 5
SHED_SPREAD = 1.1
# How far a load may be over capacity by rounding, relatively, and shares from one.
ROUNDING = 1e-8


def delay(points, utilisation):
    """Milliseconds of an engine-second, between the points and level before the first."""
    return float(np.interp(utilisation, [p[0] for p in points], [p[1] for p in points]))


def over_safe(engine, utilisation):
    """Cost of load beyond safe capacity: ten steps, each dearer than the one before."""
    step = (1 - engine["headroom"]) / OVER_SAFE_STEPS
    if step <= 0:
        return 0.0
    cost = 0.0
    for j in range(OVER_SAFE_STEPS):
        inside = min(max(utilisation - (engine["headroom"] + step * j), 0.0), step)
        cost += inside * engine["capacity"] * engine["over_safe_ms"] * (j + 1) / OVER_SAFE_STEPS
    return cost


def grid(borders):
    """From 0 to 1 with every border, and no step wider than STEP."""
    coarse = sorted({0.0, 1.0, *(b for b in borders if 0 < b < 1)})
    coarse = [b for i, b in enumerate(coarse) if i == 0 or b - coarse[i - 1] >= 1e-9]
    fine = [0.0]
    for low, high in zip(coarse, coarse[1:]):
        parts = max(1, int(np.ceil((high - low) / STEP - 1e-9)))
        fine += [low + (high - low) * i / parts for i in range(1, parts)] + [high]
    return fine


def standing(problem):
    """By engine: engine-seconds that the weights that stand bring today."""
    loads = [0.0] * len(problem["engines"])
    for source in problem["sources"]:
        if source["previous"] is not None:
            for (engine, _, seconds), weight in zip(source["arcs"], source["previous"]):
                loads[engine] += source["rps"] * weight * seconds
    return loads


def pieces(engine, stands):
    """The lower convex hull of cost over load: (engine-seconds, milliseconds for each)."""
    points = engine["delay_ms_per_work"]
    # One that can do nothing, or that nobody may use.
    if engine["capacity"] <= 0 or not points:
        return []
    step = (1 - engine["headroom"]) / OVER_SAFE_STEPS
    borders = [p[0] for p in points]
    borders += [engine["headroom"] + step * j for j in range(OVER_SAFE_STEPS)]
    if stands > 0:
        steps = range(-FINE_STEPS, FINE_STEPS + 1)
        fine = [stands / engine["capacity"] + FINE * j for j in steps]
        borders += [u for u in fine if all(abs(u - b) > FINE / 4 for b in borders)]
    hull = []
    for u in grid(borders):
        load = u * engine["capacity"]
        at = (load, load * delay(points, u) + over_safe(engine, u))
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (at[0] - x1) < (at[1] - y1) * (x1 - x0):
                break
            hull.pop()
        hull.append(at)
    return [(b[0] - a[0], (b[1] - a[1]) / (b[0] - a[0])) for a, b in zip(hull, hull[1:])]


def shed_pieces(source):
    """Requests per second, and what refusing one costs."""
    width = source["rps"] / SHED_PIECES
    factor = [1 + (SHED_SPREAD - 1) * j / (SHED_PIECES - 1) for j in range(SHED_PIECES)]
    return [(width, source["shed_ms"] * f) for f in factor]


def filled(amount, ladder):
    """Cost of an amount, cheapest pieces first."""
    cost = 0.0
    for width, price in ladder:
        part = min(amount, width)
        cost += part * price
        amount -= part
    return cost


class Program:
    """A linear program as it grows: columns with cost, bound and entries of equality rows."""

    def __init__(self):
        self.cost, self.most, self.rows, self.columns, self.values = [], [], [], [], []

    def column(self, cost, most, entries):
        for row, value in entries:
            self.rows.append(row)
            self.columns.append(len(self.cost))
            self.values.append(value)
        self.cost.append(cost)
        self.most.append(most)

    def least(self, right):
        shape = (len(right), len(self.cost))
        matrix = csr_matrix((self.values, (self.rows, self.columns)), shape=shape)
        bounds = np.column_stack([np.zeros(len(self.cost)), self.most])
        options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        found = linprog(
            self.cost, A_eq=matrix, b_eq=right, bounds=bounds, method="highs-ds", options=options
        )
        if found.status != 0:
            raise SystemExit(f"HiGHS: {found.message}")
        return found.fun


def optimum(problem, ladders):
    """The least cost by HiGHS, milliseconds per second."""
    sources, program, offset = problem["sources"], Program(), 0.0
    for s, source in enumerate(sources):
        rps, half = source["rps"], source["movement_ms"] / 2
        for i, (engine, way_ms, seconds) in enumerate(source["arcs"]):
            if not ladders[engine]:
                continue
            entries = [(s, 1.0), (len(sources) + engine, seconds)]
            if source["previous"] is None:
                program.column(way_ms, rps, entries)
                continue
            stands = source["previous"][i] * rps
            offset += half * stands
            if stands > 0:
                program.column(way_ms - half, stands, entries)
            program.column(way_ms + half, rps, entries)
        for width, price in shed_pieces(source):
            program.column(price, width, [(s, 1.0)])
    for engine, ladder in enumerate(ladders):
        for width, slope in ladder:
            program.column(slope, width, [(len(sources) + engine, -1.0)])
    right = [source["rps"] for source in sources] + [0.0] * len(ladders)
    return program.least(right) + offset


def answered(problem, ladders):
    """What the product's answer costs by the same pieces, its constraints checked."""
    cost, loads = 0.0, [0.0] * len(ladders)
    for s, source in enumerate(problem["sources"]):
        rps, shares = source["rps"], source["shares"]
        all_of_it = sum(shares) + sum(source["shed"])
        if min(shares + source["shed"]) < 0 or abs(all_of_it - 1) > ROUNDING:
            raise SystemExit(f"{problem['name']}: source {s}: {all_of_it} of all requests")
        for i, (engine, way_ms, seconds) in enumerate(source["arcs"]):
            cost += rps * shares[i] * way_ms
            loads[engine] += rps * shares[i] * seconds
            if source["previous"] is not None:
                moved = abs(shares[i] - source["previous"][i])
                cost += source["movement_ms"] / 2 * rps * moved
        cost += filled(sum(source["shed"]) * rps, shed_pieces(source))
    for e, (load, ladder) in enumerate(zip(loads, ladders)):
        if load > problem["engines"][e]["capacity"] * (1 + ROUNDING):
            raise SystemExit(f"{problem['name']}: engine {e} has {load} engine-seconds to do")
        cost += filled(load, ladder)
    return cost


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    failed, count = [], 0
    with open(sys.argv[1], encoding="utf-8") as lines:
        for line in lines:
            problem = json.loads(line)
            ladders = [pieces(*pair) for pair in zip(problem["engines"], standing(problem))]
            started = time.monotonic()
            expected = optimum(problem, ladders)
            took = time.monotonic() - started
            got = answered(problem, ladders)
            off = (got - expected) / expected
            count += 1
            print(
                f"{problem['name']}: {got:.6f}, HiGHS {expected:.6f} in {took:.1f} s: off by "
                f"{off:.1e} of at most {problem['most']:.0e}",
                flush=True,
            )
            if abs(off) > problem["most"]:
                failed.append(problem["name"])
    if count == 0:
        raise SystemExit("no problem was given")
    if failed:
        raise SystemExit(f"not the optimum: {', '.join(failed)}")


if __name__ == "__main__":
    main()
