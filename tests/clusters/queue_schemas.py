"""The fields of a Job of Volcano (batch.volcano.sh/v1alpha1), and of a TrainJob and a TrainingRuntime of Kubeflow
(trainer.kubeflow.org/v1alpha1), as their custom resource definitions have them, for jsonschema. Unknown fields are refused.

Sources: config/crd/volcano/bases/batch.volcano.sh_jobs.yaml of github.com/volcano-sh/volcano, and
manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml and …_trainingruntimes.yaml of github.com/kubeflow/trainer.

    queue_schemas.py KIND CRD.yaml       compares the fields of volcano, trainjob or trainingruntime with a definition's
"""
import sys

import jobset_schema
from jobset_schema import ANY, FLAG, NUMBER, TEXT, array, of, one_of


def kind_of(version, kind, spec):
    return {
        "type": "object",
        "properties": {"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": ANY, "spec": spec},
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
    }


EVENTS = ["*", "PodPending", "PodRunning", "PodFailed", "PodEvicted", "Unknown", "TaskCompleted", "OutOfSync", "CommandIssued", "JobUpdated",
          "TaskFailed"]
POLICY = of({"action": TEXT, "event": one_of(*EVENTS), "events": array(one_of(*EVENTS)), "exitCode": NUMBER, "timeout": TEXT})
TASK = of({"name": TEXT, "replicas": NUMBER, "minAvailable": NUMBER, "maxRetry": NUMBER, "template": ANY, "policies": array(POLICY),
           "dependsOn": ANY, "partitionPolicy": ANY, "topologyPolicy": one_of("none", "best-effort", "restricted", "single-numa-node")})
VOLCANO_SPEC = of({
    "schedulerName": TEXT, "queue": TEXT, "minAvailable": NUMBER, "minSuccess": NUMBER, "maxRetry": NUMBER, "plugins": ANY,
    "policies": array(POLICY), "tasks": array(TASK), "priorityClassName": TEXT, "runningEstimate": TEXT, "ttlSecondsAfterFinished": NUMBER,
    "networkTopology": ANY, "volumes": array(ANY),
})
TRAINER = of({"args": array(TEXT), "command": array(TEXT), "env": array(ANY), "image": TEXT, "numNodes": NUMBER, "numProcPerNode": NUMBER,
              "resourcesPerNode": ANY})
TRAINJOB_SPEC = of({
    "activeDeadlineSeconds": NUMBER, "initializer": ANY, "managedBy": TEXT, "runtimePatches": array(ANY),
    "runtimeRef": of({"apiGroup": TEXT, "kind": TEXT, "name": TEXT}, ["name"]), "suspend": FLAG, "trainer": TRAINER,
}, ["runtimeRef"])
RUNTIME_SPEC = of({
    "mlPolicy": of({"flux": ANY, "jax": ANY, "mpi": ANY, "numNodes": NUMBER, "torch": ANY, "xgboost": ANY}), "podGroupPolicy": ANY,
    "template": of({"metadata": ANY, "spec": jobset_schema.SPEC}),
})
VOLCANO = kind_of("batch.volcano.sh/v1alpha1", "Job", VOLCANO_SPEC)
TRAINJOB = kind_of("trainer.kubeflow.org/v1alpha1", "TrainJob", TRAINJOB_SPEC)
RUNTIME = kind_of("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", RUNTIME_SPEC)
SPECS = {"volcano": VOLCANO_SPEC, "trainjob": TRAINJOB_SPEC, "trainingruntime": RUNTIME_SPEC}


def names_of(mine, theirs, path="spec"):
    """Fields that only one of them has, as far down as they are written here."""
    found = []
    if "properties" in mine:
        if mine["properties"].keys() != theirs.get("properties", {}).keys():
            found.append(f"{path}: {sorted(mine['properties'].keys() ^ theirs.get('properties', {}).keys())} are in one of them alone")
        for name in mine["properties"].keys() & theirs.get("properties", {}).keys():
            found += names_of(mine["properties"][name], theirs["properties"][name], f"{path}.{name}")
    elif "properties" in mine.get("items", {}):
        found += names_of(mine["items"], theirs["items"], path + "[]")
    elif "enum" in mine and sorted(mine["enum"]) != sorted(theirs.get("enum", [])):
        found.append(f"{path}: one of {theirs.get('enum')}, here {mine['enum']}")
    return found


if __name__ == "__main__":
    import yaml
    with open(sys.argv[2]) as file:
        definition = yaml.safe_load(file)
    version, = [one for one in definition["spec"]["versions"] if one["name"] == "v1alpha1"]
    found = names_of(SPECS[sys.argv[1]], version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    print("\n".join(found) or "the same fields")
    sys.exit(bool(found))
