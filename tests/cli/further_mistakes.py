"""Seventy more mistakes of new users: of data files, of whole sections, of clusters and of the command line (mistakes_test.py).

A case of a job is (title, base, what is replaced, by what, a part of the line with the mistake, cause, next step, command). A case of the
command line is (title, words, cause, next step): its position is the word that the error names."""
import json
import os

SCRIPT = """name: script
command: [python3, train.py]
launch: {ranks: 2}
"""


def make_further_data(write, png):
    pairs = [(i, i % 3, "xy"[i % 2]) for i in range(16)]
    write("semicolon.csv", "a;b;kind\n" + "".join(f"{a};{b};{k}\n" for a, b, k in pairs))
    write("holes.csv", "a,b,kind\n" + "".join(f"{a},{'' if a == 5 else b},{k}\n" for a, b, k in pairs))
    write("na.csv", "a,b,kind\n" + "".join(f"{a},{'NA' if a == 5 else b},{k}\n" for a, b, k in pairs))
    write("one_based.csv", "a,b,kind\n" + "".join(f"{a},{b},{1 + a % 2}\n" for a, b, _ in pairs))
    write("float_label.csv", "a,b,kind\n" + "".join(f"{a},{b},{0.5 + a % 2}\n" for a, b, _ in pairs))
    write("headless.csv", "".join(f"{a},{b},{k}\n" for a, b, k in pairs))
    write("towns.csv", "a,b,kind\n" + "".join(f"{'Bern' if a > 2 else a},{b},{k}\n" for a, b, k in pairs))
    write("tabs.csv", "a\tb\tkind\n" + "".join(f"{a}\t{b}\t{k}\n" for a, b, k in pairs))
    write("sheet.xlsx", b"PK\x03\x04" + bytes(60))
    for name, content in [("cat/1", png(8)), ("cat/2", png(8)[:40]), ("dog/1", png(8)), ("dog/2", png(8))]:
        write(f"broken/{name}.png", content)
    write("gap/cat/1.png", png(8))
    write("gap/dog/readme.txt", "no image")
    write("webp/cat/1.webp", b"RIFF1234WEBP")
    write("webp/dog/1.webp", b"RIFF1234WEBP")
    write("book.txt", "to be or not to be " * 40)
    write("book.pdf", b"%PDF-1.4 " + bytes(800))
    write("book.docx", b"PK\x03\x04" + bytes(800))
    write("short.txt", "hi")
    write("talks.json", json.dumps([{"messages": [{"role": "user", "content": "a"}]}] * 40))
    write("model.pt", b"PK\x03\x04" + bytes(60))
    write("train.py", "print(1)\n")


def job_cases(csv, images, tokens):
    text = tokens.replace("type: tokens", "type: text").replace("data.bin", "book.txt").replace("vocab: 100", "vocab: 256").replace("units: 100", "units: 256")
    plan, check, render = ("plan",), ("check",), ("render",)
    return [
        # Values in another form.
        ("yes for true", csv, "batch: 4", "batch: 4\n  shuffle: yes", "shuffle: yes", "true or false", "write true", plan),
        ("8x8 for a size", images, "[8, 8]", "8x8", "8x8", "list of 2 integers", "write [8, 8]", plan),
        ("height and width", images, "{resize: [8, 8]}", "{resize: {height: 8, width: 8}}", "height", "unknown field 'height'", "size: [", plan),
        ("a share for the split", csv, "batch: 4", "batch: 4\n  split: 0.2", "split: 0.2", "split", "{train: 0.8, validation: 0.2}", plan),
        ("a share for the validation", csv, "train:", "validation: 0.2\ntrain:", "validation: 0.2", "must be a mapping", "split: {train: 0.8", plan),
        ("validation: true", csv, "train:", "validation: true\ntrain:", "validation: true", "must be a mapping", "validation: {dataset: {path", plan),
        ("the way of parallelism alone", csv, "launch:", "parallel: ddp\nlaunch:", "parallel: ddp", "must be a mapping", "write {mode: data_parallel}", plan),
        ("fsdp", csv, "launch:", "parallel: {mode: fsdp}\nlaunch:", "fsdp", "must be one of", "optimizer_shard: {level: 3}", plan),
        ("the name of a model", images, "network:\n  - {type: flatten}\n  - {type: dense, units: 2}", "network: resnet50", "resnet50", "list of layers", "trainctl init", plan),
        ("an optimizer as a call", csv, "{type: sgd, learning_rate: 0.1}", "Adam(lr=0.1)", "Adam(lr=0.1)", "must be one of", "{type: adam, ", plan),
        ("one beta", csv, "{type: sgd, learning_rate: 0.1}", "{type: adam, betas: 0.9}", "betas: 0.9", "list of 2 numbers", "write [0.9, 0.9", plan),
        ("momentum of adam", csv, "{type: sgd, learning_rate: 0.1}", "{type: adam, momentum: 0.9}", "momentum", "not for adam", "remove it", plan),
        ("padding: valid", images, "- {type: flatten}", "- {type: conv2d, channels: 4, kernel: 3, padding: valid}\n  - {type: flatten}", "valid", "integer", "write 0", plan),
        ("a list of means", images, "hwc2chw]", "{normalize: [0.5, 0.4, 0.4]}, hwc2chw]", "normalize: [", "must be a mapping", "mean, std", plan),
        ("precision 16", csv, "train:", "precision: 16\ntrain:", "precision: 16", "must be one of", "write fp16", plan),
        # Fields of other tools.
        ("callbacks", csv, "train:", "callbacks: [early_stopping]\ntrain:", "callbacks", "unknown field 'callbacks'", "stop_when", plan),
        ("ema", csv, "train:", "ema: 0.999\ntrain:", "ema", "unknown field 'ema'", "average: {type: ema", plan),
        ("a scheduler", csv, "train:", "scheduler: {type: cosine}\ntrain:", "scheduler", "unknown field", "learning_rate: {type: cosine", plan),
        ("transforms at the top", images, "loss:", "transforms: [to_float]\nloss:", "transforms: [to_float]", "unknown field", "dataset.transforms", plan),
        ("pretrained", images, "loss:", "pretrained: true\nloss:", "pretrained", "unknown field", "weights: {from: FOLDER}", plan),
        ("hidden_size of an lstm", csv, "{type: relu}", "{type: lstm, hidden_size: 8}", "hidden_size", "unknown field 'hidden_size'", "write units", plan),
        ("data sets of json", csv, "type: csv", "type: json", "type: json", "must be one of", "type: table", plan),
        ("a monitored val_loss", csv, "epochs: 1", "epochs: 1, stop_when: {metric: val_loss, patience: 3}", "val_loss", "no validation", "add validation", plan),
        # Networks that do not fit.
        ("an input that is no layer", csv, "{type: relu}", "{type: relu, inputs: [fc1]}", "fc1", "no earlier layer 'fc1'", "inputs can be", plan),
        ("a convolution behind flatten", images, "- {type: flatten}", "- {type: flatten}\n  - {type: conv2d, channels: 4, kernel: 3}", "conv2d", "needs images", "before the layers that make rows", plan),
        ("a kernel larger than the image", images, "- {type: flatten}", "- {type: conv2d, channels: 4, kernel: 11}\n  - {type: flatten}", "kernel: 11", "does not fit", "smaller kernel", plan),
        ("no hwc2chw", images, ", hwc2chw]\n  batch: 4\nnetwork:\n", "]\n  batch: 4\nnetwork:\n  - {type: conv2d, channels: 4, kernel: 3}\n", "conv2d", "[channels, height, width]", "add hwc2chw", plan),
        ("two softmaxes", csv, "{type: dense, units: 2}", "{type: dense, units: 2}\n  - {type: softmax}", "type: softmax}", "two of them", "remove this layer", plan),
        ("binary cross-entropy of classes", csv, "softmax_cross_entropy", "binary_cross_entropy", "binary_cross_entropy", "needs f32 labels", "for classes use loss: softmax_cross_entropy", plan),
        ("one rank by default", csv, "device: cpu", "device: cpu, ranks: 2", "ranks: 2", "one rank, not 2", "data_parallel", plan),
        ("a batch that ranks cannot share", csv, "launch: {device: cpu}", "parallel: {mode: data_parallel}\nlaunch: {device: cpu, ranks: 3}", "batch: 4", "3 ranks", "multiple of 3", plan),
        # Files.
        ("semicolons", csv, "table.csv", "semicolon.csv", "data: [a, b]", "no column 'a'", "delimiter: ';'", check),
        ("tabs", csv, "table.csv", "tabs.csv", "data: [a, b]", "no column 'a'", "delimiter: tab", check),
        ("no header", csv, "table.csv", "headless.csv", "data: [a, b]", "no column 'a'", "header: false", check),
        ("an Excel file", csv, "table.csv", "sheet.xlsx", "data: [a, b]", "sheet.xlsx", "csv file", check),
        ("all columns", csv, "data: [a, b]", "data: all", "data: all", "no column 'all'", "columns: a, b, kind", check),
        ("no fields", csv, "  fields: {data: [a, b], label: kind}\n", "", "type: csv", "needs 'fields'", "fields: {features", plan),
        ("an empty cell", csv, "table.csv", "holes.csv", "holes.csv", "holes.csv:7", "write a number there", check),
        ("NA", csv, "table.csv", "na.csv", "na.csv", "'NA'", "on_error: skip", check),
        ("a word among numbers", csv, "table.csv", "towns.csv", "towns.csv", "'Bern'", "field of its own", check),
        ("classes from 1", csv, "table.csv", "one_based.csv", "one_based.csv", "label 2", "units: 3", check),
        ("classes of 0.5", csv, "table.csv", "float_label.csv", "float_label.csv", "'0.5'", "write a number", check),
        ("a broken photo", images, "photos/train", "broken", "path: broken", "broken/cat/2.png", "repair the file", check),
        ("a class without photos", images, "photos/train", "gap", "path: gap", "gap/dog", "add images", check),
        ("webp", images, "photos/train", "webp", "path: webp", "1.webp", "PNG or JPEG", check),
        ("photos of the web", images, "photos/train", "https://example.org/photos.zip", "example.org", "object store", "tar shards", check),
        ("a PDF as text", text, "book.txt", "book.pdf", "book.pdf", "a PDF file", "pdftotext", check),
        ("a Word file as text", text, "book.txt", "book.docx", "book.docx", "Word", ".txt file", check),
        ("a text that is too short", text, "book.txt", "short.txt", "short.txt", "2 tokens", "reduce dataset.length", check),
        ("a vocabulary that is too small", text, "vocab: 256", "vocab: 100", "book.txt", "token 0", "vocab: 117", check),
        ("no tokenizer for chat", text, "type: text\n  path: book.txt", "type: chat\n  path: talks.json", "type: chat", "tokenizer", "add tokenizer", check),
        ("weights of PyTorch", csv, "loss:", "weights: {from: model.pt}\nloss:", "", "PyTorch", "convert it to safetensors", check),
        # Clusters.
        ("hosts as one text", SCRIPT, "ranks: 2", "ranks: 2, hosts: 'a,b'", "a,b", "not a valid host", "write [a, b]", check),
        ("a file of hosts", SCRIPT, "ranks: 2", "ranks: 2, hosts: hosts.txt", "hosts.txt", "not a valid host", "hostfile: hosts.txt", check),
        ("k8s", SCRIPT, "ranks: 2", "ranks: 2, target: k8s", "k8s", "must be one of", "write kubernetes", plan),
        ("nproc_per_node", SCRIPT, "ranks: 2", "nproc_per_node: 2", "nproc_per_node", "unknown field", "launch: {ranks", plan),
        ("torchrun", SCRIPT, "[python3, train.py]", "[torchrun, --nproc_per_node=2, train.py]", "torchrun", "once per rank", "[python3, train.py]", check),
        ("a command as text", SCRIPT, "[python3, train.py]", "python3 train.py", "python3 train.py", "list of words", "write [python3, train.py]", plan),
        ("a misspelt script", SCRIPT, "train.py", "trian.py", "trian.py", "does not exist", "did you mean 'train.py'?", check),
        ("a script elsewhere", SCRIPT, "train.py", "src/train.py", "src/train.py", "does not exist", "working_dir, which is", check),
        ("epochs of a program", SCRIPT, "launch:", "train: {epochs: 3}\nlaunch:", "epochs: 3", "not for jobs with a command", "--epochs", plan),
        ("the device of a program", SCRIPT, "ranks: 2", "ranks: 2, device: cuda", "device: cuda", "not for jobs with a command", "chooses its devices itself", plan),
        ("variables as a list", SCRIPT, "launch:", "env: [A=1]\nlaunch:", "env: [A=1]", "must be a mapping", "{NCCL_DEBUG: INFO}", plan),
        ("a time for Slurm", SCRIPT, "ranks: 2", "ranks: 2, target: slurm, slurm: {time: 1h}", "1h", "time limit of Slurm", "1:00:00", render),
        ("memory in GB", SCRIPT, "ranks: 2", "ranks: 2, target: kubernetes, kubernetes: {memory: 8GB}", "8GB", "size of Kubernetes", "8Gi", render),
        ("volumes as a list", SCRIPT, "ranks: 2", "ranks: 2, target: kubernetes, kubernetes: {volumes: ['d:/data', 'e:/sets']}", "volumes", "must be text", '"d:/data, e:/sets"', render),
    ]


COMMANDS = [
    ("resume as a command", ["resume", "job.yaml"], "unknown command 'resume'", "run JOB.yaml --resume"),
    ("export as a command", ["export", "1"], "unknown command 'export'", "checkpoint export"),
    ("test as a command", ["test", "job.yaml"], "unknown command 'test'", "'evaluate'"),
    ("tensorboard as a command", ["tensorboard", "log_output"], "unknown command 'tensorboard'", "--logdir log_output"),
    ("help for a layer", ["help", "conv2d"], "no command 'conv2d'", "trainctl translate conv2d"),
    ("an epoch too few letters", ["run", "job.yaml", "train.epoch=3"], "train.epoch", "train: {epochs: 10}"),
    ("a field without its section", ["run", "job.yaml", "epochs=3"], "unknown field 'epochs'", "train.epochs"),
    ("blanks around =", ["run", "job.yaml", "train.epochs", "=", "3"], "'train.epochs'", "train.epochs=VALUE"),
    ("an option of another tool", ["run", "job.yaml", "--epochs", "3"], "'--epochs'", "train.epochs=3"),
    ("a misspelt job", ["run", "jobs.yaml"], "jobs.yaml", "did you mean 'job.yaml'?"),
    ("predict before training", ["predict", "job.yaml", "table.csv"], "has a checkpoint", "train it first: trainctl run job.yaml"),
    ("evaluate without a validation", ["evaluate", "job.yaml"], "no validation data set", "validation: {dataset: {path"),
    ("a sweep without values", ["sweep", "job.yaml"], "name a field to vary", "optimizer.learning_rate=1e-3,3e-3"),
    ("show without what", ["show", "job.yaml"], "what to show", "trainctl show plan job.yaml"),
]
assert all(os.path.basename(words[0]) == words[0] for _, words, _, _ in COMMANDS)
