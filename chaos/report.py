"""Report of a chaos run: a Markdown table with remarks, or JSON with all details."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.report import describe
from chaos.campaign import Outcome, Plan

HEADINGS = ("source", "state", "events", "kills", "starts", "lost", "doubled", "wrong sums", "dead letters", "seconds")


@dataclass(frozen=True, slots=True)
class Report:
    """Report of one run. A run passes if at least one trial ran and all trials that ran passed."""

    plan: Plan
    outcomes: Sequence[Outcome]
    seconds: float

    @property
    def passed(self) -> bool:
        tried = [outcome for outcome in self.outcomes if not outcome.not_run]
        return bool(tried) and all(outcome.passed for outcome in tried)

    def to_json(self) -> str:
        trials = [_document(outcome) for outcome in self.outcomes]
        plan = {"seed": self.plan.seed, "kills": self.plan.kills, "events": self.plan.events}
        told = {"passed": self.passed, **plan, "machine": describe(), "trials": trials, "seconds": round(self.seconds)}
        return json.dumps(told, indent=2)

    def to_text(self) -> str:
        return "\n".join([f"Seed {self.plan.seed}", "", *self._table(), *self._remarks()])

    def _table(self) -> Iterator[str]:
        yield f"| {' | '.join(HEADINGS)} |"
        yield f"|{'---|' * len(HEADINGS)}"
        for outcome in self.outcomes:
            yield f"| {' | '.join(_cells(outcome))} |"

    def _remarks(self) -> Iterator[str]:
        for outcome in self.outcomes:
            name = f"{outcome.source} into {outcome.state}"
            if outcome.failure:
                yield f"\n{name} failed: {outcome.failure}"
            if outcome.verdict is not None:
                yield from (f"\n{name}: {line}" for line in outcome.verdict.audit.lines())
                for why, times in outcome.verdict.tally.gave_up.items():
                    yield f"\n{name}: the program exited by itself {times} times: {why}"
            if outcome.folder:
                yield f"\n{name}: its files are in {outcome.folder}"


def _cells(outcome: Outcome) -> Iterator[str]:
    yield outcome.source
    yield outcome.state
    if outcome.verdict is None:
        yield f"not run: {outcome.not_run}" if outcome.not_run else "failed"
        yield from [""] * (len(HEADINGS) - 3)
        return
    audit, tally = outcome.verdict.audit, outcome.verdict.tally
    wrong = len(audit.missing_dead) + len(audit.wrongly_dead)
    figures = (outcome.verdict.events, tally.kills, tally.starts, len(audit.lost), len(audit.doubled))
    yield from (f"{figure:,}" for figure in figures)
    yield str(len(audit.wrong_sums))
    yield "correct" if not wrong else f"{wrong} wrong"
    yield f"{outcome.verdict.seconds:,.0f}"


def _document(outcome: Outcome) -> dict[str, Any]:
    told = {**asdict(outcome), "passed": outcome.passed}
    if outcome.verdict is not None:  # asdict() rebuilds a Counter by counting its items
        tally = outcome.verdict.tally
        told["verdict"]["tally"] |= {"steps": dict(tally.steps), "gave_up": dict(tally.gave_up)}
    return told
