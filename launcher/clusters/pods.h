// Settings that the rendered manifests of Kubernetes and compose pass to the processes that they start.
#pragma once

namespace trainctl::clusters {

/// The names of all pods, in order, as a list of node_list.h: "mnist-[0-1].mnist". Its presence says that this process
/// is a pod's.
inline constexpr const char* kPodsVariable = "TRAINCTL_PODS";
/// The uid of the Job or JobSet, the same for all pods that it ever starts: a pod 0 that takes the place of a lost one
/// finds the runs of that one by it.
inline constexpr const char* kPodsJobVariable = "TRAINCTL_JOB";
/// The job's token, from a Secret: doors and the launcher prove to each other that they have it (door.h).
inline constexpr const char* kTokenVariable = "TRAINCTL_TOKEN";
/// Where doors listen.
inline constexpr int kDoorPort = 29'400;

}  // namespace trainctl::clusters
