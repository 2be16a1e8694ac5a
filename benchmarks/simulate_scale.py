"""How much of a large cluster's time trains: goodput by size, checkpoint interval and detection.

    python benchmarks/simulate_scale.py [--ranks 1024,...,100000] [--days 54] [--seeds 20]
                                        [--only steps,goodput,detection] [--json FILE]

Nothing real runs: random failures, stragglers and messages in virtual time, in three tables.

`steps`: a step of N ranks waits for the slowest of them, then for a tree of messages through all;
its share that computes, for two kinds of noise, and the time of a ring's latencies beside it.
`goodput`: the share of a job's time that is left in its result, for checkpoint intervals from one
minute to an hour and the one of Daly (A higher order estimate of the optimum checkpoint interval,
2006); beside each the closed form for failures at random moments, which the simulation must meet.
`detection`: the cost of the limits of silence: the failures of the Llama 3 report by kind, with the
limits that this runtime has at this size, and with others.

Rates: 419 unexpected interruptions in 54 days on 16,384 GPUs (The Llama 3 herd of models, 2024,
section 3.3.4); of them 7.6 % were hosts that went, 10.1 % switches, cables and collectives that
hung, in the others a process ends. State of 405 billion parameters with Adam: 5.7 TB, written and
read at 2 TB/s. A control plane as benchmarks/scheduler_scale.py measured it: 0.22 ms a rank.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from measure import arguments, report

from oneflow.scheduler.jobs.settings import Settings

DAY_S = 86400.0
FAILURES_PER_RANK_S = 419 / (54 * DAY_S * 16384)
RANKS_PER_NODE = 8
TABLES = ("steps", "goodput", "detection")

CHECKPOINT_S = 5.7e12 / 2e12  # one write, or one read, of all state
RESTART_S = 60.0  # processes, imports, compiling and connections, whatever the number of ranks
CONTROL_S = 0.22e-3  # a rank, for messages to prepare and to start it
HANG_S = 300.0  # ONEFLOW_TIMEOUT_SECONDS
EXIT_S = 1.0  # until a process that has ended is known everywhere

Row = dict[str, Any]
Random = np.random.Generator


# ---- one step ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A step of compute_s on each rank and an all-reduce of latencies in between.

    noise: standard deviation of a rank's time over its mean. slow_share, slow_by: ranks that are
    slower for good, and by how much. hop_s: one message.
    """

    compute_s: float = 10.0
    noise: float = 0.01
    slow_share: float = 0.0
    slow_by: float = 0.0
    hop_s: float = 20e-6


def simulate_steps(step: Step, num_ranks: int, num_steps: int, random: Random) -> float:
    """Return the mean seconds of a step. A tree leads from all ranks to one and back: each of its
    nodes waits for the later of two children, and each message takes between half a hop and three.
    """
    pace = np.ones(num_ranks)
    pace[random.random(num_ranks) < step.slow_share] += step.slow_by
    total = 0.0
    for _ in range(num_steps):
        ready = step.compute_s * pace * (1 + step.noise * random.standard_normal(num_ranks))
        total += float(_through_tree(ready, step.hop_s, random))
    return total / num_steps


def _through_tree(ready: np.ndarray, hop_s: float, random: Random) -> float:
    """Return the time at which the last rank has the sum of all."""
    levels = 0
    while ready.size > 1:
        if ready.size % 2:
            ready = np.append(ready, -np.inf)
        ready = ready.reshape(-1, 2).max(axis=1)
        ready = ready + hop_s * random.uniform(0.5, 3.0, ready.size)
        levels += 1
    # Downwards the slowest of 2^level paths counts; each hop of the longest takes nearly the most.
    return float(ready[0]) + levels * 3.0 * hop_s


def table_of_steps(ranks: list[int], random: Random) -> list[Row]:
    rows = []
    for num_ranks in ranks:
        even = Step()
        slow = replace(even, slow_share=1e-4, slow_by=0.1)
        row: Row = {"ranks": num_ranks}
        for name, step in (("noise 1 %", even), ("and 1 in 10,000 slower by 10 %", slow)):
            took_s = np.mean([simulate_steps(step, num_ranks, 20, random) for _ in range(3)])
            row[f"share computing, {name}"] = step.compute_s / took_s
        row["expected, noise 1 %"] = 1 / (1 + 0.01 * _largest_normal(num_ranks))
        row["tree's latency ms"] = 1e3 * 2 * math.ceil(math.log2(num_ranks)) * even.hop_s
        row["ring's latency ms"] = 1e3 * 2 * (num_ranks - 1) * even.hop_s
        rows.append(row)
    return rows


def _largest_normal(count: int) -> float:
    """Return the mean of the largest of so many normal numbers: the integral of 1 - F(x)^n."""
    x = np.linspace(-2.0, 9.0, 20001)
    below = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in x])
    return float(x[0] + np.trapezoid(1 - below**count, x))


# ---- a job ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A job of num_ranks ranks that is lost as a whole with each of them.

    interval_s: of training between checkpoints. checkpoint_s: for which training waits then.
    restart_s: from the moment a failure is known to the first step. kinds: share of all failures
    and the seconds until one of this kind is known.
    """

    num_ranks: int
    interval_s: float
    checkpoint_s: float
    restart_s: float
    kinds: tuple[tuple[float, float], ...]

    @property
    def mean_time_s(self) -> float:
        """The mean time between failures."""
        return 1 / (self.num_ranks * FAILURES_PER_RANK_S)

    @property
    def known_s(self) -> float:
        return sum(share * known_s for share, known_s in self.kinds)


def simulate_job(job: Job, duration_s: float, random: Random) -> float:
    """Return the share of duration_s that is in the last checkpoint at its end.

    Failures strike at random moments, while a job restarts, too: then it begins to restart anew.
    """
    clock, saved = 0.0, 0.0
    round_s = job.interval_s + job.checkpoint_s
    shares = np.array([share for share, _ in job.kinds])
    while clock < duration_s:
        left = min(random.exponential(job.mean_time_s), duration_s - clock)
        saved += int(left // round_s) * job.interval_s
        clock += left
        if clock >= duration_s:
            break
        while True:  # until a restart is not disturbed
            known_s = job.kinds[random.choice(len(shares), p=shares)][1]
            again = random.exponential(job.mean_time_s)
            clock += min(again, known_s + job.restart_s)
            if again >= known_s + job.restart_s:
                break
    return saved / clock


def expected_share(job: Job) -> float:
    """Return the same in closed form, of a job that never ends.

    The time until a round of length L passes undisturbed, with failures of rate 1/M that cost R
    each and strike again meanwhile, is M e^(R/M) (e^(L/M) - 1) (Daly 2006, equation 13). With
    several kinds of failures, 1 / e^(R/M) is the mean over them of e^(-R/M): a restart's chance.
    """
    mean, round_s = job.mean_time_s, job.interval_s + job.checkpoint_s
    chance = sum(share * math.exp(-(known + job.restart_s) / mean) for share, known in job.kinds)
    return job.interval_s / (mean / chance * math.expm1(round_s / mean))


def best_interval_s(job: Job) -> float:
    """Return Daly's estimate of the best interval, of training between two checkpoints."""
    cost, mean = job.checkpoint_s, job.mean_time_s
    if cost >= 2 * mean:
        return mean
    ratio = cost / (2 * mean)
    return math.sqrt(2 * cost * mean) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def limits(num_ranks: int, settings: Settings | None = None) -> tuple[tuple[float, float], ...]:
    """Return the kinds of failures, as this runtime notices them with a daemon line for a node."""
    settings = settings or Settings()
    silence = settings.silence(settings.slow_s(num_ranks // RANKS_PER_NODE))
    return ((0.823, EXIT_S), (0.076, silence.act_s), (0.101, HANG_S))


def job_of(num_ranks: int, interval_s: float) -> Job:
    restart_s = RESTART_S + CHECKPOINT_S + CONTROL_S * num_ranks
    return Job(num_ranks, interval_s, CHECKPOINT_S, restart_s, limits(num_ranks))


def _mean_share(job: Job, days: float, seeds: int, random: Random) -> tuple[float, float]:
    """Return the mean over runs and its standard error."""
    shares = [simulate_job(job, days * DAY_S, random) for _ in range(seeds)]
    return float(np.mean(shares)), float(np.std(shares) / math.sqrt(seeds))


def table_of_goodput(ranks: list[int], days: float, seeds: int, random: Random) -> list[Row]:
    rows = []
    for num_ranks in ranks:
        best = best_interval_s(job_of(num_ranks, 1.0))
        for name, interval_s in (
            ("1 min", 60.0),
            ("5 min", 300.0),
            ("10 min", 600.0),
            ("30 min", 1800.0),
            ("1 h", 3600.0),
            (f"best, {best / 60:.1f} min", best),
        ):
            job = job_of(num_ranks, interval_s)
            share, error = _mean_share(job, days, seeds, random)
            expected = expected_share(job)
            rows.append(
                {
                    "ranks": num_ranks,
                    "failures a day": DAY_S / job.mean_time_s,
                    "interval": name,
                    "goodput": share,
                    "closed form": expected,
                    "standard errors apart": (share - expected) / error,
                }
            )
    return rows


def table_of_detection(ranks: list[int], days: float, seeds: int, random: Random) -> list[Row]:
    rows = []
    for num_ranks in ranks:
        own = replace(job_of(num_ranks, 0.0), interval_s=best_interval_s(job_of(num_ranks, 1.0)))
        (exits, _), (hosts, silence_s), (hangs, _) = own.kinds
        for name, host_s, hang_s in (
            ("as it is here", silence_s, HANG_S),
            ("hosts known in 10 s", 10.0, HANG_S),
            ("hangs known in 60 s", silence_s, 60.0),
            ("hangs known in 600 s", silence_s, 600.0),
            ("hangs known in 1,800 s", silence_s, 1800.0),
            ("both in 1,800 s", 1800.0, 1800.0),
        ):
            job = replace(own, kinds=((exits, EXIT_S), (hosts, host_s), (hangs, hang_s)))
            share, _ = _mean_share(job, days, seeds, random)
            rows.append(
                {
                    "ranks": num_ranks,
                    "limits": name,
                    "a host's silence s": host_s,
                    "known after s": job.known_s,
                    "goodput": share,
                    "closed form": expected_share(job),
                }
            )
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", default="1024,4096,16384,65536,100000")
    parser.add_argument("--days", type=float, default=54.0)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default=",".join(TABLES))
    args = parser.parse_args()
    ranks = [int(word) for word in args.ranks.split(",")]
    wanted = args.only.split(",")
    if not set(wanted) <= set(TABLES):
        sys.exit(f"--only takes some of {', '.join(TABLES)}, not {args.only}")
    random = np.random.default_rng(0)
    rows: list[Row] = []
    for name, make in (
        ("steps", lambda: table_of_steps(ranks, random)),
        ("goodput", lambda: table_of_goodput(ranks, args.days, args.seeds, random)),
        ("detection", lambda: table_of_detection(ranks, args.days, args.seeds, random)),
    ):
        if name in wanted:
            found = make()
            report(f"simulated: {name}", found, None)
            rows += [{"table": name, **row} for row in found]
    if args.json:
        report("simulated", rows, args.json)


if __name__ == "__main__":
    main()
