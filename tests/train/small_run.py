"""A small training run that tests share, in this process or in one that can be killed."""

import os
import signal
import sys
from dataclasses import fields, replace

import torch
from tiny import tiny

from kleash.cli._signals import Ended, unwinding
from kleash.errors import KleashError
from kleash.train.asking import PromptSet, Task
from kleash.train.lm import train_lm
from kleash.train.options import Training

STEPS = 30  # of the runs that are killed
PROMPTS = PromptSet(ids=[[1, 2, 3], [4]], texts=["soup", "stew"], columns={"liked": [3, 5]})


def judge(prompts, completions, completion_ids, liked, **columns):
    """Points for the token that the prompt's column likes."""
    assert len(prompts) == len(completions) == len(completion_ids) == len(liked)
    return [float(ids.count(token)) for ids, token in zip(completion_ids, liked, strict=True)]


def gold(prompts, completions, liked, **columns):
    return [-abs(text.split().count(str(token)) - 1.0) for text, token in zip(completions, liked, strict=True)]


TASK = Task(prompts=PROMPTS, judge=judge, gold=gold, decode=lambda ids: " ".join(map(str, ids)), eos=[0])
ASKED = {
    "beta": [0.0, 0.5, 4.0],
    "max_new_tokens": 4,
    "seeds": 2,
    "steps": 20,
    "samples": 4,
    "rank": 2,
    "learning_rate": 1e-2,
    "evaluate_every": 5,
    "final_samples": 8,
    "checkpoint_every": 3,
}


def run(kind="llama", **changes):
    """Changes of the task, of the options and of what `train_lm` takes beside them, by name."""
    task = {f.name: changes.pop(f.name) for f in fields(Task) if f.name in changes}
    asked = {f.name: changes.pop(f.name) for f in fields(Training) if f.name in changes}
    return train_lm(tiny(kind), replace(TASK, **task), Training(**(ASKED | asked)), **changes)


def in_another_process(folder, options, calls):
    """A run that sends the number of each of the judge's calls, and may be killed; exits as the command line does."""
    torch.set_num_threads(1)
    count = 0

    def telling(**columns):
        nonlocal count
        count += 1
        for name in {"SIGINT", "SIGTERM"} & set(options):
            if count == 8:
                os.kill(os.getpid(), getattr(signal, name))
        calls.send(count)
        return judge(**columns)

    try:
        with unwinding():
            run(out=folder, judge=telling, resume="resume" in options, steps=STEPS)
    except Ended as stop:
        sys.exit(128 + stop.number)
    except KleashError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
