"""A run's event files, read by the tensorboard package: every number of metrics.jsonl, histograms of each weight and its
gradient, the job's text, and a session of HPARAMS with its settings.

    tensorboard_test.py TRAINCTL

Exits with 77 where the package is missing (build/tensorboard, see ./bootstrap tensorboard).
"""
import json, math, pathlib, subprocess, sys, tempfile

source = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(path) for path in (source / "build/tensorboard").glob("lib/python3*/site-packages")]
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2
except ImportError as error:
    print(f"skipped: {error}; ./bootstrap tensorboard fetches it")
    sys.exit(77)

JOB = """name: small
dataset: {type: random, shape: [8], label_dtype: f32, samples: 64, batch: 8}
network:
  - {name: fc1, type: dense, units: 16}
  - {name: act1, type: relu}
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: sgd, learning_rate: 0.01}
validation: {dataset: {samples: 16}}
train: {epochs: 3, histograms: 5}
launch: {device: cpu}
"""
ELEMENTS = {"fc1.weight": 128, "fc1.bias": 16, "out.weight": 16, "out.bias": 1}
PLANS = {
    "one rank": [],
    "2 stages of 2, level 3": ["launch.ranks=4", "parallel={mode: semi_auto_parallel, stages: 2, micro_batches: 2, "
                               "stage_config: {fc1: 0, act1: 0, out: 1}, optimizer_shard: {level: 3, min_kb: 0}}"],
    "gloo": ["launch.ranks=2", "parallel.mode=data_parallel", "launch.comm=gloo"],
    "servers": ["launch.ranks=2", "parallel={mode: parameter_server, servers: 2}"],
}
SERIES = [("kind", "validation", "validation/", "run_step"), ("epoch_end", None, "epoch/", "last_step"),
          ("loss", None, "train/", "run_step")]


def check_scalars(events, run):
    """Each number over steps that metrics.jsonl has, and no others."""
    expected = {}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        if "start_up" in line:
            expected["start_up/seconds"] = {0: line["start_up"]["seconds"]}
        for key, value, group, at in SERIES:
            if key not in line or (value and line[key] != value):
                continue
            for name, number in line.items():
                if name not in ("kind", "epoch", "step", "run_step", "samples", "epoch_end", "last_step", "steps") and (
                        group != "validation/" or name != "seconds"):
                    expected.setdefault(group + name.replace("epoch_seconds", "seconds"), {})[line[at]] = number
            break
    found = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    assert found.keys() == expected.keys(), (sorted(found), sorted(expected))
    for tag, numbers in expected.items():
        assert found[tag].keys() == numbers.keys(), tag
        for step, number in numbers.items():
            assert math.isclose(found[tag][step], number, rel_tol=1e-5, abs_tol=1e-6), (tag, step, found[tag][step], number)
    return sum(map(len, expected.values()))


def check_histograms(events):
    expected = {f"{kind}/{name}" for kind in ("weights", "gradients") for name in ELEMENTS}
    assert set(events.Tags()["histograms"]) == expected, events.Tags()["histograms"]
    sums = {}
    for tag in expected:
        histograms = events.Histograms(tag)
        assert [event.step for event in histograms] == [5, 10, 15, 20], tag
        for event in histograms:
            h = event.histogram_value
            assert h.num == ELEMENTS[tag.split("/")[1]] == sum(h.bucket), (tag, h)
            assert len(h.bucket) == len(h.bucket_limit) and list(h.bucket_limit) == sorted(h.bucket_limit)
            assert h.bucket_limit[0] <= h.min <= h.max <= h.bucket_limit[-1]
            assert h.sum_squares > 0 or tag.endswith("out.bias")
        sums[tag] = [(event.histogram_value.sum, event.histogram_value.sum_squares) for event in histograms]
    return sums


def sessions(events):
    content = events.PluginTagToContent("hparams")
    assert set(content) == {"_hparams_/session_start_info", "_hparams_/session_end_info"}, set(content)
    read = {tag.split("/")[1]: plugin_data_pb2.HParamsPluginData.FromString(data) for tag, data in content.items()}
    start, end = read["session_start_info"].session_start_info, read["session_end_info"].session_end_info
    assert end.status == 1 and end.end_time_secs >= start.start_time_secs > 1.7e9
    return {name: value.number_value if value.WhichOneof("kind") == "number_value" else value.string_value
            for name, value in start.hparams.items()}


def main():
    trainctl = pathlib.Path(sys.argv[1]).resolve()
    first = None
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, fields) in enumerate(PLANS.items(), 1):
            job = pathlib.Path(folder, "job.yaml")
            job.write_text(JOB)
            done = subprocess.run([trainctl, "run", "job.yaml", *fields], cwd=folder, capture_output=True, text=True, timeout=600, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            run = pathlib.Path(folder, "log_output", str(number))
            events = EventAccumulator(str(run), size_guidance={"histograms": 0, "scalars": 0})
            events.Reload()
            scalars, sums = check_scalars(events, run), check_histograms(events)
            text = events.Tensors("job")[0].tensor_proto.string_val[0].decode()
            assert text == "```yaml\n" + (run / "job.yaml").read_text() + "```\n"
            settings = sessions(events)
            assert settings["optimizer.type"] == "sgd" and settings["optimizer.learning_rate.base"] == 0.01, settings
            assert settings["dataset.batch"] == 8 and not any(key.startswith("network") for key in settings), settings
            first = first or sums
            for tag, values in sums.items():
                for (total, squares), (expected, of_squares) in zip(values, first[tag]):
                    assert math.isclose(squares, of_squares, rel_tol=1e-3, abs_tol=1e-9), (name, tag)
                    assert abs(total - expected) < 1e-3 * math.sqrt(of_squares) + 1e-6, (name, tag)
            print(f"{name}: {scalars} numbers, {sum(map(len, sums.values()))} histograms, {len(settings)} settings")


main()
