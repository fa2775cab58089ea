"""`penstock replay --from-lake`: replays events from a lake, including events that the store has purged."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.admin.text import count
from penstock.cli.terminal import output
from penstock.cli.terminal.confirmation import Consent
from penstock.cli.terminal.options import Call, operator
from penstock.model.selection import Selection

if TYPE_CHECKING:
    from penstock.pipeline.lake.replay import BroughtBack, LakeCount, LakeReplay

FromLakeOption = Annotated[
    str | None,
    typer.Option("--from-lake", metavar="URL", help="Replay from this lake, including purged events."),
]


def replay_from_lake(call: Call, lake: str, chosen: Selection, consent: Consent) -> None:
    """Show the preview, or ask for confirmation on a terminal and replay the events."""
    from penstock.admin.lake import lake_replay

    with ExitStack() as opened:
        with output.waiting("starting Spark") as say:
            replay = opened.enter_context(lake_replay(call.url, lake, chosen))
            say("reading the lake")
            kinds = replay.counts()
            judged = replay.judge() if consent.dry_run else None
        if judged is not None:
            _show(kinds, judged, call.json)
            return
        done = _bring_back(replay, kinds, ask=sys.stdin.isatty() and not consent.yes)
    call.answer(asdict(done), _summary(done))


def _summary(done: "BroughtBack") -> str:
    """Return the counts of the replay in one line, zero counts left out."""
    parts = [f"{count(done.replayed, 'event')} replayed"] if done.replayed else []
    parts += [f"{count(done.emitted, 'event')} emitted again"] if done.emitted else []
    parts += [f"{count(done.waiting, 'event')} left unchanged: already pending"] if done.waiting else []
    return "; ".join(parts) or "0 events replayed"


def _bring_back(replay: "LakeReplay", kinds: "Sequence[LakeCount]", *, ask: bool) -> "BroughtBack":
    total = sum(kind.count for kind in kinds)
    if total and ask:
        for line in _lines(kinds):
            output.note(line)
        output.require_yes(f"replay {count(total, 'event')} from the lake?")
    with output.progress(f"replay: {total:,} events", total) as update:
        return replay.bring_back(by=operator(), progress=update)


def _show(kinds: "Sequence[LakeCount]", judged: "BroughtBack", json: bool) -> None:
    if json:
        groups = [{**asdict(kind), "day": kind.day.isoformat()} for kind in kinds]
        output.write_json({"dry_run": True, "total": judged.total, "groups": groups, **asdict(judged)})
        return
    output.write("\n".join([f"would replay {count(judged.total, 'event')} from the lake", *_lines(kinds)]))
    if judged.total:
        output.write(f"expected result: {_summary(judged)}")


def _lines(kinds: "Sequence[LakeCount]") -> list[str]:
    """Return one line for each kind of event, with its count."""
    texts = [f"{kind.count:>9,}  {kind.day}  {kind.event_type}, queue {kind.queue}" for kind in kinds]
    return output.first_kinds(texts)
