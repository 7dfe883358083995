#!/usr/bin/env python3
"""peft_test.py TRAINCTL [CASE ...]: adapters against PEFT, which trains the same models from the same folders.

For Llama and GPT-2 (whose products are stored transposed), PEFT makes a folder of adapters with random values. A job starts from it
(adapters.lora.from), and its losses on one rank and under sharded plans are PEFT's. PEFT opens the folder that is exported from the
checkpoint, and computes the logits of the job. The same holds for DoRA, for a base whose weights are stored in 4 or 8 bits (PEFT then trains
beside weights that this file rounds with numpy), and for several adapters of which each row of a batch uses one.

Exits with 77 (Skipped) without PyTorch, transformers or PEFT."""

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
    import peft
    import torch
    import transformers
except ImportError as error:
    python = pathlib.Path(__file__).resolve().parents[2] / "build/peers/bin/python3"
    if python.exists() and pathlib.Path(sys.executable) != python:
        sys.exit(subprocess.run([python, *sys.argv], check=False).returncode)
    print(f"SKIPPED: {sys.executable} has no {error.name}")
    sys.exit(SKIPPED)

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
TOLERANCE = limit(1e-5)
BATCH, LENGTH, VOCAB, STEPS, RANK, ALPHA = 4, 16, 104, 5, 4, 10
LEARNING_RATE, DECAY = 0.003, 0.01
torch.manual_seed(1)
torch.set_num_threads(2)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TOKENS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
SIZES = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
             max_position_embeddings=64)
PLANS = {"one rank": [], "pipeline": ["launch.ranks=2", "parallel={mode: data_parallel, stages: 2, micro_batches: 2}"],
         "level 3": ["launch.ranks=2", "parallel={mode: data_parallel, optimizer_shard: {level: 3, min_kb: 0}}"],
         "tensor parallel": ["launch.ranks=2", "parallel={mode: semi_auto_parallel, optimizer_shard: {level: 1, min_kb: 0}, strategies: STRATEGIES}"]}


def run(*words, expect=0):
    done = subprocess.run([TRAINCTL, *map(str, words)], capture_output=True, text=True, timeout=900)
    assert done.returncode == expect, f"{' '.join(map(str, words))}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def largest_difference(ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return float(np.abs(ours - theirs).max())


class Case:
    def __init__(self, model, folder):
        self.folder, self.hf, self.job = folder, folder / "hf", folder / "job.yaml"
        self.make = type(model)
        for parameter in model.parameters():  # rows of ones and zeros would hide a wrong order
            torch.nn.init.normal_(parameter, std=0.1)
        model.save_pretrained(self.hf)
        run("init", "--from", self.hf, "-o", self.job)
        ids = np.random.default_rng(3).integers(0, VOCAB, STEPS * BATCH * LENGTH + 1)
        ids.astype(np.uint16).tofile(folder / "tokens.bin")
        data = f"{{type: tokens, path: {folder / 'tokens.bin'}, length: {LENGTH}, batch: {BATCH}, shuffle: false}}"
        adamw = f"{{type: adamw, learning_rate: {LEARNING_RATE}, weight_decay: {DECAY}}}"
        self.fields = ["precision=fp32", "launch.device=cpu", f"launch.log_dir={folder / 'runs'}", f"dataset={data}", f"optimizer={adamw}",
                       f"validation={{dataset: {{path: {folder / 'tokens.bin'}}}}}", f"train={{steps: {STEPS}, checkpoint: {{}}}}"]
        self.inputs = torch.tensor(ids[:-1]).reshape(STEPS, BATCH, LENGTH)
        self.labels = torch.tensor(ids[1:]).reshape(STEPS, BATCH, LENGTH)
        self.rounded = lambda name, weight: weight  # the values that a frozen weight of this name has where it is stored in fewer bits

    def base(self):
        model = self.make.from_pretrained(self.hf).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.tensor(self.rounded(name, parameter.numpy())))
        return model

    def adapted(self, modules, tied=(), **options):
        """A model of PEFT with random adapters, and its folder. `tied`: modules of a block that share their A."""
        config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=modules, lora_dropout=0.0, **options)
        model = peft.get_peft_model(self.base(), config)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        for block in model.base_model.model.model.layers if tied else []:
            first, *others = [getattr(block.self_attn, name).lora_A["default"] for name in tied]
            for other in others:
                other.weight = first.weight
        folder = self.folder / f"peft_{len(list(self.folder.glob('peft_*')))}"
        model.save_pretrained(folder, save_embedding_layers=False)
        return model, folder

    def theirs(self, model):
        """Losses of PEFT's training, and the logits after it."""
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE, weight_decay=DECAY)
        losses = []
        for inputs, labels in zip(self.inputs, self.labels):
            loss = torch.nn.functional.cross_entropy(model(inputs).logits.reshape(-1, VOCAB), labels.reshape(-1))
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return losses, self.logits(model)

    def logits(self, model):
        with torch.no_grad():
            return model(self.inputs.reshape(-1, LENGTH)).logits.numpy()

    def adapters(self, layers, start, rank=RANK, alpha=ALPHA, more=""):
        return f"adapters={{lora: {{layers: {layers}, rank: {rank}, alpha: {alpha}, from: {start}{more}}}}}"

    def latest(self):
        return max((self.folder / "runs").glob("[0-9]*"), key=lambda each: int(each.name))

    def ours(self, *words):
        run("run", self.job, *self.fields, *words)
        rows = [json.loads(line) for line in (self.latest() / "metrics.jsonl").read_text().splitlines()]
        losses = [row["loss"] for row in rows if "kind" not in row and "loss" in row]
        assert len(losses) == STEPS, losses
        return losses

    def predicted(self, *words):
        file = self.folder / "predicted.npy"
        file.unlink(missing_ok=True)
        checkpoint = () if "--checkpoint" in words else ("--checkpoint", "weights")
        run("predict", self.job, "--layer", "head", "-o", file, *checkpoint, *self.fields, *words)
        return np.load(file)

    def trains_alike(self, modules, layers, strategies, tied=(), more="", **options):
        model, start = self.adapted(modules, tied, **options)
        adapters = self.adapters(layers, start, more=more)
        off = largest_difference(self.predicted(adapters), self.logits(model))
        print(f"  logits at the start: within {off:.1e}")
        assert off < TOLERANCE
        losses, after = self.theirs(model)
        for plan, words in PLANS.items():
            ours = self.ours(adapters, *[word.replace("STRATEGIES", strategies) for word in words])
            off = largest_difference(ours, losses)
            print(f"  {plan}: losses within {off:.1e} of {losses[0]:.4f} to {losses[-1]:.4f}")
            assert off < TOLERANCE, (plan, ours, losses)
            out = self.folder / f"out_{self.latest().name}"
            print("  " + run("checkpoint", "export", self.latest(), "--adapters", "-o", f"{out}/").strip())
            opened = peft.PeftModel.from_pretrained(self.base(), out).eval()
            exported, trained = self.logits(opened), self.predicted(adapters, "--checkpoint", self.latest())
            off = largest_difference(exported, trained)
            print(f"  {plan}: the exported folder gives the logits within {off:.1e}; they are within "
                  f"{largest_difference(trained, after):.1e} of those that PEFT trained")
            assert off < TOLERANCE and largest_difference(trained, after) < 1e-3
            again = largest_difference(self.predicted(self.adapters(layers, out, more=more)), trained)
            assert again < TOLERANCE, again
            merged = self.folder / f"merged_{self.latest().name}"
            run("checkpoint", "export", self.latest(), "--map", "auto", "-o", f"{merged}/")
            off = largest_difference(self.logits(self.make.from_pretrained(merged).eval()), trained)
            assert off < 5 * TOLERANCE, off


def llama(folder):
    case = Case(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **TOKENS)), folder)
    layers = "['h.*.qkv', 'h.*.proj', 'h.*.gate', 'h.*.up', 'h.*.down', head]"
    strategies = "{'h.*.qkv': [[1, 1, 1], [2, 1]], 'h.*.proj': [[1, 1, 2], [1, 2]], 'h.*.gate': [[1, 1, 1], [2, 1]]}"
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
    case.trains_alike(modules, layers, strategies, tied=("q_proj", "k_proj", "v_proj"))


def gpt2(folder):
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
                                     attn_pdrop=0, **TOKENS)
    case = Case(transformers.GPT2LMHeadModel(config), folder)
    strategies = "{'h.*.qkv': [[1, 1, 1], [2, 1], [2]], 'h.*.up': [[1, 1, 1], [2, 1], [2]]}"
    case.trains_alike(["c_attn", "c_proj", "c_fc"], "['h.*.qkv', 'h.*.proj', 'h.*.up', 'h.*.down']", strategies)


def dora(folder):
    case = Case(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **TOKENS)), folder)
    layers = "['h.*.qkv', 'h.*.proj', 'h.*.gate', 'h.*.up', 'h.*.down']"
    strategies = "{'h.*.qkv': [[1, 1, 1], [2, 1]], 'h.*.proj': [[1, 1, 2], [1, 2]], 'h.*.gate': [[1, 1, 1], [2, 1]]}"
    norms = f"adapters={{lora: {{layers: {layers}, rank: {RANK}, alpha: {ALPHA}, dora: true, dropout: 0.1}}}}"
    off = largest_difference(case.predicted(norms), case.logits(case.base()))
    print(f"  without a folder the norms are those of the base: its logits within {off:.1e}")
    assert off < TOLERANCE
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    case.trains_alike(modules, layers, strategies, tied=("q_proj", "k_proj", "v_proj"), more=", dora: true", use_dora=True)


def dora_gpt2(folder):
    """Layers with biases, which the norms do not scale, and transposed weights."""
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
                                     attn_pdrop=0, **TOKENS)
    case = Case(transformers.GPT2LMHeadModel(config), folder)
    strategies = "{'h.*.qkv': [[1, 1, 1], [2, 1], [2]], 'h.*.up': [[1, 1, 1], [2, 1], [2]]}"
    case.trains_alike(["c_attn", "c_proj", "c_fc"], "['h.*.qkv', 'h.*.proj', 'h.*.up', 'h.*.down']", strategies, more=", dora: true",
                      use_dora=True)


NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32)


def rounded_to(kind, weight):
    """Blocks of 64 elements of a row, each with its largest magnitude."""
    blocks = weight.reshape(-1, 64).astype(np.float32)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    if kind == "int8":
        codes = np.rint(np.float32(127) * (blocks / largest))
        return (codes * (largest / np.float32(127))).astype(np.float32).reshape(weight.shape)
    nearest = np.abs((blocks / largest)[:, :, None] - NF4).argmin(axis=2)
    return (NF4[nearest] * largest).reshape(weight.shape)


def bitsandbytes_agrees(weight):
    try:
        import bitsandbytes.functional as functional
        codes, state = functional.quantize_4bit(torch.tensor(weight), blocksize=64, quant_type="nf4")
        theirs = functional.dequantize_4bit(codes, state).numpy()
    except Exception as error:  # without the package, or without its kernels for CPUs
        return print(f"  not compared with bitsandbytes: {type(error).__name__} {error}")
    different = int((theirs != rounded_to("nf4", weight)).sum())
    print(f"  bitsandbytes rounds {different} of {weight.size} elements otherwise (between two codes)")
    assert different <= weight.size // 10000


def stored_in_fewer_bits(folder, kind, **options):
    sizes = {**SIZES, "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4}
    case = Case(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **TOKENS)), folder)
    case.fields.append(f"train={{steps: {STEPS}, checkpoint: {{}}, frozen_type: {kind}}}")
    if kind == "nf4":
        bitsandbytes_agrees(case.base().model.layers[0].mlp.up_proj.weight.detach().numpy())
    as_it_is = case.logits(case.base())
    case.rounded = lambda name, weight: rounded_to(kind, weight) if ".layers." in name and weight.ndim == 2 else weight
    moved = largest_difference(as_it_is, case.logits(case.base()))
    print(f"  rounding the weights moves the logits by {moved:.1e}")
    assert moved > 100 * TOLERANCE
    layers = "['h.*.qkv', 'h.*.proj', 'h.*.gate', 'h.*.up', 'h.*.down']"
    strategies = "{'h.*.qkv': [[1, 1, 1], [2, 1]], 'h.*.proj': [[1, 1, 2], [1, 2]], 'h.*.gate': [[1, 1, 1], [2, 1]]}"
    modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    more = ", dora: true" if options else ""
    case.trains_alike(modules, layers, strategies, tied=("q_proj", "k_proj", "v_proj"), more=more, **options)


def nf4(folder):
    stored_in_fewer_bits(folder, "nf4")


def int8(folder):
    stored_in_fewer_bits(folder, "int8")


def nf4_dora(folder):
    stored_in_fewer_bits(folder, "nf4", use_dora=True)


def several(folder, **options):
    """Each row of a batch uses one of three adapters; PEFT trains three models, whose losses add up by their rows."""
    case = Case(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **TOKENS)), folder)
    names, modules = ["law", "news", "code"], ["o_proj", "gate_proj", "down_proj"]
    start, models = folder / "start", {}
    for name in names:
        models[name], made = case.adapted(modules, **options)
        start.mkdir(exist_ok=True)
        made.rename(start / name)
    chosen = np.random.default_rng(5).integers(0, len(names), (STEPS, BATCH)).astype(np.int32)
    inputs, labels = (each.reshape(-1, LENGTH).numpy().astype(np.int32) for each in (case.inputs, case.labels))
    np.savez(folder / "rows.npz", x=inputs, y=labels, adapter=chosen.reshape(-1))
    fields = "{data: x, label: y, adapter: adapter}"
    case.fields += [f"dataset={{type: npz, path: {folder / 'rows.npz'}, fields: {fields}, batch: {BATCH}, shuffle: false}}",
                    f"validation={{dataset: {{path: {folder / 'rows.npz'}}}}}"]
    more = ", dora: true" if options else ""
    layers = "['h.*.proj', 'h.*.gate', 'h.*.down']"

    def adapters(start):
        return (f"adapters={{names: {names}, field: adapter, lora: {{layers: {layers}, rank: {RANK}, alpha: {ALPHA}, from: {start}{more}}}}}"
                .replace("'law', 'news', 'code'", "law, news, code"))

    optimizers = [torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE, weight_decay=DECAY)
                  for model in models.values()]
    losses = []
    for inputs, labels, rows in zip(case.inputs, case.labels, chosen):
        loss = 0
        for number, model in enumerate(models.values()):
            mine = torch.tensor(rows == number)
            if mine.any():
                logits = model(inputs[mine]).logits.reshape(-1, VOCAB)
                loss = loss + torch.nn.functional.cross_entropy(logits, labels[mine].reshape(-1), reduction="sum")
        loss = loss / labels.numel()
        losses.append(loss.item())
        for model in models.values():  # an adapter without rows has a gradient of zeros
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    strategies = "{'h.*.proj': [[1, 1, 2], [1, 2]], 'h.*.gate': [[1, 1, 1], [2, 1]]}"
    for plan, words in PLANS.items():
        ours = case.ours(adapters(start), *[word.replace("STRATEGIES", strategies) for word in words])
        off = largest_difference(ours, losses)
        print(f"  {plan}: losses within {off:.1e} of {losses[0]:.4f} to {losses[-1]:.4f}")
        assert off < TOLERANCE, (plan, ours, losses)
    out = folder / "out"
    run("checkpoint", "export", case.latest(), "--adapters", "-o", f"{out}/")
    said = run("checkpoint", "export", case.latest(), "--map", "auto", "-o", folder / "none/", expect=2)
    assert "name it with --adapter" in said, said
    for name, model in models.items():
        opened = peft.PeftModel.from_pretrained(case.base(), out / name).eval()
        off = largest_difference(case.logits(opened), case.logits(model))
        run("checkpoint", "export", case.latest(), "--map", "auto", "--adapter", name, "-o", f"{folder / name}/")
        merged = largest_difference(case.logits(case.make.from_pretrained(folder / name).eval()), case.logits(opened))
        print(f"  the folder of {name} gives logits within {off:.1e} of those that PEFT trained; merged within {merged:.1e}")
        assert off < 1e-3 and merged < 5 * TOLERANCE


def several_dora(folder):
    several(folder, use_dora=True)


def phi3(folder):
    """q, k and v, and gate and up, are rows of one module each."""
    case = Case(transformers.Phi3ForCausalLM(transformers.Phi3Config(**SIZES, **TOKENS)), folder)
    model, start = case.adapted(["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])
    every = case.adapters("['h.*.qkv', 'h.*.proj', 'h.*.gate', 'h.*.up', 'h.*.down']", start)
    off = largest_difference(case.predicted(every), case.logits(model))
    print(f"  logits at the start: within {off:.1e}")
    assert off < TOLERANCE
    case.ours(every)
    run("checkpoint", "export", case.latest(), "--adapters", "-o", folder / "out")
    opened = peft.PeftModel.from_pretrained(case.base(), folder / "out").eval()
    off = largest_difference(case.logits(opened), case.predicted(every, "--checkpoint", case.latest()))
    print(f"  the exported folder gives the logits within {off:.1e}")
    assert off < TOLERANCE


def separate(folder):
    """PEFT's default for Llama adapts q and v, each with an A of its own."""
    case = Case(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **TOKENS)), folder)
    model, start = case.adapted(["q_proj", "v_proj"])
    said = run("check", case.job, *case.fields, case.adapters("['h.*.qkv']", start), expect=3)
    assert f"h.0.qkv needs {2 * RANK} ranks" in said and f"set rank to {2 * RANK}" in said, said
    for rank, alpha in ((2 * RANK, 2 * ALPHA), (12, ALPHA)):  # the scale of the product is the folder's, whatever alpha is
        off = largest_difference(case.predicted(case.adapters("['h.*.qkv']", start, rank, alpha)), case.logits(model))
        print(f"  rank {rank}, alpha {alpha}: logits at the start within {off:.1e}")
        assert off < TOLERANCE


def refused(folder):
    case = Case(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **TOKENS)), folder)
    _, start = case.adapted(["o_proj", "down_proj"])

    def check(expect, words, start=start):
        said = run("check", case.job, *case.fields, *words, expect=expect)
        return said

    said = check(3, [case.adapters("['h.*.proj']", start)])
    assert "names no layer for these tensors" in said and "layers.0.mlp.down_proj.lora_A" in said, said
    config = json.loads((start / "adapter_config.json").read_text())
    (start / "adapter_config.json").write_text(json.dumps({**config, "init_lora_weights": "pissa_niter_4"}))
    assert "pissa_niter_4 is not supported, because it changes the base" in check(3, [case.adapters("['h.*.proj', 'h.*.down']", start)])
    (start / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    assert "use_dora is true, but adapters.lora.dora is false" in check(3, [case.adapters("['h.*.proj', 'h.*.down']", start)])
    assert "adapters.lora.from" in check(2, [case.adapters("['h.*.proj']", folder / "nothing")])
    run("run", case.job, *case.fields)
    assert "has no adapters" in run("checkpoint", "export", case.latest(), "--adapters", "-o", folder / "out", expect=2)
    run("run", case.job, *case.fields, "adapters={lora: {layers: ['h.*.proj'], rank: 2}}", "train.freeze=['h.*']")
    said = run("checkpoint", "export", case.latest(), "--adapters", "-o", folder / "out", expect=3)
    assert "the job also trained" in said, said


CASES = {each.__name__: each for each in (llama, gpt2, dora, dora_gpt2, nf4, int8, nf4_dora, several, several_dora, phi3, separate, refused)}
for name in sys.argv[2:] or CASES:
    print(name)
    with tempfile.TemporaryDirectory() as temporary:
        CASES[name](pathlib.Path(temporary))
