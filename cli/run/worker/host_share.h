// State that the ranks of one host share, created by their agent: the segment, with the statuses of all ranks of the
// job and the arenas of the ranks on this host, and access to this host's store.
#pragma once

#include <memory>

#include "launcher/hosts/agent.h"

namespace trainctl {

/// Placeholders in a rank's command, which HostShare replaces: descriptors, and the folder of the checkpoint to resume
/// from.
inline constexpr const char* kMemoryPlaceholder = "{memory}";
inline constexpr const char* kImagePlaceholder = "{image}";
inline constexpr const char* kSnapshotPlaceholder = "{snapshot_fd}";
inline constexpr const char* kCheckpointPlaceholder = "{checkpoint}";

std::unique_ptr<hosts::HostShare> make_host_share();

}  // namespace trainctl
