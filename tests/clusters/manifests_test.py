"""The files that trainctl render writes are valid: manifests for Kubernetes, a batch script for bash, a complete compose file.

    python3 tests/clusters/manifests_test.py TRAINCTL

Manifests are validated by kubernetes-validate for three versions of Kubernetes, where ./bootstrap clusters has installed it; a JobSet by
the fields of its own definition (jobset_schema.py), and the Jobs that it makes as Jobs. Exits with 77 and the reason where PyYAML is not
there.
"""
import copy
import json
import pathlib
import stat
import subprocess
import sys
import tempfile

import jobset_schema
import queue_schemas
from judge import JOB, ROOT, require

for packages in (ROOT / "build/clusters/python").glob("lib/python3*/site-packages"):
    sys.path.append(str(packages))

FIELDS = ("launch.kubernetes.pods=2 launch.kubernetes.gpus_per_pod=1 launch.kubernetes.image=registry/trainctl:1 "
          "launch.kubernetes.namespace=ml launch.kubernetes.service_account=trainer launch.kubernetes.cpu=500m").split() + [
              "launch.kubernetes.volumes=data:/data, /mnt/sets:/sets", "launch.kubernetes.node_selector=gpu=h100",
              "launch.kubernetes.tolerations=nvidia.com/gpu:NoSchedule, team=ml:NoExecute"]


def render(trainctl, folder, *fields):
    """{file's name: its documents}"""
    import yaml
    said = subprocess.run([trainctl, "render", JOB, "-o", folder, *fields], capture_output=True, text=True, check=False)
    require(said.returncode == 0, said.stdout + said.stderr)
    return {path.name: list(yaml.safe_load_all(path.read_text())) for path in pathlib.Path(folder).iterdir() if path.suffix == ".yaml"}


def versions():
    try:
        import kubernetes_validate
    except ImportError:
        return []
    from kubernetes_validate import utils
    known = sorted({tuple(int(part) for part in version.split(".")[:2]) for version in utils.all_versions()})
    return [".".join(map(str, version)) for version in (known[0], known[len(known) // 2], known[-1])]


def validate(manifest):
    for version in versions():
        import kubernetes_validate
        kubernetes_validate.validate(manifest, version, strict=True)


def check_pod(pod, pods, uid):
    """Checks that a pod has what the ranks need, whichever kind makes it."""
    spec = pod["spec"]
    container, = spec["containers"]
    require(spec["subdomain"] == "mnist-mlp" and spec["restartPolicy"] == "Never", spec)
    require(spec["serviceAccountName"] == "trainer" and spec["nodeSelector"] == {"gpu": "h100"}, spec)
    require(spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                                    {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoExecute"}], spec["tolerations"])
    require(spec["terminationGracePeriodSeconds"] >= 60, spec)
    require(container["args"] == ["run", "/etc/trainctl/job.yaml"] and container["image"] == "registry/trainctl:1", container)
    variables = {one["name"]: one for one in container["env"]}
    require(variables["TRAINCTL_PODS"]["value"] == pods, variables)
    require(variables["TRAINCTL_JOB"]["valueFrom"]["fieldRef"]["fieldPath"] == (uid if uid.startswith("metadata.") else f"metadata.labels['{uid}']"), variables)
    require(variables["TRAINCTL_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "mnist-mlp-token", "key": "token"}}, variables)
    require(container["resources"]["limits"]["nvidia.com/gpu"] == "1" and container["resources"]["requests"]["cpu"] == "500m", container)
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in spec["volumes"]}
    require(mounts == {"trainctl-job": "/etc/trainctl", "trainctl-shm": "/dev/shm", "volume-0": "/data", "volume-1": "/sets"}, mounts)
    require(volumes.keys() == mounts.keys(), volumes)
    require(volumes["volume-0"]["persistentVolumeClaim"] == {"claimName": "data"}, volumes)
    require(volumes["volume-1"]["hostPath"] == {"path": "/mnt/sets"}, volumes)
    require(volumes["trainctl-shm"]["emptyDir"]["medium"] == "Memory", volumes)


def kubernetes(trainctl, folder):
    """An Indexed Job with a headless service, the job in a ConfigMap, the token in a Secret that others cannot read."""
    files = render(trainctl, folder, "launch.target=kubernetes", *FIELDS)
    service, job = files["job.yaml"]
    config, = files["config.yaml"]
    secret, = files["secret.yaml"]
    for manifest in (service, job, config, secret):
        require(manifest["metadata"]["namespace"] == "ml", manifest)
        validate(manifest)
    require(service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"], service)
    require(service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items(), "the service finds the pods")
    require(job["spec"]["completionMode"] == "Indexed" and job["spec"]["completions"] == job["spec"]["parallelism"] == 2, job)
    check_pod(job["spec"]["template"], "mnist-mlp-[0-1].mnist-mlp", "controller-uid")
    require(len(secret["stringData"]["token"]) >= 32, "a token")
    require(stat.S_IMODE((pathlib.Path(folder) / "secret.yaml").stat().st_mode) == 0o600, "a Secret's file is its owner's")
    (pathlib.Path(folder) / "again.yaml").write_text(config["data"]["job.yaml"])
    checked = subprocess.run([trainctl, "check", f"{folder}/again.yaml"], capture_output=True, text=True, check=False)
    require(checked.returncode == 0, checked.stderr)
    return f"Kubernetes {', '.join(versions()) or 'by its structure alone'}"


def is_valid(manifest):
    import jsonschema
    return jsonschema.Draft7Validator(jobset_schema.JOBSET).is_valid(manifest)


def validate_jobset(manifest):
    import jsonschema
    faults = [f"{list(fault.path)}: {fault.message}" for fault in jsonschema.Draft7Validator(jobset_schema.JOBSET).iter_errors(manifest)]
    require(not faults, faults)


def jobset(trainctl, folder):
    """A JobSet of one replicated Job, whose pods have its names."""
    files = render(trainctl, folder, "launch.target=kubernetes", "launch.kubernetes.kind=jobset", *FIELDS)
    manifest, = files["jobset.yaml"]
    require(manifest["apiVersion"] == "jobset.x-k8s.io/v1alpha2" and manifest["kind"] == "JobSet", manifest)
    require(manifest["spec"]["network"] == {"enableDNSHostnames": True, "subdomain": "mnist-mlp", "publishNotReadyAddresses": True}, manifest)
    validate_jobset(manifest)
    replicated, = manifest["spec"]["replicatedJobs"]
    require(replicated["name"] == "ranks" and replicated["replicas"] == 1, replicated)
    validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "mnist-mlp-ranks-0"}, **replicated["template"]})
    check_pod(replicated["template"]["spec"]["template"], "mnist-mlp-ranks-0-[0-1].mnist-mlp", "jobset.sigs.k8s.io/jobset-uid")
    for broken in (lambda m: m["spec"].update(replicatedJob=[]), lambda m: m["spec"]["failurePolicy"].update(maxRestarts="3"),
                   lambda m: m["spec"]["replicatedJobs"][0].pop("name"), lambda m: m.update(apiVersion="jobset.x-k8s.io/v1")):
        other = copy.deepcopy(manifest)
        broken(other)
        require(not is_valid(other), f"the schema refuses {other['spec']}")
    return "valid by its definition, and its Job by Kubernetes'"


def validate_by(schema, manifest):
    import jsonschema
    faults = [f"{list(fault.path)}: {fault.message}" for fault in jsonschema.Draft7Validator(schema).iter_errors(manifest)]
    require(not faults, faults)


def volcano(trainctl, folder):
    """A Job of Volcano, whose pods start together, in its queue."""
    files = render(trainctl, folder, "launch.target=kubernetes", "launch.kubernetes.kind=volcano", "launch.kubernetes.queue=team-a", *FIELDS)
    manifest, = files["volcano.yaml"]
    validate_by(queue_schemas.VOLCANO, manifest)
    spec = manifest["spec"]
    require(spec["queue"] == "team-a" and spec["minAvailable"] == 2 and "suspend" not in spec, spec)
    task, = spec["tasks"]
    require(task["name"] == "ranks" and task["replicas"] == 2, task)
    check_pod(task["template"], "mnist-mlp-ranks-[0-1].mnist-mlp", "metadata.annotations['scheduling.k8s.io/group-name']")
    return "valid by its definition"


def trainjob(trainctl, folder):
    """A TrainJob of Kubeflow and its runtime, which Kueue admits."""
    files = render(trainctl, folder, "launch.target=kubernetes", "launch.kubernetes.kind=trainjob", "launch.kubernetes.queue=team-a", *FIELDS)
    runtime, job = files["trainjob.yaml"]
    validate_by(queue_schemas.RUNTIME, runtime)
    validate_by(queue_schemas.TRAINJOB, job)
    require(job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] and job["spec"]["suspend"] is True, job)
    require(job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a", job)
    node, = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "mnist-mlp-node-0"}, "spec": node["template"]["spec"]})
    pod = node["template"]["spec"]["template"]
    require(pod["spec"]["containers"][0]["name"] == "node", "the trainer finds the container")
    check_pod(pod, "mnist-mlp-node-0-[0-1].mnist-mlp", "jobset.sigs.k8s.io/jobset-uid")
    return "valid by their definitions"


def kueue(trainctl, folder):
    """Jobs and JobSets in a queue of Kueue are created suspended; without a queue they are not."""
    for kind, name in (("job", "job.yaml"), ("jobset", "jobset.yaml")):
        with tempfile.TemporaryDirectory() as other:
            manifest = render(trainctl, other, "launch.target=kubernetes", f"launch.kubernetes.kind={kind}", "launch.kubernetes.queue=team-a",
                              *FIELDS)[name][-1]
            require(manifest["spec"]["suspend"] is True, manifest)
            require(manifest["metadata"]["labels"] == {"trainctl": "mnist-mlp", "kueue.x-k8s.io/queue-name": "team-a"}, manifest)
            validate(manifest) if kind == "job" else validate_jobset(manifest)
    manifest = render(trainctl, folder, "launch.target=kubernetes", *FIELDS)["job.yaml"][-1]
    require("suspend" not in manifest["spec"] and manifest["metadata"]["labels"] == {"trainctl": "mnist-mlp"}, manifest)
    return "suspended and labelled"


def compose(trainctl, folder):
    """One service a pod, with its number; the token comes from .env."""
    files = render(trainctl, folder, "launch.target=compose", *FIELDS)
    manifest, = files["compose.yaml"]
    require(list(manifest["services"]) == ["mnist-mlp-0", "mnist-mlp-1"], manifest)
    for number, service in enumerate(manifest["services"].values()):
        environment = service["environment"]
        require(environment["TRAINCTL_POD"] == str(number) and environment["TRAINCTL_PODS"] == "mnist-mlp-[0-1]", environment)
        require(environment["TRAINCTL_TOKEN"].startswith("${TRAINCTL_TOKEN:?"), environment)
        require(service["volumes"] == ["./job.yaml:/etc/trainctl/job.yaml:ro", "data:/data", "/mnt/sets:/sets"], service)
    require(manifest["volumes"] == {"data": {"external": True}}, manifest)
    secret = pathlib.Path(folder) / ".env"
    require(secret.read_text().startswith("TRAINCTL_TOKEN=") and stat.S_IMODE(secret.stat().st_mode) == 0o600, "the token's file")
    return "2 services"


def script(trainctl, folder):
    """A program: its memory is unknown, so nothing limits it, and a folder that the image may lack is a warning with its position."""
    folder = pathlib.Path(folder)
    (folder / "src").mkdir()
    (folder / "src/train.py").write_text("print('trained')\n")
    job = folder / "script.yaml"
    job.write_text("name: script\ncommand: [python3, train.py]\nworking_dir: src\nlaunch: {ranks: 2}\n")

    def files(target, *fields):
        said = subprocess.run([trainctl, "render", job, "-o", folder / target, f"launch.target={target}", *fields], capture_output=True, text=True, check=False)
        require(said.returncode == 0, said.stderr)
        return said.stderr, {path.name: path.read_text() for path in (folder / target).iterdir()}

    import yaml
    warning, written = files("kubernetes", "launch.kubernetes.pods=2")
    require("script.yaml:3:14: warning: working_dir: " in warning and f'launch.kubernetes.volumes="{folder}/src:{folder}/src"' in warning, warning)
    container, = list(yaml.safe_load_all(written["job.yaml"]))[1]["spec"]["template"]["spec"]["containers"]
    require(container["resources"] == {"requests": {"cpu": "1"}, "limits": {}}, container)
    require("working_dir" in files("compose")[0], "compose has an image too")
    require(not files("kubernetes", f"launch.kubernetes.volumes={folder}:{folder}")[0], "the folder is mounted")
    warning, written = files("kubernetes", "launch.kubernetes.memory=8Gi", f"launch.kubernetes.volumes={folder}:{folder}")
    container, = list(yaml.safe_load_all(written["job.yaml"]))[1]["spec"]["template"]["spec"]["containers"]
    require(container["resources"]["limits"] == {"memory": "8Gi"}, container)
    warning, written = files("slurm", "launch.slurm.nodes=2")
    require(not warning and "--mem" not in written["job.sbatch"], warning + written["job.sbatch"])
    require(subprocess.run(["bash", "-n"], input=written["job.sbatch"], text=True, check=False).returncode == 0, "bash reads the script")
    return "no limit of memory, one warning"


def slurm(trainctl, folder):
    """A batch script with the job's options, which bash reads."""
    render(trainctl, folder, "launch.target=slurm", "launch.slurm.nodes=2", "launch.slurm.partition=gpu", "launch.slurm.time=1:00:00",
           "launch.slurm.gpus_per_node=4", "launch.slurm.extra=[--mem=8G, --no-kill]")
    path = pathlib.Path(folder) / "job.sbatch"
    options = [line.removeprefix("#SBATCH ") for line in path.read_text().splitlines() if line.startswith("#SBATCH")]
    for option in ("--nodes=2", "--partition=gpu", "--time=1:00:00", "--gpus-per-node=4", "--mem=8G", "--no-kill", "--requeue", "--cpus-per-task=4",
                   "--job-name=mnist-mlp"):
        require(option in options, f"{option}: {options}")
    read = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    require(read.returncode == 0, read.stderr)
    return f"{len(options)} options"


def secret_env(trainctl, folder):
    """Values of env are in no file that others can read, and in no ConfigMap; the pods read the job from the Secret."""
    value = "s3cret-of-the-job"
    for target, fields in (("kubernetes", FIELDS), ("compose", FIELDS), ("slurm", ["launch.slurm.nodes=2"])):
        here = pathlib.Path(folder) / target
        render(trainctl, str(here), f"launch.target={target}", *fields)  # of an earlier day, without env
        files = render(trainctl, str(here), f"launch.target={target}", f"env.API_KEY={value}", *fields)
        holders = [path for path in here.iterdir() if value in path.read_text()]
        require(holders, f"{target}: the job's file has the value")
        for path in holders:
            require(stat.S_IMODE(path.stat().st_mode) == 0o600, f"{path} is its owner's")
        if target != "kubernetes":
            continue
        require([path.name for path in holders] == ["secret.yaml"] and not (here / "config.yaml").exists(), list(here.iterdir()))
        secret, = files["secret.yaml"]
        validate(secret)
        _, job = files["job.yaml"]
        validate(job)
        volume, = [one for one in job["spec"]["template"]["spec"]["volumes"] if one["name"] == "trainctl-job"]
        require(volume["secret"] == {"secretName": secret["metadata"]["name"], "items": [{"key": "job.yaml", "path": "job.yaml"}]}, volume)
        (here / "again.yaml").write_text(secret["stringData"]["job.yaml"])
        checked = subprocess.run([trainctl, "check", str(here / "again.yaml")], capture_output=True, text=True, check=False)
        require(checked.returncode == 0, checked.stderr)
        require(f"API_KEY: {value}" in secret["stringData"]["job.yaml"], "the pods have the value")
    return "3 targets"


def links(trainctl, folder):
    """A file that someone else has linked to elsewhere is not written through."""
    names = {"kubernetes": ("config.yaml", "secret.yaml", "job.yaml"), "compose": ("job.yaml", ".env", "compose.yaml"), "slurm": ("job.yaml", "job.sbatch")}
    for target, files in names.items():
        for name in files:
            here = pathlib.Path(folder) / f"{target}.{name}"
            here.mkdir()
            victim = pathlib.Path(folder) / "victim"
            victim.write_text("mine")
            (here / name).symlink_to(victim)
            fields = ["launch.slurm.nodes=2"] if target == "slurm" else FIELDS
            said = subprocess.run([trainctl, "render", JOB, "-o", str(here), f"launch.target={target}", *fields, f"launch.log_dir={folder}/logs"],
                                  capture_output=True, text=True, check=False)
            require(said.returncode == 3 and "symbolic link" in said.stderr, f"{name}: {said.returncode} {said.stderr}")
            require(victim.read_text() == "mine", f"{name}: the link was written through")
    return f"{sum(map(len, names.values()))} files"


def image_folder(trainctl, folder):
    """A container of a command needs its working_dir from the image, which render says, or from a volume."""
    job = pathlib.Path(folder) / "job.yaml"
    job.write_text("name: script\ncommand: [python3, train.py]\nlaunch: {ranks: 2, kubernetes: {image: registry/train:1, pods: 2}}\n")
    (pathlib.Path(folder) / "train.py").write_text("")

    def said(*fields):
        done = subprocess.run([trainctl, "render", str(job), "-o", folder + "/out", *fields], capture_output=True, text=True, check=False)
        require(done.returncode == 0, done.stderr)
        return done.stderr
    for target in ("kubernetes", "compose"):
        warning = said(f"launch.target={target}")
        require(f"the program starts in {folder}, a folder of this host that the image registry/train:1 may not contain" in warning, warning)
        require(f'launch.kubernetes.volumes="{folder}:{folder}"' in warning, warning)
        mounted = said(f"launch.target={target}", f"launch.kubernetes.volumes={folder}:{folder}")
        require("working_dir" not in mounted, mounted)
    require("working_dir" not in said("launch.target=slurm", "launch.slurm.nodes=2"), "Slurm has no image")
    return "2 targets"


def memory_limits(trainctl, folder):
    """The memory of a pod is what its ranks need by the plan, what the job says, or for a program unlimited."""
    def resources(path, *fields):
        with tempfile.TemporaryDirectory() as out:
            files = subprocess.run([trainctl, "render", path, "-o", out, "launch.target=kubernetes", *fields], capture_output=True, text=True, check=False)
            require(files.returncode == 0, files.stderr)
            import yaml
            job = list(yaml.safe_load_all((pathlib.Path(out) / "job.yaml").read_text()))[-1]
            return job["spec"]["template"]["spec"]["containers"][0].get("resources", {})

    def mebibytes(text):
        return {"Mi": 1, "Gi": 1024}[text[-2:]] * int(text[:-2])
    pods = ("launch.kubernetes.pods=2", "launch.kubernetes.image=registry/trainctl:1")
    small = resources(JOB, *pods)
    require(small["limits"]["memory"] == small["requests"]["memory"], small)
    plan = json.loads(subprocess.run([trainctl, "plan", "--json", JOB], capture_output=True, text=True, check=True).stdout)
    need = max(row["memory"]["total"] for row in plan["rank_classes"]) * plan["ranks"] / 2 / 2**20
    require(need <= mebibytes(small["limits"]["memory"]), (need, small))
    large = resources(JOB, *pods, "dataset.batch=65536", "dataset.repeat=64")
    require(mebibytes(large["limits"]["memory"]) > mebibytes(small["limits"]["memory"]) + 100, (small, large))
    require(resources(JOB, *pods, "launch.kubernetes.memory=7Gi")["limits"]["memory"] == "7Gi", "the job's own")
    script = pathlib.Path(folder) / "job.yaml"
    script.write_text("command: [sh, -c, ':']\nlaunch: {ranks: 2}\n")
    program = resources(str(script), *pods)
    require("memory" not in program.get("limits", {}) and "memory" not in program.get("requests", {}), program)
    return f"{small['limits']['memory']} for a need of {need:.0f} MiB, {large['limits']['memory']} for a large batch"


def refused(trainctl, folder):
    """A job that is not supported on several hosts is an error before anything is written."""
    said = subprocess.run([trainctl, "render", JOB, "-o", folder + "/none", "launch.target=kubernetes", "launch.kubernetes.pods=2",
                           "parallel.mode=parameter_server", "parallel.stages=1", "parallel.stage_config={}", "parallel.strategies=null",
                           "parallel.optimizer_shard=null"],
                          capture_output=True, text=True, check=False)
    require(said.returncode == 2 and "not supported on several hosts" in said.stderr, said.stderr)
    hosts = subprocess.run([trainctl, "render", JOB, "-o", folder + "/none"], capture_output=True, text=True, check=False)
    require(hosts.returncode == 2 and "launch.target" in hosts.stderr, hosts.stderr)
    require(not pathlib.Path(folder + "/none").exists(), "nothing is written")
    return "exit codes " + f"{said.returncode}, {hosts.returncode}"


def main():
    trainctl = sys.argv[1]
    try:
        import yaml  # noqa: F401
    except ImportError:
        print("skipped: needs PyYAML (./bootstrap clusters)")
        return 77
    failed = 0
    for case in (kubernetes, jobset, volcano, trainjob, kueue, compose, script, slurm, secret_env, links, image_folder, memory_limits, refused):
        with tempfile.TemporaryDirectory() as folder:
            try:
                said = case(trainctl, folder)
            except AssertionError as error:
                said, failed = f"FAILED: {error}", failed + 1
            print(f"{case.__name__:12} {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
