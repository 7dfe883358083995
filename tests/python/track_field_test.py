#!/usr/bin/env python3
"""`track:` of a job gives the numbers of its runs to trackers; those never change how a run ends.

    tests/python/track_field_test.py build/release/bin/trainctl"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

BINARY = os.path.abspath(sys.argv[1])
JOB = """name: tracked
dataset: {{type: random, shape: [8], classes: 4, samples: 64, batch: 8}}
validation: {{dataset: {{samples: 16}}}}
metrics: [accuracy]
network:
  - {{type: dense, units: 4}}
loss: softmax_cross_entropy
optimizer: adam
train: {{epochs: 2, checkpoint: {{every: none}}}}
launch: {{device: cpu}}
track: {track}
"""
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="trainctl-tracked-"))
ENV = dict(os.environ, XDG_RUNTIME_DIR=str(FOLDER), TRAINCTL_PYTHON=sys.executable, WANDB_SILENT="true",
           WANDB_ERROR_REPORTING="false")


def write(name, track):
    folder = FOLDER / name
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB.format(track=track))
    return folder


def run(folder, *words, command="run", **env):
    return subprocess.run([BINARY, command, "job.yaml", *words], cwd=folder, env={**ENV, **env}, capture_output=True, text=True)


def lines_of(folder):
    return [json.loads(line) for line in (folder / "log_output/1/metrics.jsonl").read_text().splitlines()]


def losses_of_run(folder):
    return {line["run_step"]: line["loss"] for line in lines_of(folder) if "run_step" in line and "kind" not in line}


def a_command_gets_each_line_and_runs_beside_the_job():
    folder = write("command", "[tensorboard, 'command: cat > lines.jsonl']")
    done = run(folder)
    assert done.returncode == 0, done.stderr
    got = [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]
    assert got == [line for line in lines_of(folder) if "run_step" in line]
    assert list((folder / "log_output/1").glob("events.out.tfevents.*")), "TensorBoard's files"
    assert run(folder, "train.epochs=1", "track=[tensorboard]").returncode == 0


def a_command_may_be_a_mapping():
    folder = write("mapping", "{command: cat > lines.jsonl, required: false}")
    assert run(folder).returncode == 0
    assert (folder / "lines.jsonl").stat().st_size > 0


def a_tracker_that_cannot_start_is_an_error_before_the_run():
    folder = write("missing", "[tensorboard, 'command: ./push.py']")
    for command in ("run", "check"):
        done = run(folder, command=command)
        assert done.returncode == 2, done.returncode
        assert "job.yaml:11:22: track[1]: there is no program" in done.stderr, done.stderr
        assert "push.py" in done.stderr and "required: false" in done.stderr, done.stderr
    assert not (folder / "log_output/1").exists()
    (folder / "push.py").write_text("#!/usr/bin/env python3\n")
    assert "chmod +x" in run(folder).stderr
    without_packages = folder / "python"  # -S: no packages
    without_packages.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    without_packages.chmod(0o755)
    done = run(folder, "track=[mlflow]", TRAINCTL_PYTHON=str(without_packages), PYTHONPATH="")
    assert done.returncode == 2 and "package mlflow is not installed" in done.stderr, done.stderr
    assert "pip install mlflow-skinny" in done.stderr, done.stderr
    done = run(folder, "track=[wandb]", TRAINCTL_PYTHON="/no/python")
    assert done.returncode == 2 and "/no/python cannot be started" in done.stderr, done.stderr


def a_tracker_that_is_not_required_is_a_warning():
    folder = write("optional", "{type: wandb, required: false}")
    done = run(folder, TRAINCTL_PYTHON="/no/python")
    assert done.returncode == 0 and "warning: track" in done.stderr, done.stderr
    assert "/no/python cannot be started" in done.stderr, done.stderr


def a_tracker_that_fails_is_named_and_does_not_fail_the_run():
    folder = write("failing", "'command: echo the server is down >&2; exit 3'")
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert "tracker command ended with exit code 3: the server is down" in done.stdout + done.stderr, done.stdout + done.stderr
    assert "log_output/1/track.command.log" in done.stdout + done.stderr


def a_tracker_that_hangs_does_not_hold_the_run():
    """A second signal ends the wait for it."""
    folder = write("hanging", "'command: echo $$ > pid; exec sleep 100000'")
    process = subprocess.Popen([BINARY, "run", "job.yaml"], cwd=folder, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = ""
    while "waiting for command" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    said += process.stdout.read()
    assert process.returncode == 0, said
    assert "tracker command did not finish in time" in said, said
    wait_for_end_of(int((folder / "pid").read_text()))


def a_killed_launcher_leaves_no_tracker():
    folder = write("killed", "'command: echo $$ > pid.part; mv pid.part pid; exec cat > lines'")
    process = subprocess.Popen([BINARY, "run", "job.yaml", "train.epochs=1000000"], cwd=folder, env=ENV, stdout=subprocess.DEVNULL)
    while not (folder / "pid").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    wait_for_end_of(int((folder / "pid").read_text()))


def on_several_hosts_the_launcher_runs_the_tracker():
    """It gets each line once, from the files that the host of rank 0 sends; no other host starts one or needs its program."""
    folder = write("hosts", "'command: pwd > where; hostname > host; cat > lines.jsonl; ls log_output/1/rank.1 > left'")
    (folder / "ssh").write_text("#!/bin/sh\n"  # a host is a home of its own
                                'while [ "${1#-}" != "$1" ]; do shift; done\n'
                                f'HOME={folder}/$1; export HOME; mkdir -p $HOME; shift; unset XDG_CACHE_HOME; exec sh -c "$*"\n')
    (folder / "ssh").chmod(0o755)
    done = run(folder, "launch.hosts=[a, b]", "launch.ranks=2", f"launch.ssh={folder}/ssh", "launch.interface=lo", "parallel.mode=data_parallel")
    assert done.returncode == 0, done.stdout + done.stderr
    got = [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]
    def numbers_in(lines):
        return [(line.get("kind"), line["run_step"], line["loss"]) for line in lines if "run_step" in line and "loss" in line]
    assert numbers_in(got) == numbers_in(lines_of(folder)), (got, lines_of(folder))
    assert len(numbers_in(got)) == 16 + 2, got
    assert "metrics.jsonl" not in (folder / "left").read_text(), "lines of other hosts are gathered before a tracker ends"
    assert (folder / "where").read_text().strip() == str(folder.resolve())
    assert not [path for host in "ab" for path in (folder / host).rglob("lines.jsonl")]


def wait_for_end_of(pid):
    while True:
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.02)


def mlflow_reads_its_store():
    from mlflow.tracking import MlflowClient
    folder = write("mlflow", "[{type: mlflow, to: mlruns}]")
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert "mlflow ui --backend-store-uri" in done.stdout, done.stdout
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    client = MlflowClient((folder / "mlruns").as_uri())
    number = client.search_runs([client.get_experiment_by_name("tracked").experiment_id])[0].info.run_id
    metrics = {m.step: round(m.value, 6) for m in client.get_metric_history(number, "loss")}
    assert metrics == {step: round(loss, 6) for step, loss in losses_of_run(folder).items()}
    assert client.get_run(number).data.tags["trainctl.ending"] == "0"
    assert client.get_run(number).data.params["optimizer.type"] == "adam"


def wandb_reads_its_folder():
    import wandb  # noqa: F401
    from wandb_file import losses_of
    folder = write("wandb", "[wandb]")
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert "wandb sync " in done.stdout, done.stdout
    assert losses_of(next((folder / "log_output/1/wandb").glob("offline-run-*"))) == losses_of_run(folder)


def main():
    cases = [a_command_gets_each_line_and_runs_beside_the_job, a_command_may_be_a_mapping,
             a_tracker_that_cannot_start_is_an_error_before_the_run, a_tracker_that_is_not_required_is_a_warning,
             a_tracker_that_fails_is_named_and_does_not_fail_the_run, a_tracker_that_hangs_does_not_hold_the_run,
             a_killed_launcher_leaves_no_tracker, on_several_hosts_the_launcher_runs_the_tracker, mlflow_reads_its_store, wandb_reads_its_folder]
    skipped = []
    for case in cases:
        begin = time.monotonic()
        try:
            case()
        except ImportError as error:
            skipped.append(str(error))
            continue
        print(f"{case.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    if skipped:
        print("skipped:", "; ".join(skipped))
        sys.exit(77)


if __name__ == "__main__":
    main()
