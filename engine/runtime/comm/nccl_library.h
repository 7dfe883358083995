// NCCL's functions. The library is opened by the first rank that has a peer.
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

  /// EnvError that names the call, and what NCCL has to say of it.
  void check(ncclResult_t result, const char* what) const;
};

/// EnvError where there is none, or one older than 2.18 (ncclCommSplit).
const NcclLibrary& nccl_library();

}  // namespace trainctl
