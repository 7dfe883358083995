// Opens NCCL when the first rank has a peer, and looks up its functions.
#include "engine/runtime/comm/nccl_library.h"

#include "engine/base/dynamic_library.h"
#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr int kOldest = 21800;

/// Opens the library and looks up its functions. Throws EnvError if it is missing or too old.
NcclLibrary open_nccl() {
  const DynamicLibrary file("NCCL", {"libnccl.so.2"});
  NcclLibrary nccl{};
  nccl.path = file.path();
  file.bind(nccl.get_version, "ncclGetVersion");
  if (nccl.get_version(&nccl.version) != ncclSuccess || nccl.version < kOldest) {
    throw EnvError("NCCL: " + nccl.path + " has version " + std::to_string(nccl.version) +
                   ", but at least 21800 (2.18) is required");
  }
  file.bind(nccl.get_unique_id, "ncclGetUniqueId");
  file.bind(nccl.init_rank, "ncclCommInitRankConfig");
  file.bind(nccl.split, "ncclCommSplit");
  file.bind(nccl.abort, "ncclCommAbort");
  file.bind(nccl.async_error, "ncclCommGetAsyncError");
  file.bind(nccl.error_string, "ncclGetErrorString");
  file.bind(nccl.last_error, "ncclGetLastError");
  file.bind(nccl.group_start, "ncclGroupStart");
  file.bind(nccl.group_end, "ncclGroupEnd");
  file.bind(nccl.all_reduce, "ncclAllReduce");
  file.bind(nccl.all_gather, "ncclAllGather");
  file.bind(nccl.reduce_scatter, "ncclReduceScatter");
  file.bind(nccl.broadcast, "ncclBroadcast");
  file.bind(nccl.send, "ncclSend");
  file.bind(nccl.recv, "ncclRecv");
  return nccl;
}

}  // namespace

void NcclLibrary::check(ncclResult_t result, const char* what) const {
  if (result == ncclSuccess) return;
  std::string text = std::string(what) + ": " + error_string(result);
  const char* said = last_error(nullptr);
  if (said != nullptr && said[0] != '\0') text += " (" + std::string(said) + ")";
  throw EnvError(text + "; set NCCL_DEBUG=WARN for details");
}

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = open_nccl();
  return library;
}

}  // namespace trainctl
