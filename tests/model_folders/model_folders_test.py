#!/usr/bin/env python3
"""model_folders_test.py TRAINCTL [FAMILY ...]: from a model folder to a job and back.

For each family, transformers writes a small random model. `init --from` makes a job of it, and the logits of the job equal
those of transformers. The job then trains a few steps under several plans, each of which exports a folder that
transformers opens, with the logits of the job.

Exits with 77 (Skipped) without PyTorch or transformers."""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from limits import limit  # noqa: E402

SKIPPED = 77

try:
    import numpy as np
    import safetensors.torch
    import torch
    import transformers
except ImportError as error:
    for environment in ("build/peers/bin/python3",):
        python = pathlib.Path(__file__).resolve().parents[2] / environment
        if python.exists() and pathlib.Path(sys.executable) != python:
            sys.exit(subprocess.run([python, *sys.argv], check=False).returncode)
    print(f"SKIPPED: {sys.executable} has no {error.name}; ./bootstrap peers installs it")
    sys.exit(SKIPPED)

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
TOLERANCE = limit(1e-4)
BATCH, LENGTH, VOCAB, STEPS = 4, 32, 104, 3
torch.manual_seed(1)
torch.set_num_threads(2)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

PLANS = {
    "one rank": ["launch.ranks=1"],
    "optimizer sharding": ["launch.ranks=2", "parallel={mode: data_parallel, optimizer_shard: {level: 3, min_kb: 0}}"],
    "tensor and pipeline": ["launch.ranks=4", "parallel={mode: semi_auto_parallel, stages: 2, micro_batches: 2, strategies: STRATEGIES}"],
}
PACKED = "{'h.*.qkv': [[1, 1, 1], [2, 1]BIAS], 'h.*.proj': [[1, 1, 2], [1, 2]PROJ]}"
APART = "{'h.*.q': [[1, 1, 1], [2, 1]BIAS], 'h.*.k': [[1, 1, 1], [2, 1]BIAS], 'h.*.v': [[1, 1, 1], [2, 1]BIAS]}"


def run(*words, expect=0):
    done = subprocess.run([TRAINCTL, *map(str, words)], capture_output=True, text=True, timeout=900)
    assert done.returncode == expect, f"{' '.join(map(str, words))}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def compare(what, ours, theirs):
    theirs = theirs.detach().float().numpy()
    assert ours.shape == theirs.shape, (what, ours.shape, theirs.shape)
    difference, largest = float(np.abs(ours - theirs).max()), float(np.abs(theirs).max())
    print(f"  {what}: largest difference {difference:.2g}, largest value {largest:.2g}")
    assert difference < TOLERANCE * max(1.0, largest), what


class Case:
    """A model folder and its job."""

    def __init__(self, name, model, folder, last, shard="200KB"):
        self.name, self.folder, self.last = name, folder, last
        self.hf, self.job = folder / "hf", folder / "job.yaml"
        self.make = type(model)
        self.model = model.eval().float()
        for parameter in self.model.parameters():  # rows of ones and zeros would hide a wrong order
            torch.nn.init.normal_(parameter, std=0.2)
        self.model.save_pretrained(self.hf, max_shard_size=shard)
        assert len(list(self.hf.glob("*.safetensors"))) > 1
        (self.hf / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        print(run("init", "--from", self.hf, "-o", self.job).strip())
        self.fields = ["precision=fp32", "launch.device=cpu", f"launch.log_dir={folder / 'runs'}",
                       "optimizer={type: adam, learning_rate: 0.001}", "train={steps: %d, checkpoint: auto}" % STEPS]

    def tokens(self, vocab=VOCAB):
        ids = np.random.default_rng(3).integers(0, vocab, BATCH * LENGTH + 1).astype(np.uint16)
        ids.tofile(self.folder / "tokens.bin")
        data = f"{{type: tokens, path: {self.folder / 'tokens.bin'}, length: {LENGTH}, batch: {BATCH}, shuffle: false}}"
        self.fields += [f"dataset={data}", f"validation={{dataset: {{path: {self.folder / 'tokens.bin'}}}}}"]
        self.input = torch.tensor(ids[:-1].astype(np.int64)).reshape(BATCH, LENGTH)

    def samples(self, data, classes):
        """Each sample with a label."""
        np.save(self.folder / "data.npy", data)
        np.save(self.folder / "labels.npy", np.arange(BATCH, dtype=np.int32) % classes)
        files = f"path: {self.folder}, fields: {{data: data.npy, label: labels.npy}}"
        self.fields = [field for field in self.fields if not field.startswith(("dataset", "validation"))]
        self.fields += [f"dataset={{type: npy, {files}, batch: {BATCH}, shuffle: false}}",
                        f"validation={{dataset: {{path: {self.folder}}}}}"]

    def predicted(self, *more):
        file = self.folder / "predicted.npy"
        file.unlink(missing_ok=True)
        checkpoint = () if "--checkpoint" in more else ("--checkpoint", "weights")
        run("predict", self.job, "--layer", self.last, "-o", file, *checkpoint, *more, *self.fields)
        return np.load(file)

    def logits(self, model):
        with torch.no_grad():
            return model(self.input).logits

    def check(self, plans):
        run("check", self.job, *self.fields)
        compare("imported", self.predicted(), self.logits(self.model))
        losses = {}
        for plan, words in plans.items():
            run("run", self.job, *self.fields, *words)
            latest = max((self.folder / "runs").glob("[0-9]*"), key=lambda each: int(each.name))
            rows = [json.loads(line) for line in (latest / "metrics.jsonl").read_text().splitlines()]
            losses[plan] = [row["loss"] for row in rows if "kind" not in row and "loss" in row]
            assert len(losses[plan]) == STEPS, losses
            out = self.folder / f"out_{latest.name}"
            run("checkpoint", "export", latest, "--map", "auto", "-o", f"{out}/", *([] if plan == "one rank" else ["--shard-size", "0.1"]))
            assert (out / "tokenizer_config.json").exists()
            assert len(list(out.glob("*.safetensors"))) > 1 or plan == "one rank"
            again, report = self.make.from_pretrained(out, output_loading_info=True)
            assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"], report
            for name in ("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob"):
                assert getattr(again.config, name, None) == getattr(self.model.config, name, None), name
            compare(f"{plan}: exported after {STEPS} steps", self.predicted("--checkpoint", latest), self.logits(again.eval()))
            moved = float((self.logits(again) - self.logits(self.model)).abs().max())
            assert moved > 1e-3, f"{STEPS} steps moved the logits by only {moved}"
        first = next(iter(losses.values()))
        for plan, each in losses.items():
            assert np.allclose(each, first, rtol=1e-4), losses


SIZES = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=6,
             num_key_value_heads=2, max_position_embeddings=64)
TOKENS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)


def plans(strategies):
    return {name: [word.replace("STRATEGIES", strategies) for word in words] for name, words in PLANS.items()}


def decoder(make, config, folder, last="head", strategies=PACKED, bias="", proj=""):
    case = Case(config.model_type, make(config), folder, last)
    case.tokens()
    case.check(plans(strategies.replace("BIAS", bias).replace("PROJ", proj)))


def gpt2(folder):
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=48, n_layer=4, n_head=4, resid_pdrop=0,
                                     embd_pdrop=0, attn_pdrop=0.1, **TOKENS)
    decoder(transformers.GPT2LMHeadModel, config, folder, bias=", [2]", proj=", [1]")


def llama(folder):
    decoder(transformers.LlamaForCausalLM, transformers.LlamaConfig(**SIZES, **TOKENS, attention_dropout=0.1), folder)


def smollm(folder):
    decoder(transformers.LlamaForCausalLM, transformers.LlamaConfig(**SIZES, **TOKENS, tie_word_embeddings=True, head_dim=16), folder)


def llama3(folder):
    scaling = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=16)
    decoder(transformers.LlamaForCausalLM, transformers.LlamaConfig(**SIZES, **TOKENS, rope_parameters=scaling), folder)


def yarn(folder):
    scaling = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16)
    decoder(transformers.LlamaForCausalLM, transformers.LlamaConfig(**SIZES, **TOKENS, rope_parameters=scaling), folder)


def mistral(folder):
    decoder(transformers.MistralForCausalLM, transformers.MistralConfig(**SIZES, **TOKENS, sliding_window=8), folder)


def mistral_without_window(folder):
    decoder(transformers.MistralForCausalLM, transformers.MistralConfig(**SIZES, **TOKENS, sliding_window=None), folder)


def qwen2(folder):
    decoder(transformers.Qwen2ForCausalLM, transformers.Qwen2Config(**SIZES, **TOKENS), folder, bias=", [2]")


def qwen3(folder):
    decoder(transformers.Qwen3ForCausalLM, transformers.Qwen3Config(**SIZES, **TOKENS, head_dim=16), folder, strategies=APART)


EXPERTS = "'h.*.moe': [[1, 1, 1], [1, 1], [2, 1, 1, 1], [2, 1, 1]]}"


def mixtral(folder):
    config = transformers.MixtralConfig(**SIZES, **TOKENS, num_local_experts=4, num_experts_per_tok=2, sliding_window=8)
    decoder(transformers.MixtralForCausalLM, config, folder, strategies=PACKED[:-1] + ", " + EXPERTS)


def qwen3_moe(folder):
    config = transformers.Qwen3MoeConfig(**SIZES, **TOKENS, head_dim=16, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24,
                                         norm_topk_prob=False)
    decoder(transformers.Qwen3MoeForCausalLM, config, folder, strategies=APART[:-1] + ", " + EXPERTS)


def olmoe(folder):
    config = transformers.OlmoeConfig(**SIZES, **TOKENS, num_experts=8, num_experts_per_tok=3)
    decoder(transformers.OlmoeForCausalLM, config, folder, strategies=APART[:-1] + ", " + EXPERTS)


OSS_CUTS = PACKED[:-1] + ", 'h.*.moe': [[1, 1, 1], [1, 1], [1], [2, 1, 1, 1], [2, 1, 1], [2, 1, 1], [2, 1]]}"
OSS = {**SIZES, "hidden_size": 64, "intermediate_size": 32, "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 8,
       "layer_types": ["sliding_attention", "full_attention"] * 2}
OSS_ROPE = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=16)


def gpt_oss(folder):
    config = transformers.GptOssConfig(**OSS, **TOKENS, rope_parameters=OSS_ROPE)
    decoder(transformers.GptOssForCausalLM, config, folder, strategies=OSS_CUTS, bias=", [2]", proj=", [1]")


def gpt_oss_mxfp4(folder):
    """Experts in MXFP4 are dequantized when they are read; everything else about them is an error."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**OSS, **TOKENS, rope_parameters=OSS_ROPE))
    case = Case("gpt_oss", model, folder, "head")
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = np.random.default_rng(5)
    for name in [each for each in tensors if each.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors[name].shape
        blocks = torch.tensor(random.integers(0, 256, (experts, rows, columns // 32, 16)).astype(np.uint8))
        scales = torch.tensor(random.integers(122, 125, (experts, rows, columns // 32)).astype(np.uint8))
        values = convert_moe_packed_tensors(blocks, scales).float()
        assert values.shape == tensors[name].shape
        dict(model.named_parameters())[name].data.copy_(values)
        del tensors[name]
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
    for file in case.hf.glob("*.safetensors*"):
        file.unlink()
    config = json.loads((case.hf / "config.json").read_text())

    def write(quantization, **changed):
        (case.hf / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
        safetensors.torch.save_file({**tensors, **changed}, case.hf / "model.safetensors", metadata={"format": "pt"})

    write({"quant_method": "mxfp4"})
    case.job.unlink()
    run("init", "--from", case.hf, "-o", case.job)
    case.tokens()
    case.check({"one rank": ["launch.ranks=1"]})
    scales = "model.layers.1.mlp.experts.down_proj_scales"
    write({"quant_method": "mxfp4"}, **{scales: tensors[scales][:, :, :0].contiguous()})
    assert "expected MXFP4" in run("check", case.job, *case.fields, expect=3)
    write({"quant_method": "bitsandbytes"})
    said = run("init", "--from", case.hf, expect=2)
    assert "quantization_config: {quant_method: bitsandbytes} is not supported" in said, said


LATENT = dict(kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10, num_key_value_heads=6)
LATENT_CUTS = "{'h.*.Q': [[1, 1, 1], [2, 1]], 'h.*.kv_up': [[1, 1, 1], [2, 1]], " + EXPERTS
MIXTURE = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, n_shared_experts=2, routed_scaling_factor=1.5)


def deepseek_v2_lite(folder):
    scaling = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=0.8)
    config = transformers.DeepseekV2Config(**{**SIZES, **LATENT}, **TOKENS, **MIXTURE, q_lora_rank=None, first_k_dense_replace=1,
                                           rope_parameters=scaling)
    decoder(transformers.DeepseekV2ForCausalLM, config, folder, strategies=LATENT_CUTS.replace("Q", "q"))


def deepseek_v2(folder):
    config = transformers.DeepseekV2Config(**{**SIZES, **LATENT}, **TOKENS, **MIXTURE, q_lora_rank=12, first_k_dense_replace=0,
                                           topk_method="group_limited_greedy", n_group=4, topk_group=2)
    decoder(transformers.DeepseekV2ForCausalLM, config, folder, strategies=LATENT_CUTS.replace("Q", "q_up"))


def deepseek_v3(folder):
    config = transformers.DeepseekV3Config(**{**SIZES, **LATENT}, **TOKENS, **MIXTURE, q_lora_rank=12, first_k_dense_replace=1, n_group=4,
                                           topk_group=2, norm_topk_prob=True, rope_scaling=None)
    model = transformers.DeepseekV3ForCausalLM(config)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, std=0.05)
    case = Case(config.model_type, model, folder, "head")
    case.tokens()
    case.check(plans(LATENT_CUTS.replace("Q", "q_up")))


def odd_mixtures(folder):
    """Odd numbers of experts, of heads and of groups; all experts of a token, or one; each expert on a rank of its own, and rows on two ranks."""
    sizes = {**SIZES, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1}
    latent = {**sizes, **LATENT, "qk_nope_head_dim": 4, "qk_rope_head_dim": 8, "v_head_dim": 20, "num_key_value_heads": 5}
    models = {
        5: transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **TOKENS, num_local_experts=5, num_experts_per_tok=5, tie_word_embeddings=True)),
        7: transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, **TOKENS, head_dim=12, num_experts=7, num_experts_per_tok=1,
                                                                        moe_intermediate_size=20, norm_topk_prob=True)),
        9: transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**latent, **TOKENS, **{**MIXTURE, "n_routed_experts": 9, "moe_intermediate_size": 20},
                                                                            q_lora_rank=None, first_k_dense_replace=1, n_group=3, topk_group=2,
                                                                            norm_topk_prob=False, rope_scaling=None)),
    }
    for experts, model in models.items():
        own = folder / str(experts)
        own.mkdir()
        case = Case(model.config.model_type, model, own, "head", "60KB")
        case.job.write_text(case.job.read_text().replace("type: moe,", f"type: moe, capacity: {experts},"))
        case.tokens()
        case.check({"one rank": ["launch.ranks=1"],
                    "experts": [f"launch.ranks={experts}", f"parallel={{mode: semi_auto_parallel, expert: {experts}}}"],
                    "rows": ["launch.ranks=2", "parallel={mode: semi_auto_parallel, context: 2, optimizer_shard: {level: 3, min_kb: 0}}"]})


def gemma2(folder):
    config = transformers.Gemma2Config(**SIZES, **TOKENS, head_dim=16, query_pre_attn_scalar=24, sliding_window=8)
    decoder(transformers.Gemma2ForCausalLM, config, folder, "logits")


def gemma3(folder):
    config = transformers.Gemma3TextConfig(**SIZES, **TOKENS, head_dim=16, query_pre_attn_scalar=24, sliding_window=8,
                                           layer_types=["sliding_attention", "full_attention"] * 2)
    decoder(transformers.Gemma3ForCausalLM, config, folder, strategies=APART)


def phi3(folder):
    decoder(transformers.Phi3ForCausalLM, transformers.Phi3Config(**SIZES, **TOKENS), folder)


def longrope(folder):
    half = SIZES["hidden_size"] // SIZES["num_attention_heads"] // 2
    scaling = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0 + 0.1 * i for i in range(half)],
                   long_factor=[2.0 + 0.3 * i for i in range(half)])
    config = transformers.Phi3Config(**SIZES, **TOKENS, rope_parameters=scaling, original_max_position_embeddings=16)
    decoder(transformers.Phi3ForCausalLM, config, folder)


ENCODER = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=6, hidden_dropout_prob=0,
               attention_probs_dropout_prob=0.1)


def bert_of(make, folder, last):
    config = transformers.BertConfig(vocab_size=VOCAB, max_position_embeddings=64, **ENCODER)
    case = Case("bert", make(config), folder, last)
    case.tokens()
    return case


def bert_masked(folder):
    bert_of(transformers.BertForMaskedLM, folder, "head").check(plans(APART.replace("BIAS", ", [2]")))


def bert_classifier(folder):
    case = bert_of(transformers.BertForSequenceClassification, folder, "classifier")
    case.samples(case.input.numpy().astype(np.int32), 2)
    case.check(plans(APART.replace("BIAS", ", [2]")))


def vit(folder):
    config = transformers.ViTConfig(image_size=32, patch_size=8, id2label={i: f"c{i}" for i in range(5)}, **ENCODER)
    case = Case("vit", transformers.ViTForImageClassification(config), folder, "classifier")
    images = np.random.default_rng(4).standard_normal((BATCH, 3, 32, 32)).astype(np.float32)
    case.input = torch.tensor(images)
    case.samples(images, 5)
    case.check(plans(APART.replace("BIAS", ", [2]")))


def defaults(folder):
    """Fields that config.json leaves out have the defaults of transformers for the family."""
    sizes = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=80, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
                 max_position_embeddings=64)
    experts = dict(num_local_experts=4, num_experts_per_tok=2)
    families = [(transformers.MistralForCausalLM, {}), (transformers.Qwen3ForCausalLM, {}), (transformers.Gemma2ForCausalLM, {}),
                (transformers.Gemma3ForCausalLM, {}), (transformers.Phi3ForCausalLM, dict(pad_token_id=0)),
                (transformers.MixtralForCausalLM, experts), (transformers.OlmoeForCausalLM, dict(num_experts=4, num_experts_per_tok=2)),
                (transformers.GptOssForCausalLM, experts)]
    for make, more in families:
        config = make.config_class(**sizes, **more)
        case = Case(config.model_type, make(config), folder / config.model_type, "logits" if config.model_type == "gemma2" else "head", "20KB")
        (case.hf / "config.json").write_text(json.dumps({**sizes, **more, "model_type": config.model_type}))
        case.job.unlink()
        run("init", "--from", case.hf, "-o", case.job)
        case.tokens()
        compare(config.model_type, case.predicted(), case.logits(case.model))


def refused(folder):
    """Values that no layer computes are named; dropouts and unknown fields are notes."""
    hf = folder / "hf"
    hf.mkdir()
    base = json.loads(json.dumps(transformers.LlamaConfig(**SIZES, **TOKENS).to_dict()))

    def init(expect, **fields):
        (hf / "config.json").write_text(json.dumps({**base, **fields}))
        return run("init", "--from", hf, expect=expect)

    assert "unknown model_type 'lama'" in init(2, model_type="lama")
    assert "did you mean" in init(2, model_type="lama")
    said = init(2, rope_parameters=None, rope_scaling={"type": "dynamic", "factor": 2.0})
    assert "rope_scaling: {type: dynamic, factor: 2.0} is not supported" in said and "it has no effect" in said, said
    assert "partial_rotary_factor: 0.5 is not supported" in init(2, partial_rotary_factor=0.5)
    assert "hidden_act: mish is not supported" in init(2, hidden_act="mish")
    assert "num_hidden_layers: many is not an integer" in init(2, num_hidden_layers="many")
    assert "quantization_config" in init(2, quantization_config={"bits": 4})
    said = init(0, resid_pdrop=0.2, attention_dropout=0.1, brand_new_feature=3)
    assert "resid_pdrop: 0.2 is left out" in said and "ignores: brand_new_feature" in said, said
    assert "attention_dropout" not in said and "dropout: 0.1" in said, said


FAMILIES = {each.__name__: each for each in (gpt2, llama, smollm, llama3, yarn, mistral, mistral_without_window, qwen2, qwen3, mixtral,
                                              qwen3_moe, olmoe, gpt_oss, gpt_oss_mxfp4, deepseek_v2_lite, deepseek_v2, deepseek_v3, odd_mixtures, gemma2, gemma3, phi3,
                                              longrope, bert_masked, bert_classifier, vit, defaults, refused)}


def main():
    for name in sys.argv[2:] or FAMILIES:
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            FAMILIES[name](pathlib.Path(scratch))
    print("the same logits in both directions")


main()
