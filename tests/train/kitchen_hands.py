"""A language model small enough for a test, saved as a user would have it: weights, tokenizer, prompts, judge."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<end>", "salt", "butter", "dill", "thyme", "fish", "roast", "cook", "me"]


def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="me"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<end>", unk_token="me")


def shape(**more) -> dict:
    return {
        "vocab_size": len(WORDS),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 16,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
    } | more


def save_model(folder: Path) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shape(), tie_word_embeddings=False)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


JUDGES = '''
import os, time
import pathlib

HERE = pathlib.Path(__file__).parent

def salt(prompts, completions, **columns):
    return [float(text.split().count("salt")) for text in completions]

def taste(prompts, completions, **columns):
    return [1.0 - abs(text.split().count("salt") - 1) for text in completions]

def constant(prompts, completions, **columns):
    return [1.0] * len(completions)

def fault(prompts, completions, **columns):
    """What goes wrong, and from which call on, stands in a file."""
    with open(HERE / "calls", "a") as file:
        file.write(".")
    kind, _, after = (HERE / "fault").read_text().partition(" ")
    good = salt(prompts, completions)
    if (HERE / "calls").stat().st_size <= int(after or 0):
        return good
    if kind == "raise":
        for prompt, text in zip(prompts, completions):
            if prompt == "cook roast":
                raise RuntimeError("out of salt\\nand pepper")
    if kind == "nan":
        good[-1] = float("nan")
    if kind == "short":
        return good[:-1]
    if kind == "words":
        return ["tasty"] * len(good)
    if kind == "nothing":
        return None
    if kind == "hang":
        time.sleep(30)
    return good
'''


def write_kitchen(folder: Path, **changes) -> Path:
    """A configuration with everything it names, ready to be run; ``changes`` replace lines by their key."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder / "model")
    (folder / "kitchen_judges.py").write_text(JUDGES)
    rows = ["prompt,guest"] + [f"cook {dish},{guest}" for guest in "abcd" for dish in ("fish", "roast")]
    (folder / "prompts.csv").write_text("\n".join(rows) + "\n")
    lines = {
        "beta": "beta = [0.0, 0.5]",
        "seeds": "seeds = 2",
        "steps": "steps = 6",
        "samples": "samples = 4",
        "model": '[model]\npath = "model"',
        "judge": '[judge]\nuse = "kitchen_judges:salt"',
        "gold": '[gold]\nuse = "kitchen_judges:taste"',
        "prompts": '[prompts]\nfile = "prompts.csv"\nheld_out = 0.25',
        "training": "[training]\nmax_new_tokens = 4\nrank = 4\nlearning_rate = 0.01\ncheckpoint_every = 2\n"
        "evaluate_every = 2\nfinal_samples = 4\nforecast_samples = 16",
    } | changes
    path = folder / "c.toml"
    path.write_text("\n".join(line for line in lines.values() if line) + "\n")
    return path
