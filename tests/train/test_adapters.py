"""Grouped adapters against PEFT, one policy at a time."""

import json
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny import KINDS, VOCABULARY, shake, tiny  # noqa: E402

from kleash.errors import KleashError, OptionError, ShapeError  # noqa: E402
from kleash.train.adapters import GroupedLinear, attach  # noqa: E402
from kleash.train.decoder import Decoder, head_limit  # noqa: E402


def token_ids(rows=2, length=7):
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(3))


def load_with_peft(kind, folder):
    peft = pytest.importorskip("peft")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's advice on tied heads and GPT-2's layout
        return peft.PeftModel.from_pretrained(tiny(kind), folder)


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_adapter_is_the_same_policy_in_peft(tmp_path, kind, rank):
    model, ids = tiny(kind), token_ids()
    adapters = attach(model, groups=3, rank=rank, alpha=3.0)
    shake(adapters)
    with torch.no_grad():
        grouped = model(input_ids=ids.repeat(3, 1)).logits.reshape(3, *ids.shape, -1)
    assert not torch.allclose(grouped[0], grouped[1], atol=0.1)
    for group in range(3):
        adapters.export(group, tmp_path / str(group))
        with torch.no_grad():
            alone = load_with_peft(kind, tmp_path / str(group))(input_ids=ids).logits
        torch.testing.assert_close(grouped[group], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_multiplied_out_or_apart_is_one_function_with_one_gradient(kind, small):
    model, ids = tiny(kind), token_ids().repeat(2, 1)
    adapters = attach(model, groups=2, rank=2)
    shake(adapters)
    results = []
    for choice in (small, not small):
        for layer in adapters.layers.values():
            layer.small = choice
        with adapters.merged():
            logits = model(input_ids=ids).logits
            adapters.backward(logits.square().mean())
        results.append((logits.detach().clone(), adapters.gradients.clone()))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=2e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-3, atol=1e-5)
    assert results[0][1].abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_switched_off_the_model_is_the_reference(kind):
    ids = token_ids()
    with torch.no_grad():
        plain = tiny(kind)(input_ids=ids).logits
        model = tiny(kind)
        adapters = attach(model, groups=3, rank=4)
        started = model(input_ids=ids.repeat(3, 1)).logits.reshape(3, *ids.shape, -1)
        shake(adapters)
        with adapters.reference():
            reference = model(input_ids=ids).logits
        adapters.detach()
        back = model(input_ids=ids).logits
    assert torch.equal(reference, plain)
    assert torch.equal(back, plain)
    torch.testing.assert_close(started, plain.expand_as(started), rtol=0, atol=1e-5)


def test_a_groups_start_depends_on_its_seed_index_alone():
    many = attach(tiny(), groups=[0, 1, 0], rank=2, seed=5)
    assert torch.equal(many.values[0], many.values[2])
    assert not torch.equal(many.values[0], many.values[1])
    assert torch.equal(attach(tiny(), groups=[1], rank=2, seed=5).values[0], many.values[1])
    assert not torch.equal(attach(tiny(), groups=[1], rank=2, seed=6).values[0], many.values[1])


def test_gradients_of_groups_are_apart():
    model, ids = tiny(), token_ids().repeat(2, 1)
    adapters = attach(model, groups=2, rank=2)
    shake(adapters)
    adapters.backward(model(input_ids=ids).logits[:2].square().sum())
    assert adapters.gradients[0].abs().max() > 0
    assert adapters.gradients[1].abs().max() == 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_targets_are_chosen_by_name(tmp_path):
    adapters = attach(tiny(), groups=1, targets=["q_proj", "model.layers.1.mlp.up_proj"])
    assert adapters.names == (
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.mlp.up_proj",
    )
    adapters.export(0, tmp_path)
    told = json.loads((tmp_path / "adapter_config.json").read_text())
    assert told["target_modules"] == list(adapters.names)  # up_proj alone would name the other layer too
    assert told["fan_in_fan_out"] is False
    loaded = load_with_peft("llama", tmp_path)
    assert sum("lora_A" in name for name, _ in loaded.named_parameters()) == 3


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        (["q_prj"], "no linear layer 'q_prj'; did you mean 'q_proj'?"),
        ("everything", "no linear layer 'everything'; known: "),
        ([], "expected names of layers, or all-linear, got none"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(targets, told):
    with pytest.raises(OptionError, match=told.replace("?", r"\?")):
        attach(tiny(), groups=1, targets=targets)


def test_wrong_uses_are_named(tmp_path):
    model = tiny()
    adapters = attach(model, groups=2)
    with pytest.raises(ShapeError, match="no adapters yet"):
        attach(model, groups=2)
    with pytest.raises(OptionError, match="expected 0 to 1, got 2"):
        adapters.export(2, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(KleashError, match="cannot be made"):
        adapters.export(0, tmp_path / "file")
    with pytest.raises(OptionError, match="rank"):
        attach(tiny(), groups=1, rank=0)


def test_a_model_that_changes_its_logits_after_the_head_is_refused():
    model = tiny()
    head = model.lm_head

    class Capped(torch.nn.Module):
        def forward(self, *arguments, **named):
            out = type(model).forward(model, *arguments, **named)
            out.logits = 2.0 * torch.tanh(out.logits / 2.0)
            return out

    capped = Capped()
    capped.model, capped.config, capped.base_model_prefix = model.model, model.config, "model"
    capped.get_output_embeddings = lambda: head
    with pytest.raises(OptionError, match="logits changed after it"):
        Decoder(capped)
    Decoder(model)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_on_a_frozen_heads_logits_holds_and_is_not_idle(kind):
    model = tiny(kind)
    limit = head_limit(model)
    adapters = attach(model, groups=4, targets=["down_proj", "o_proj"] if kind != "gpt2" else ["c_proj"])
    torch.manual_seed(0)
    top, best = 0.0, torch.zeros(VOCABULARY)
    for size in (0.3, 3.0, 30.0):
        shake(adapters, size=size)
        with torch.no_grad():
            logits = model(input_ids=token_ids(rows=8, length=20).repeat(4, 1)).logits
        top = max(top, float(logits.abs().max()))
        best = torch.maximum(best, logits.softmax(-1).reshape(-1, VOCABULARY).max(0).values)
    assert 0.4 * limit.logit < top <= limit.logit
    assert float(best.min()) <= limit.probability
    wide = tiny(kind, vocabulary=5000)
    assert 0 < head_limit(wide).probability <= 1


def test_layers_say_what_they_are():
    model = tiny("gpt2")
    attach(model, groups=2)
    layer = model.transformer.h[0].attn.c_attn
    assert isinstance(layer, GroupedLinear)
    assert layer.transposed
    assert layer.weight is layer.base.weight
