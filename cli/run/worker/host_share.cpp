// State that the ranks of one host share, created by their agent: the segment, with the statuses of all ranks of the
// job and the arenas of the ranks on this host, and access to this host's store.
#include "cli/run/worker/host_share.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "cli/run/saves/host_saves.h"
#include "cli/run/saves/host_snapshots.h"
#include "cli/run/worker/rendezvous.h"
#include "engine/base/error.h"
#include "engine/runtime/comm/board_changes.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/files/digest.h"

namespace trainctl {
namespace {

/// More memory than any host has; sums of such arenas do not overflow.
constexpr int64_t kMostArenaBytes = int64_t{1} << 42;
constexpr size_t kMostRanks = 1 << 20;

/// Returns whether this host sees the launcher's checkpoint, in a shared folder.
bool has_checkpoint(const std::string& folder, const std::string& digest) {
  std::ifstream file(folder + "/" + std::string(kManifestName), std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return file && digest_of(text.str()) == digest;
}

/// HostShare of a network. A program (`workload` is null) shares nothing.
class SegmentShare : public hosts::HostShare {
 public:
  bool prepare(const nlohmann::json& what, const std::vector<int>& ranks, const std::string& given) override {
    if (what.is_null()) return false;
    const auto runs_here = [&](int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); };
    auto arenas = what.at("arena_bytes").get<std::vector<int64_t>>();
    const auto is_rank = [&](int rank) { return rank >= 0 && static_cast<size_t>(rank) < arenas.size(); };
    if (ranks.empty() || arenas.size() > kMostRanks || !std::all_of(ranks.begin(), ranks.end(), is_rank))
      throw EnvError("invalid ranks for this host");
    std::vector<int> others;
    for (size_t rank = 0; rank < arenas.size(); ++rank) {
      if (arenas[rank] < 0 || arenas[rank] > kMostArenaBytes) throw EnvError("invalid arena size");
      if (runs_here(static_cast<int>(rank))) continue;
      arenas[rank] = 0;
      others.push_back(static_cast<int>(rank));
    }
    std::vector<Route> routes;
    for (const auto& route : what.at("routes")) {
      const Route it{route.at(0).get<int32_t>(), route.at(1).get<int32_t>()};
      if (!is_rank(it.from) || !is_rank(it.to) || it.from == it.to) throw EnvError("invalid route between ranks");
      if (runs_here(it.from) && runs_here(it.to)) routes.push_back(it);
    }
    memory_ = SharedMemory::create(arenas, std::move(routes));
    changes_.emplace(*memory_, ranks);
    others_ = std::move(others);
    saves_.reset();
    if (what.contains("saves_from"))
      saves_.emplace(memory_, ranks, what.at("saves_from").get<int64_t>(), what.value("steps_await_saves", false));
    snapshots_.reset();
    if (what.value("holds", false)) snapshots_.emplace(ranks);
    if (!what.contains("resume")) return false;
    const auto folder = what.at("resume").at("folder").get<std::string>();
    const bool is_here = has_checkpoint(folder, what.at("resume").at("digest").get<std::string>());
    checkpoint_ = is_here ? folder : given;
    return !is_here;
  }

  void complete(int rank, ProcessCommand& command, uint16_t store_port, const std::string& store_token) override {
    if (!memory_) return;
    const auto fill = [&](const char* word, const std::string& with) {
      std::replace(command.argv.begin(), command.argv.end(), std::string(word), with);
    };
    fill(kMemoryPlaceholder, std::to_string(memory_->fd()));
    fill(kCheckpointPlaceholder, checkpoint_);
    command.inherited_fds.push_back(memory_->fd());
    if (saves_) {
      fill(kImagePlaceholder, std::to_string(saves_->image(rank)));
      command.inherited_fds.push_back(saves_->image(rank));
    }
    if (snapshots_) {
      fill(kSnapshotPlaceholder, std::to_string(snapshots_->memory(rank)));
      command.inherited_fds.push_back(snapshots_->memory(rank));
    }
    if (store_token != store_token_) store_.emplace(store_port, store_token);
    store_token_ = store_token;
    store_->add_to(command);
  }

  std::string changes() override { return changes_ ? changes_->take() : ""; }
  void apply(std::string_view changes) override {
    if (memory_) apply_changes(changes, others_, *memory_);
  }
  uint64_t hold() override { return memory_ ? memory_->gate().hold() : 0; }
  void stop_after(uint64_t step) override {
    if (memory_) memory_->gate().stop_after(step);
  }
  void release() override {
    if (memory_) memory_->gate().release();
  }
  std::optional<hosts::SaveMessage> next_save_message() override {
    auto message = saves_ ? saves_->next() : std::nullopt;
    return message || !snapshots_ ? message : snapshots_->next();
  }
  void take(const hosts::SaveMessage& message) override {
    if (snapshots_ && snapshots_->take(message)) return;
    if (saves_) saves_->take(message);
  }
  void ended(int rank, bool failed) override {
    if (memory_ && failed) memory_->status(rank).state = RankState::failed;  // peers stop waiting for it
  }

 private:
  std::shared_ptr<SharedMemory> memory_;
  std::optional<BoardChanges> changes_;
  std::vector<int> others_;
  std::optional<HostSaves> saves_;
  std::optional<HostSnapshots> snapshots_;
  std::optional<StoreAccess> store_;
  std::string store_token_;
  std::string checkpoint_;  ///< folder that the ranks resume from
};

}  // namespace

std::unique_ptr<hosts::HostShare> make_host_share() { return std::make_unique<SegmentShare>(); }

}  // namespace trainctl
