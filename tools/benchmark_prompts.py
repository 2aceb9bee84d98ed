"""Compare prompt wordings on labelled rows, so that the default is chosen by measurement.

    python3 -m tools.benchmark_prompts --backend-url http://127.0.0.1:8097 [--variants letters,words] [--output FILE]

Every row is asked twice, its options in the given order and reversed. Reported per variant:
right     rows whose most probable option is the gold one, in the given order
nll       mean negative log likelihood of the gold option over both orders, in nats
mass      median share of the model's own probability that fell on the labels
flips     rows whose answer changes when the options are reversed
tokens    mean tokens a question adds behind the state, its own words included
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.progress import track

from jev_local.backend.llama import LlamaBackend
from jev_local.core.prompts import option_texts, question_text, shared_text
from jev_local.core.questions import Choice, Noul, Question, Score, width
from jev_local.core.readout import BIAS, RUNNERS_UP, read_step
from jev_local.engine.session import Session, open_session, tokenize_chats
from jev_local.errors import BackendError
from jev_local.settings import DEFAULT_BACKEND_URL
from tools.prompt_variants import VARIANTS, Variant
from tools.rows import Row, load


@dataclass(frozen=True, slots=True)
class Asked:
    """One pass. probabilities in the question's own order, also where it was asked reversed."""

    probabilities: tuple[float, ...]
    mass: float
    tokens: int

    @property
    def best(self) -> int:
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)


@dataclass(frozen=True, slots=True)
class Result:
    variant: str
    row: str
    kind: str
    language: str
    hard: bool
    ci: bool
    gold: int
    forward: Asked
    reversed: Asked

    @property
    def right(self) -> bool:
        return self.forward.best == self.gold

    @property
    def flipped(self) -> bool:
        return self.forward.best != self.reversed.best

    @property
    def nll(self) -> float:
        return statistics.fmean(
            -math.log(max(1e-12, asked.probabilities[self.gold])) for asked in (self.forward, self.reversed)
        )


class Asker:
    """Asks rows in one variant's words, all in slot 0, so that what repeats is not evaluated again."""

    def __init__(self, backend: LlamaBackend, session: Session, variant: Variant) -> None:
        self._backend, self._session, self._variant = backend, session, variant

    async def ask(self, row: Row, *, backwards: bool) -> Asked:
        style = self._variant.style
        texts = option_texts(style, row.question)
        order = list(range(width(row.question)))
        if backwards:
            order.reverse()
        labels, tokens, fallback = await self._labels([texts[i] for i in order])
        if fallback:
            style = replace(style, option="{label}: {text}")
        question = _reordered(row.question, order)
        if isinstance(question, Noul) and backwards:
            style = replace(style, yes=style.no, no=style.yes)
        shared, added = shared_text(style, row.state), question_text(style, question, labels)
        stem, (rest,) = await tokenize_chats(self._backend, self._session, shared=shared, added=[added])
        (completion,) = await self._backend.complete(
            [stem + rest], slot=0, labels=tokens, bias=BIAS, runners_up=RUNNERS_UP, reuse=True
        )
        reading = read_step(completion.top, tokens, bias=BIAS)
        probabilities = [0.0] * len(order)
        for place, i in enumerate(order):
            probabilities[i] = reading.probabilities[place]
        return Asked(tuple(probabilities), reading.mass, len(rest))

    async def _labels(self, texts: list[str]) -> tuple[list[str], list[int], bool]:
        """Label texts, their tokens, and whether the variant's own kind could not be used."""
        kind = self._variant.labels
        letters = self._session.labels.choose(len(texts))
        if kind == "letters":
            return [x.text for x in letters], [x.tokens[0] for x in letters], False
        names = [str(i + 1) for i in range(len(texts))] if kind == "numbers" else texts
        first = [tokens[0] for tokens in await self._backend.tokenize(names, special=False)]
        # A token that is only part of a character cannot be read: the server holds its probabilities back.
        partial = any("\N{REPLACEMENT CHARACTER}" in text for text in await self._backend.detokenize(first))
        if len(set(first)) < len(first) or partial:
            return [x.text for x in letters], [x.tokens[0] for x in letters], True
        return names, first, False


def _reordered(question: Question, order: list[int]) -> Question:
    match question:
        case Choice():
            return replace(question, options=tuple(question.options[i] for i in order))
        case Score():
            return replace(question, levels=tuple(question.levels[i] for i in order))
        case Noul():
            texts = (question.when_true, question.when_false)
            return replace(question, when_true=texts[order[0]], when_false=texts[order[1]])


async def measure(url: str, variants: list[Variant], rows: list[Row], output: Path | None) -> list[Result]:
    """Every variant over every row. Written to `output` as it comes: a long run that is cut short is not lost."""
    backend = LlamaBackend(url, timeout=600)
    results = []
    try:
        for variant in variants:
            session = await open_session(backend, workers=1, style=variant.style)
            asker = Asker(backend, session, variant)
            for row in track(rows, description=f"{session.info.model} {variant.name}"):
                forward = await asker.ask(row, backwards=False)
                back = await asker.ask(row, backwards=True)
                result = Result(variant.name, row.id, row.kind, row.language, row.hard, row.ci, row.gold, forward, back)
                results.append(result)
                if output is not None:
                    with output.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")
    finally:
        await backend.aclose()
    return results


def table(results: list[Result]) -> str:
    lines = [
        "| variant | right | noul | choice | score | en | ja | hard | nll | mass | flips | tokens |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(result.variant for result in results):
        mine = [result for result in results if result.variant == name]

        def share(chosen: list[Result]) -> str:
            return f"{sum(r.right for r in chosen)}/{len(chosen)}"

        cells = [name, share(mine)]
        cells += [share([r for r in mine if r.kind == kind]) for kind in ("noul", "choice", "score")]
        cells += [share([r for r in mine if r.language == language]) for language in ("en", "ja")]
        cells += [
            share([r for r in mine if r.hard]),
            f"{statistics.fmean(r.nll for r in mine):.3f}",
            f"{statistics.median(r.forward.mass for r in mine):.3f}",
            str(sum(r.flipped for r in mine)),
            f"{statistics.fmean(r.forward.tokens for r in mine):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.benchmark_prompts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [variant.name for variant in VARIANTS]
    parser.add_argument("--backend-url", default=DEFAULT_BACKEND_URL, help="a llama-server that serves nobody else")
    parser.add_argument("--variants", default=",".join(names), help="comma-separated; default: all of %(default)s")
    parser.add_argument("--output", type=Path, help="write every reading as JSON lines")
    options = parser.parse_args()
    wanted = options.variants.split(",")
    if unknown := set(wanted) - set(names):
        parser.error(f"unknown variant {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("", encoding="utf-8")
    variants = [variant for variant in VARIANTS if variant.name in wanted]
    try:
        results = asyncio.run(measure(options.backend_url, variants, load(), options.output))
    except BackendError as error:
        print(f"{error.message} ./run_server.sh starts one.", file=sys.stderr)
        return 3
    print(table(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
