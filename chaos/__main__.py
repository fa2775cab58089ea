"""Run chaos trials of exactly-once streams over all sources and state stores, and print a report."""

import argparse
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from chaos.audit import STATES
from chaos.campaign import Campaign, Outcome, Plan
from chaos.report import Report
from chaos.sources import SOURCES

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials. Return 0 if at least one trial ran and all that ran passed, 1 otherwise."""
    given = _parser().parse_args(arguments)
    seed = random.randrange(2**32) if given.seed is None else given.seed
    plan = Plan(
        seed=seed,
        kills=given.kills,
        events=given.events,
        sources=given.source or SOURCES,
        states=given.state or STATES,
    )
    say(f"seed {seed}: {plan.kills} kills and {plan.events:,} events for each source and state store")
    report = _run(plan)
    text = report.to_json() if given.json else report.to_text()
    print(text)
    if given.report is not None:
        given.report.write_text(f"{text}\n")
    if not report.passed:
        say(f"failed; to repeat these faults, run again with --seed {seed}")
    return 0 if report.passed else 1


def _run(plan: Plan) -> Report:
    began = time.monotonic()
    outcomes: list[Outcome] = []
    with Campaign.over(plan, say) as campaign:
        for outcome in campaign.run():
            outcomes.append(outcome)
            say(_told(outcome))
    return Report(plan, outcomes, time.monotonic() - began)


def _told(outcome: Outcome) -> str:
    name = f"{outcome.source} into {outcome.state}"
    if outcome.not_run:
        return f"{name}: not run: {outcome.not_run}"
    return f"{name}: {'passed' if outcome.passed else f'FAILED; its files are in {outcome.folder}'}"


def say(text: str) -> None:
    """Print a line of progress to standard error, apart from the report."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="Seed of the faults; by default random. The seed is always printed.")
    parser.add_argument(
        "--kills", type=int, default=200, help="Number of kills for each source and state store; by default 200."
    )
    parser.add_argument(
        "--events",
        type=int,
        default=100_000,
        help="Number of events for each source and state store; by default 100,000.",
    )
    parser.add_argument("--source", action="append", choices=SOURCES, help="Only this source; can be repeated.")
    parser.add_argument("--state", action="append", choices=STATES, help="Only this state store; can be repeated.")
    parser.add_argument("--json", action="store_true", help="Print the report as JSON instead of a table.")
    parser.add_argument("--report", type=Path, metavar="FILE", help="Also write the report to this file.")
    return parser


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # clean up as after Ctrl-C
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped")
        sys.exit(INTERRUPTED)
