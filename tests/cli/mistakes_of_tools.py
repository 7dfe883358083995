"""Mistakes of people who know Lightning, Megatron, Axolotl, Keras and PyTorch (mistakes_test.py): the names of those tools in a job.

A case of CSV, IMAGES or TOKENS is (title, base, what is replaced, by what, a part of the wrong line, cause, next step, command)."""

# Name at the top of a job or in a section: (line to add, before what, next step).
FIELDS = [
    ("limit_train_batches: 10", "train:", "steps: 1000"), ("check_val_every_n_epoch: 2", "train:", "every_epochs: 1"),
    ("sync_batchnorm: true", "train:", "sync: false"), ("fast_dev_run: true", "train:", "steps: 1"), ("benchmark: true", "train:", "same bits"),
    ("limit_val_batches: 5", "train:", "fewer files"), ("num_sanity_val_steps: 0", "train:", "remove it"), ("max_time: 00:12:00:00", "train:", "launch.slurm.time"),
    ("num_layers: 2", "train:", "repeat: 12"), ("ffn_hidden_size: 128", "train:", "units: 64"), ("num_attention_heads: 8", "train:", "heads: 8"),
    ("swiglu: true", "train:", "init llama"), ("hidden_dropout: 0.1", "train:", "type: dropout"), ("init_method_std: 0.02", "train:", "init: {type"),
    ("overlap_grad_reduce: true", "train:", "remove it"), ("transformer_impl: te", "train:", "remove it"), ("rampup_batch_size: [1, 2]", "train:", "not supported"),
    ("num_layers_per_virtual_pipeline_stage: 1", "train:", "chunks: 2"), ("lr_decay_iters: 100", "train:", "total_steps"),
    ("base_model: meta-llama/Llama-3-8B", "train:", "weights: {from"), ("load_in_4bit: true", "train:", "frozen_type: nf4"),
    ("sample_packing: true", "train:", "pack: true"), ("lora_target_modules: [q_proj]", "train:", "adapters: {lora"), ("val_set_size: 0.05", "train:", "split: {train"),
    ("flash_attention: true", "train:", "remove it"), ("chat_template: chatml", "train:", "dataset.tokenizer"), ("train_on_inputs: false", "train:", "train_on: assistant"),
    ("deepspeed: ds_zero2.json", "train:", "optimizer_shard"), ("special_tokens: {pad: x}", "train:", "dataset.tokenizer"), ("evals_per_epoch: 4", "train:", "every_steps"),
    ("wandb_project: mine", "train:", "track: [mlflow]"), ("lora_dropout: 0.1", "train:", "dropout: 0.05"), ("steps_per_epoch: 10", "train:", "steps: 1000"),
    ("class_weight: [1, 2]", "train:", "class_weights: [1, 5]"), ("validation_steps: 10", "train:", "fewer files"), ("run_name: mine", "train:", "name: my_job"),
    ("dist_backend: nccl", "train:", "remove it"), ("find_unused_parameters: true", "train:", "remove it"), ("auto_scale_batch_size: true", "train:", "trainctl plan"),
]


def tool_cases(csv, images, tokens):
    plan = ("plan",)
    lr = "learning_rate: 0.1"
    cases = [(line.split(":")[0], csv, before, f"{line}\n{before}", line, "unknown field", step, plan) for line, before, step in FIELDS]
    return cases + [
        ("nn.Dropout", csv, "type: relu", "type: nn.Dropout, p: 0.5", "nn.Dropout", "unknown layer type", "{type: dropout}", plan),
        ("nn.ReLU6", csv, "type: relu", "type: nn.ReLU6", "ReLU6", "unknown layer type", "type: clip", plan),
        ("SwiGLU", csv, "type: relu", "type: SwiGLU", "SwiGLU", "unknown layer type", "silu", plan),
        ("Sequential", csv, "type: relu", "type: nn.Sequential", "Sequential", "unknown layer type", "modules: {", plan),
        ("ConvTranspose2d", images, "- {type: flatten}", "- {type: ConvTranspose2d}\n  - {type: flatten}", "ConvTranspose2d", "unknown layer", "conv_transpose2d", plan),
        ("HuberLoss", csv, "softmax_cross_entropy", "nn.HuberLoss", "HuberLoss", "must be one of", "huber", plan),
        ("FocalLoss", csv, "softmax_cross_entropy", "FocalLoss", "FocalLoss", "must be one of", "focal", plan),
        ("8-bit AdamW", csv, "type: sgd", "type: paged_adamw_8bit", "paged_adamw_8bit", "must be one of", "state_type: int8", plan),
        ("OneCycleLR", csv, lr, "learning_rate: {type: OneCycleLR, base: 0.1}", "OneCycleLR", "must be one of", "write one_cycle", plan),
        ("max_lr", csv, lr, "learning_rate: {type: one_cycle, max_lr: 0.1}", "max_lr", "unknown field", "base: 0.1", plan),
        ("ReduceLROnPlateau", csv, lr, "learning_rate: {type: ReduceLROnPlateau, base: 0.1}", "ReduceLROnPlateau", "must be one of", "write plateau", plan),
        ("MultiStepLR", csv, lr, "learning_rate: {type: MultiStepLR, base: 0.1}", "MultiStepLR", "must be one of", "write multi_step", plan),
        ("accelerator", csv, "device: cpu", "accelerator: gpu", "accelerator", "unknown field", "device: auto", plan),
        ("num_query_groups", tokens, "heads: 4", "heads: 4, num_query_groups: 2", "num_query_groups", "unknown field", "kv_heads: 2", plan),
        ("inplace", csv, "type: relu", "type: relu, inplace: true", "inplace", "unknown field", "remove it", plan),
        ("dilation_rate", images, "- {type: flatten}", "- {type: conv2d, channels: 4, kernel: 3, dilation_rate: 2}\n  - {type: flatten}", "dilation_rate", "unknown field", "dilation: 2", plan),
        # Units, forms and slips.
        ("memory without a unit", csv, "launch:", "parallel: {max_memory: 25}\nlaunch:", "max_memory", "at least 1 KiB", "write 25GB", plan),
        ("a share in percent", csv, "type: relu", "type: dropout, p: 50", "p: 50", "below 1", "write 0.5", plan),
        ("half an epoch", csv, "epochs: 1", "epochs: 1.5", "1.5", "an integer", "1 or 2", plan),
        ("1k", csv, "epochs: 1", "epochs: 1k", "1k", "an integer", "write 1000", plan),
        ("ranks: auto", csv, "device: cpu", "ranks: auto", "auto", "an integer", "a whole number", plan),
        ("no blank after a colon", csv, "epochs: 1", "epochs:1", "epochs:1", "unknown field", "with a space", plan),
        ("= for a colon", csv, "epochs: 1", "epochs=1", "epochs=1", "unknown field", "with a space", plan),
        ("a bracket that is not closed", csv, "units: 8}", "units: 8", "units: 8", "never closed", "close it", plan),
        ("a section twice", csv, "train: {epochs: 1}", "train: {epochs: 1}\ntrain: {epochs: 2}", "epochs: 2", "appears twice", "also in line", plan),
        ("the label as an input", csv, "data: [a, b], label: kind", "data: [a, b], label: b", "fields:", "is the label and also an input", "remove the column", ("check",)),
        ("logs in ~", csv, "device: cpu", "device: cpu, log_dir: ~/logs", "log_dir", "is of the shell", "whole path", plan),
        ("checkpoints in $SCRATCH", csv, "epochs: 1", "epochs: 1, checkpoint: {dir: $SCRATCH/ck}", "$SCRATCH", "is of the shell", "whole path", plan),
        ("dates", csv, "table.csv", "dates.csv", "dates.csv", "2024-01-01", "a date or time is not a number", ("check",)),
        ("thousands", csv, "table.csv", "thousands.csv", "thousands.csv", "1,100", "without separators", ("check",)),
        ("True and False", csv, "table.csv", "flags.csv", "flags.csv", "'True'", "write 1 for true", ("check",)),
        ("units in cells", csv, "table.csv", "units.csv", "units.csv", "'3 kg'", "without its unit", ("check",)),
        ("a model of the hub", csv, "loss:", "weights: {from: meta-llama/Llama-3-8B}\nloss:", "meta-llama", "does not exist", "hf download", ("check",)),
        ("a pipe in a command", "name: s\ncommand: [python3, train.py]\nlaunch: {ranks: 1}\n", "train.py]", "train.py, '|', tee, log]", "tee", "no shell", "sh, -c", ("check",)),
    ]


def make_tool_data(write):
    rows = [(i, "xy"[i % 2]) for i in range(16)]
    write("dates.csv", "a,b,kind\n" + "".join(f"2024-01-{1 + i:02d},{i},{k}\n" for i, k in rows))
    write("thousands.csv", "a,b,kind\n" + "".join(f'"1,{100 + i}",{i},{k}\n' for i, k in rows))
    write("flags.csv", "a,b,kind\n" + "".join(f"{['True', 'False'][i % 2]},{i},{k}\n" for i, k in rows))
    write("units.csv", "a,b,kind\n" + "".join(f"3 kg,{i},{k}\n" for i, k in rows))
