// One anonymous memory segment (memfd) that the ranks of one host share: each rank's status, the tables of groups,
// channels for messages, and every rank's arena.
#include "engine/runtime/comm/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/text.h"
#include "engine/runtime/comm/segment.h"

namespace trainctl {
namespace {

[[noreturn]] void throw_errno(const std::string& what) {
  throw EnvError(fmt::format("shared memory: {}: {}", what, describe_errno(errno)));
}

}  // namespace

std::shared_ptr<SharedMemory> SharedMemory::create(const std::vector<int64_t>& arena_bytes_per_rank,
                                                   std::vector<Route> routes) {
  check(!arena_bytes_per_rank.empty(), "a segment has at least one rank");
  for (int64_t bytes : arena_bytes_per_rank) check(bytes >= 0, "an arena has a size");
  const auto is_rank = [&](int32_t rank) { return rank >= 0 && rank < std::ssize(arena_bytes_per_rank); };
  for (const auto& [from, to] : routes) {
    check(is_rank(from) && is_rank(to) && from != to, "a route is from one rank of the job to another");
  }
  std::sort(routes.begin(), routes.end());
  routes.erase(std::unique(routes.begin(), routes.end()), routes.end());
  std::shared_ptr<SharedMemory> memory(new SharedMemory);
  const int64_t bytes = comm::Segment::bytes_needed(arena_bytes_per_rank, routes);
  memory->fd_ = memfd_create("trainctl", MFD_ALLOW_SEALING);
  if (memory->fd_ < 0) throw_errno("cannot create a segment");
  if (ftruncate(memory->fd_, bytes) != 0) {
    throw_errno(
        fmt::format("cannot allocate the arenas of {} ranks ({})", arena_bytes_per_rank.size(), format_bytes(bytes)));
  }
  // No process can truncate it while others use it.
  if (fcntl(memory->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw_errno("cannot seal the segment");
  memory->map(bytes);
  comm::Segment::initialize(memory->base_, arena_bytes_per_rank, routes);
  memory->segment_ = std::make_unique<comm::Segment>(memory->base_, bytes);
  return memory;
}

std::shared_ptr<SharedMemory> SharedMemory::attach(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) throw_errno(fmt::format("cannot open descriptor {}", fd));
  if (!S_ISREG(info.st_mode) || info.st_size < 8192) {
    throw EnvError(
        fmt::format("shared memory: descriptor {} is not a trainctl segment; use the value of --shm-fd that the "
                    "launcher passed",
                    fd));
  }
  std::shared_ptr<SharedMemory> memory(new SharedMemory);
  memory->fd_ = fd;
  memory->map(info.st_size);
  memory->segment_ = std::make_unique<comm::Segment>(memory->base_, memory->bytes_);
  return memory;
}

void SharedMemory::map(int64_t bytes) {
  void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (base == MAP_FAILED) throw_errno(fmt::format("cannot map {}", format_bytes(bytes)));
  base_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
}

SharedMemory::~SharedMemory() {
  segment_.reset();
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
  if (fd_ >= 0) close(fd_);
}

int SharedMemory::num_ranks() const { return segment_->num_ranks(); }
std::span<std::byte> SharedMemory::arena(int rank) const { return segment_->arena(rank); }
RankStatus& SharedMemory::status(int rank) const { return segment_->status(rank); }
StepGate& SharedMemory::gate() const { return segment_->gate(); }
SaveBoard& SharedMemory::saves() const { return segment_->saves(); }
BatchBoard& SharedMemory::batches() const { return segment_->batches(); }

KeyValueStore& SharedMemory::values() const {
  check(values_ != nullptr, "a board must be initialised before it is used");
  return *values_;
}

}  // namespace trainctl
