"""Tiny random models of three kinds, made from configurations; nothing is downloaded."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 11
KINDS = ("llama", "llama-tied", "qwen2", "gpt2")


def tiny(kind="llama", *, seed=0, vocabulary=VOCABULARY, positions=64, spread=0.3):
    """A model in float32 whose next tokens differ clearly from uniform."""
    shape = {
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": positions,
        "initializer_range": spread,
    }
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    torch.manual_seed(seed)
    if kind in ("llama", "llama-tied"):
        model = LlamaForCausalLM(LlamaConfig(**shape, **ends, tie_word_embeddings=kind == "llama-tied"))
    elif kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**shape, **ends, tie_word_embeddings=False))
        with torch.no_grad():  # biases start at 0, where a forgotten one would not show
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(std=spread)
    else:
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=vocabulary,
                n_embd=16,
                n_layer=2,
                n_head=2,
                n_positions=positions,
                initializer_range=spread,
                **ends,
            )
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(std=spread)
    return model.eval()


def shake(adapters, *, seed=1, size=0.2):
    """Adapters away from their start, each group differently."""
    noise = torch.randn(adapters.values.shape, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        adapters.values += size * noise
