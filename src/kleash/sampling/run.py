"""From prompts, a model and a judge to scored samples: draw, keep, judge, write."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kleash import _checks
from kleash.errors import DataError
from kleash.sampling.journal import Journal
from kleash.sampling.labels import labelled_before
from kleash.sampling.model import Model, NotAsAskedError, Server
from kleash.sampling.prompts import Prompt, as_prompts, read_prompts
from kleash.sampling.result import REFERENCE, Sampled, checked_path, samples_frame, write_samples
from kleash.sampling.scoring import Given, Scorer, load_scorers
from kleash.sampling.sources import answering
from kleash.train.language import ModelSource

__all__ = ["Progress", "sample"]

Progress = Callable[[int, int, int], None]
"""Called with answers there are, answers there will be, and tokens drawn in this call."""


def sample(
    prompts: str | Path | Sequence[str | Mapping[str, Any]],
    *,
    model: str | Path | ModelSource,
    judge: Given | Sequence[Given] | Mapping[str, Given],
    gold: Given | None = None,
    url: str | Server | None = None,
    adapter: str | Path | None = None,
    k: int = 24,
    max_new_tokens: int = 256,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Sampled:
    """Draw answers to prompts at temperature 1 over the whole vocabulary, have them judged, keep everything.

    Use it for the samples that :func:`kleash.forecast` reads. Answers of a model on this machine depend on seed, prompt
    and draw alone (:mod:`kleash.sampling.local`).

    Parameters
    ----------
    prompts
        A file (CSV, JSONL, Parquet; ``-`` is standard input), or texts or rows: ``prompt`` (a text or chat messages),
        optional ``prompt_id``, further columns for the judges.
    model
        A folder of transformers, a GGUF file, ``package:file.gguf``, or a :class:`ModelSource`; with ``url`` the
        model's name there.
    judge
        ``"[NAME=]module:function[:WEIGHT]"``, ``"length"``, ``"lexicon"``, ``"reward-model:FOLDER"``, a function with
        TRL's signature, or several of them; the reward is their weighted sum.
    gold
        True quality in the same form; it has no weight.
    url
        Where a server with OpenAI's interface is, such as ``http://localhost:8000/v1``.
    adapter
        A folder of PEFT's: the answers are those of the adapted model, and the model without it is the reference.
    k
        Answers to each prompt.
    max_new_tokens
        The most tokens of an answer.
    seed
        Start of all randomness.
    out
        A .parquet or .jsonl file. Beside it a journal (``FILE.journal``) keeps every answer and score as it comes.
    resume
        Go on with the journal that is there: draw what is missing, ask the judges what they have not been asked.
    progress
        Called after every batch.

    Returns
    -------
    Sampled

    Raises
    ------
    OptionError, ConfigError, MissingFileError, DependencyError
        Something that cannot be used; nothing is drawn.
    DataError
        A judge that fails. What was drawn stays in the journal.

    Examples
    --------
    >>> sampled = kleash.sample(["Hi!"], model="my-model", judge="length", k=8)  # doctest: +SKIP
    >>> kleash.forecast("samples.parquet")  # doctest: +SKIP
    """
    read, inputs = (read_prompts(prompts)) if isinstance(prompts, str | Path) else (as_prompts(prompts), None)
    k = _checks.integer(k, name="k", at_least=2)
    length = _checks.integer(max_new_tokens, name="max_new_tokens", at_least=1)
    seed = _checks.integer(seed, name="seed", at_least=0)
    path = None if out is None else checked_path(Path(out))
    asked, load = answering(model, url=url, adapter=adapter, max_new_tokens=length, seed=seed)
    judges = load_scorers(judge, role="judge")
    golds = [] if gold is None else load_scorers(gold, role="gold")
    journal = Journal.opened(
        None if path is None else path.with_name(path.name + ".journal"), asked=asked, resume=resume
    )
    try:
        run = _Run(prompts=read, k=k, scorers=[*judges, *golds], journal=journal, progress=progress)
        run.go(load)
    finally:
        journal.close()
    source = REFERENCE if adapter is None else Path(adapter).resolve().name
    frame = samples_frame(read, journal, k=k, judges=judges, gold=golds[0] if golds else None, source=source)
    if path is not None:
        frame = labelled_before(frame, path) if gold is None else frame
        write_samples(frame, path)
    return Sampled(
        frame=frame,
        out=path,
        drawn=run.drawn,
        tokens=run.tokens,
        prompt_tokens=run.prompt_tokens,
        seconds=run.seconds,
        sampling=run.sampling,
        inputs=() if inputs is None else (inputs,),
    )


@dataclass(kw_only=True)
class _Run:
    """One call: what is missing is drawn and judged, and kept as it comes."""

    prompts: Sequence[Prompt]
    k: int
    scorers: Sequence[Scorer]
    journal: Journal
    progress: Progress | None
    drawn: int = 0
    tokens: int = 0
    prompt_tokens: int | None = 0
    sampling: str = "temperature 1, whole vocabulary"
    failed: DataError | None = None
    there: int = 0
    seconds: float = 0.0

    def go(self, load: Callable[[], Model]) -> None:
        """Draw and judge until nothing is missing; a judge that fails ends it when what is on its way has come."""
        missing = [(p, d) for p in self.prompts for d in range(self.k) if (p.key, d) not in self.journal.answers]
        self.there = len(self.prompts) * self.k - len(missing)
        for prompt in self.prompts:
            self._judge(prompt)
        if missing and self.failed is None:
            self._draw(load(), missing, {prompt.key: prompt for prompt in self.prompts})
        if self.failed is not None:
            raise self.failed

    def _draw(self, model: Model, missing: Sequence[tuple[Prompt, int]], by_key: Mapping[str, Prompt]) -> None:
        started = time.monotonic()
        self._tell()
        try:
            for answers in model.draw(missing, stopped=lambda: self.failed is not None):
                self.journal.add(answers)
                self.drawn += len(answers)
                self.there += len(answers)
                self.tokens += sum(answer.n_tokens or 0 for answer in answers)
                self._tell()
                for key in dict.fromkeys(answer.prompt for answer in answers):
                    self._judge(by_key[key])
        except NotAsAskedError:
            self.journal.set_aside()
            raise
        self.seconds = time.monotonic() - started
        self.prompt_tokens, self.sampling = model.prompt_tokens(), model.sampling()

    def _judge(self, prompt: Prompt) -> None:
        """Ask about the answers to a prompt, once all are there, what has not been asked."""
        drawn = [self.journal.answers.get((prompt.key, draw)) for draw in range(self.k)]
        if self.failed is not None or None in drawn:
            return
        for scorer in self.scorers:
            new = [a for a in drawn if a is not None and (scorer.key, prompt.key, a.draw) not in self.journal.scores]
            if not new:
                continue
            try:
                self.journal.judged(scorer.key, prompt.key, scorer.ask(prompt, new))
            except DataError as error:
                kept = self.journal.path
                fix = "" if kept is None else f"; what was drawn is in {kept}: mend the judge, then --resume"
                self.failed = DataError(f"{error}{fix}")
                self.failed.__cause__ = error
                return

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(self.there, len(self.prompts) * self.k, self.tokens)
