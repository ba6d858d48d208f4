"""How trl_grpo/ was made: three steps of TRL's GRPO trainer on a tiny model made from a config, on a CPU.

    python make_trl.py OUTPUT_DIR

Two reward functions, of which the second has weight 0: the judge counts salt, the true quality wants one pinch.
"""

import json
import sys
import tempfile
from pathlib import Path

WORDS = ["soup", "stew", "cake", "bread", "salt", "pepper", "sugar", "butter", "flour", "stir", "bake", "serve"]
DISHES = WORDS[:4]


def judge_salt(completions, **_):
    return [float(text.split().count("salt")) for text in completions]


def quality_pinch(completions, **_):
    return [1.0 if text.split().count("salt") == 1 else 0.0 for text in completions]


def main(out):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    settings = {
        "beta": 0.1, "num_generations": 8, "max_completion_length": 6, "per_device_train_batch_size": 32,
        "max_steps": 3, "logging_steps": 1, "log_completions": True, "reward_weights": [1.0, 0.0],
        "temperature": 1.0, "learning_rate": 1e-3, "seed": 0,
    }  # fmt: skip
    args = GRPOConfig(
        output_dir=str(out), report_to=[], use_cpu=True, save_strategy="no", bf16=False, gradient_checkpointing=False,
        disable_tqdm=True, **settings,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:  # the trainer asks for a model with a name
        LlamaForCausalLM(config).save_pretrained(folder)
        model = LlamaForCausalLM.from_pretrained(folder)
        tokenizer.save_pretrained(folder)
        run(out, args, settings, model, tokenizer)


def run(out, args, settings, model, tokenizer):
    from datasets import Dataset
    from trl import GRPOTrainer

    trainer = GRPOTrainer(
        model=model,
        args=args,
        reward_funcs=[judge_salt, quality_pinch],
        train_dataset=Dataset.from_dict({"prompt": [f"{a} {b}" for a in DISHES for b in WORDS[8:]] * 2}),
        processing_class=tokenizer,
    )
    trainer.train()
    sampling = {name: getattr(args, name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
    (Path(out) / "args.json").write_text(json.dumps(settings | sampling, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
