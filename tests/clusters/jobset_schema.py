"""The fields of a JobSet (jobset.x-k8s.io/v1alpha2) as its custom resource definition has them, for jsonschema.

Source: config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of github.com/kubernetes-sigs/jobset. Unknown fields are
refused, as `kubectl apply --validate=strict` does; the Job in a template is validated as a Job of batch/v1 by the test.

    jobset_schema.py CRD.yaml       compares these fields with a definition's
"""
import sys


def of(fields, required=()):
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


TEXT, FLAG, NUMBER = {"type": "string"}, {"type": "boolean"}, {"type": "integer"}
COUNT, ANY = {"type": "integer", "minimum": 0}, {"type": "object"}


def one_of(*words):
    return {"type": "string", "enum": list(words)}


def array(items, **limits):
    return {"type": "array", "items": items, **limits}


DEPENDS_ON = of({"name": TEXT, "status": one_of("Ready", "Complete")}, ["name", "status"])
REPLICATED_JOB = of({"name": TEXT, "groupName": TEXT, "replicas": COUNT, "template": ANY, "dependsOn": array(DEPENDS_ON, maxItems=5)}, ["name", "template"])
RULE = of({"name": TEXT, "onJobFailureReasons": array(TEXT), "onJobFailureMessagePatterns": array(TEXT), "targetReplicatedJobs": array(TEXT),
           "action": one_of("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob", "RestartJobAndIgnoreMaxRestarts")},
          ["name", "action"])
SPEC = of({
    "replicatedJobs": array(REPLICATED_JOB),
    "network": of({"enableDNSHostnames": FLAG, "subdomain": TEXT, "publishNotReadyAddresses": FLAG}),
    "successPolicy": of({"operator": one_of("All", "Any"), "targetReplicatedJobs": array(TEXT)}, ["operator"]),
    "failurePolicy": of({"maxRestarts": NUMBER, "restartStrategy": one_of("Recreate", "BlockingRecreate", "InPlaceRestart"), "rules": array(RULE)}),
    "startupPolicy": of({"startupPolicyOrder": one_of("AnyOrder", "InOrder")}, ["startupPolicyOrder"]),
    "coordinator": of({"replicatedJob": TEXT, "jobIndex": NUMBER, "podIndex": NUMBER}, ["replicatedJob"]),
    "suspend": FLAG, "managedBy": TEXT, "ttlSecondsAfterFinished": COUNT, "volumeClaimPolicies": array(ANY, maxItems=50),
})
JOBSET = {
    "type": "object",
    "properties": {"apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"}, "kind": {"const": "JobSet"}, "metadata": ANY, "spec": SPEC},
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
}


def differences(mine, theirs, path="spec"):
    """Lists where a definition says something else."""
    found = []
    for word in ["type", "enum", "minimum", "maxItems"]:
        if mine.get(word) != theirs.get(word):
            found.append(f"{path}: {word} is {theirs.get(word)}, here {mine.get(word)}")
    if "properties" not in mine:  # a Job, claims: another schema's
        return found + (differences(mine["items"], theirs["items"], path + "[]") if "properties" in mine.get("items", {}) else [])
    if mine["properties"].keys() != theirs["properties"].keys():
        found.append(f"{path}: {sorted(mine['properties'].keys() ^ theirs['properties'].keys())} are in one of them alone")
    if sorted(mine["required"]) != sorted(theirs.get("required", [])):
        found.append(f"{path}: required are {theirs.get('required')}, here {mine['required']}")
    for name in mine["properties"].keys() & theirs["properties"].keys():
        found += differences(mine["properties"][name], theirs["properties"][name], f"{path}.{name}")
    return found


if __name__ == "__main__":
    import yaml
    with open(sys.argv[1]) as file:
        definition = yaml.safe_load(file)
    version, = [one for one in definition["spec"]["versions"] if one["name"] == "v1alpha2"]
    found = differences(SPEC, version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    print("\n".join(found) or "the same fields")
    sys.exit(bool(found))
