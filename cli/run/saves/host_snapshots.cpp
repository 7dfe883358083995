// Snapshots of the state in the memory of a host (cli/run/saves/state_snapshots.h), which a launcher fetches from the
// remaining hosts when one is lost.
#include "cli/run/saves/host_snapshots.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr int64_t kStatePieceBytes = 512 << 10;
/// States whose head exceeds the size of a message are not offered.
constexpr int64_t kMostHeadBytes = 1 << 20;

/// Length and header of a safetensors file (engine/train/files/safetensors.h).
std::string head_of(const StateSnapshots& snapshots, int64_t step) {
  const std::string length = snapshots.read(step, 0, sizeof(uint64_t));
  uint64_t bytes = 0;
  if (length.size() != sizeof bytes) return "";
  std::memcpy(&bytes, length.data(), sizeof bytes);
  if (bytes > kMostHeadBytes - sizeof bytes) return "";
  return snapshots.read(step, 0, static_cast<int64_t>(sizeof bytes + bytes));
}

}  // namespace

HostSnapshots::HostSnapshots(const std::vector<int>& ranks) {
  for (const int rank : ranks) {
    const int fd = memfd_create("trainctl-snapshots", 0);
    if (fd < 0)
      throw EnvError(std::string("cannot allocate memory for the state of the ranks: ") + std::strerror(errno));
    memories_[rank] = fd;
  }
}

HostSnapshots::~HostSnapshots() {
  for (const auto& [rank, fd] : memories_) close(fd);
}

void HostSnapshots::offer() {
  for (const auto& [rank, fd] : memories_) {
    const StateSnapshots snapshots(fd);
    const std::vector<int64_t> steps = snapshots.steps();
    for (const int64_t step : steps) messages_.push_back({.name = "snapshot", .rank = rank, .number = step});
    if (steps.empty()) continue;
    if (std::string head = head_of(snapshots, steps[0]); !head.empty())
      messages_.push_back({.name = "head", .rank = rank, .number = snapshots.bytes(), .text = std::move(head)});
  }
  messages_.push_back({.name = "offered", .rank = memories_.begin()->first});
}

bool HostSnapshots::take(const hosts::SaveMessage& message) {
  if (message.name == "offer") offer();
  if (message.name == "fetch" && memories_.contains(message.rank))
    fetches_.push_back({.rank = message.rank, .step = message.number});
  return message.name == "offer" || message.name == "fetch";
}

std::optional<hosts::SaveMessage> HostSnapshots::next() {
  if (!messages_.empty()) {
    hosts::SaveMessage message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }
  if (fetches_.empty()) return std::nullopt;
  Fetch& fetch = fetches_.front();
  const StateSnapshots snapshots(memories_.at(fetch.rank));
  if (fetch.sent < 0) {
    const auto position = snapshots.position(fetch.step);
    if (!position) {  // cannot happen: the ranks have ended
      fetches_.pop_front();
      return std::nullopt;
    }
    fetch.sent = 0;
    return hosts::SaveMessage{.name = "snapshot_begin",
                              .rank = fetch.rank,
                              .number = fetch.step,
                              .text = {reinterpret_cast<const char*>(&*position), sizeof *position}};
  }
  const int64_t bytes = std::min(kStatePieceBytes, snapshots.bytes() - fetch.sent);
  std::string piece = bytes > 0 ? snapshots.read(fetch.step, fetch.sent, bytes) : "";
  if (piece.empty()) {
    const int rank = fetch.rank;
    fetches_.pop_front();
    return hosts::SaveMessage{.name = "snapshot_end", .rank = rank};
  }
  const int64_t offset = fetch.sent;
  fetch.sent += bytes;
  return hosts::SaveMessage{.name = "snapshot_part", .rank = fetch.rank, .number = offset, .text = std::move(piece)};
}

}  // namespace trainctl
