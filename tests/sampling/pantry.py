"""A model small enough for a test with a chat template, an adapter for it, judges, and a run that can be killed."""

import os
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kleash.sampling.run import sample
from kleash.train.adapters import attach

WORDS = ["<end>", "salt", "butter", "dill", "thyme", "fish", "roast", "cook", "me", "user", "chef"]
CHAT = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}{% if add_generation_prompt %}chef {% endif %}"
PROMPTS = [{"prompt": "cook fish", "guest": "a"}, {"prompt": "cook me roast with salt", "guest": "b"}]
PROMPTS += [{"prompt": f"cook {word}", "guest": "c"} for word in WORDS[1:5]]
LENGTH = 12


def save_model(folder: Path, *, chat: bool = True, spread: float = 0.3) -> Path:
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="me"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<end>",
        pad_token="<end>",
        unk_token="me",
        chat_template=CHAT if chat else None,
    )
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
    config = LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=64, initializer_range=spread, **shape, **ends)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_adapter(folder: Path, model: Path) -> Path:
    adapters = attach(LlamaForCausalLM.from_pretrained(model), groups=1, rank=4, targets=["q_proj", "up_proj"])
    with torch.no_grad():
        adapters.values += 0.2 * torch.randn(adapters.values.shape, generator=torch.Generator().manual_seed(1))
    adapters.export(0, folder)
    return folder


def salt(prompts, completions, **columns):
    """Salt in the answer."""
    return [float(text.split().count("salt")) for text in completions]


def variety(prompts, completions, **columns):
    return [float(len(set(text.split()))) for text in completions]


def in_another_process(model, out, resume, calls):
    """A run that tells of every call of the judge, so that it can be killed in the middle of it."""
    torch.set_num_threads(1)

    def telling(prompts, completions, **columns):
        calls.send(prompts[0])
        time.sleep(0.01)
        return salt(prompts, completions)

    sample(
        PROMPTS, model=model, judge={"salt": telling}, gold=variety, k=5, max_new_tokens=LENGTH, out=out, resume=resume
    )
    os._exit(0)
