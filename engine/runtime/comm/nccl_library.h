// NCCL's functions. The first rank with a peer opens the library.
#pragma once

#include <nccl.h>

#include <string>

namespace trainctl {

struct NcclLibrary {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommSplit) split;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  int version = 0;   ///< 22809: 2.28.9
  std::string path;  ///< where it was found

  /// Throws EnvError with the failed call and NCCL's explanation.
  void check(ncclResult_t result, const char* what) const;
};

/// Throws EnvError if NCCL is missing, or older than 2.18 (ncclCommSplit).
const NcclLibrary& nccl_library();

}  // namespace trainctl
