// Settings that the rendered manifests of Kubernetes and compose pass to the processes that they start.
#pragma once

namespace trainctl::clusters {

/// The names of all pods, in order, as a list of node_list.h: "mnist-[0-1].mnist". Its presence means that this process
/// runs in a pod.
inline constexpr const char* kPodsVariable = "TRAINCTL_PODS";
/// The uid of the Job or JobSet, the same for all pods that it ever starts: a pod 0 that replaces a lost one uses it to
/// find the runs of its predecessor.
inline constexpr const char* kPodsJobVariable = "TRAINCTL_JOB";
/// The job's token, from a Secret: listeners and the launcher prove to each other that they have it
/// (remote_listener.h).
inline constexpr const char* kTokenVariable = "TRAINCTL_TOKEN";
/// Port of the remote-execution listeners.
inline constexpr int kListenerPort = 29'400;

}  // namespace trainctl::clusters
