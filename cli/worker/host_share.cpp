// See host_share.h.
#include "cli/worker/host_share.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/worker/rendezvous.h"
#include "engine/base/error.h"
#include "engine/runtime/comm/board_changes.h"
#include "engine/runtime/comm/shared_memory.h"

namespace trainctl {
namespace {

/// Of a network. A program (`workload` is null) shares nothing.
class SegmentShare : public hosts::HostShare {
 public:
  void prepare(const nlohmann::json& what, const std::vector<int>& ranks) override {
    if (what.is_null()) return;
    const auto is_here = [&](int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); };
    auto arenas = what.at("arena_bytes").get<std::vector<int64_t>>();
    std::vector<int> others;
    for (size_t rank = 0; rank < arenas.size(); ++rank) {
      if (arenas[rank] < 0) throw EnvError("an arena has no size");
      if (is_here(static_cast<int>(rank))) continue;
      arenas[rank] = 0;
      others.push_back(static_cast<int>(rank));
    }
    std::vector<Route> routes;
    for (const auto& route : what.at("routes")) {
      const Route it{route.at(0).get<int32_t>(), route.at(1).get<int32_t>()};
      if (is_here(it.from) && is_here(it.to)) routes.push_back(it);
    }
    memory_ = SharedMemory::create(arenas, std::move(routes));
    changes_.emplace(*memory_, ranks);
    others_ = std::move(others);
  }

  void complete(ProcessCommand& command, uint16_t store_port, const std::string& store_token) const override {
    if (!memory_) return;
    std::replace(command.argv.begin(), command.argv.end(), std::string(kMemoryWord), std::to_string(memory_->fd()));
    command.inherited_fds.push_back(memory_->fd());
    for (auto& variable : store_environment(store_port, store_token))
      command.environment.push_back(std::move(variable));
  }

  std::string changes() override { return changes_ ? changes_->take() : ""; }
  void apply(std::string_view changes) override {
    if (memory_) apply_changes(changes, others_, *memory_);
  }
  uint64_t hold() override { return memory_ ? memory_->gate().hold() : 0; }
  void stop_after(uint64_t step) override {
    if (memory_) memory_->gate().stop_after(step);
  }
  void ended(int rank, bool failed) override {
    if (memory_ && failed) memory_->status(rank).state = RankState::failed;  // peers stop waiting for it
  }

 private:
  std::shared_ptr<SharedMemory> memory_;
  std::optional<BoardChanges> changes_;
  std::vector<int> others_;
};

}  // namespace

std::unique_ptr<hosts::HostShare> make_host_share() { return std::make_unique<SegmentShare>(); }

}  // namespace trainctl
