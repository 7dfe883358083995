// Memory of GPUs in other processes of this host, mapped to addresses that this process's GPU can access.
#include "engine/runtime/cuda/peer_memory.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "engine/runtime/cuda/handles.h"

namespace trainctl::cuda {
namespace {

const std::string& boot_of_host() {
  static const std::string boot = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string text;
    std::getline(file, text);
    return text;
  }();
  return boot;
}

/// Process ids are not unique: each container counts its own.
uint64_t this_process() {
  static const uint64_t number = [] {
    std::random_device random;
    return (uint64_t{random()} << 32) | random();
  }();
  return number;
}

}  // namespace

SharedAllocation::SharedAllocation(void* base) : process_(this_process()) {
  const bool shared = cudaIpcGetMemHandle(&handle_, base) == cudaSuccess;
  cudaGetLastError();  // a refusal must not become an error of later calls
  const std::string& host = boot_of_host();
  if (shared) std::memcpy(host_, host.data(), std::min(host.size(), sizeof(host_) - 1));
}

PeerMemory::PeerMemory(const SharedAllocation& theirs) {
  const std::string& host = boot_of_host();
  if (host.empty() || host != theirs.host_ || theirs.process_ == this_process()) return;
  void* base = nullptr;
  if (cudaIpcOpenMemHandle(&base, theirs.handle_, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess)
    base_ = static_cast<std::byte*>(base);
  cudaGetLastError();
}

PeerMemory::~PeerMemory() {
  if (base_ != nullptr && !device_is_lost) cudaIpcCloseMemHandle(base_);
}

}  // namespace trainctl::cuda
