// The output of an asynchronous server: start_up.json, its status for the launcher, and a line at its end.
#pragma once

#include <string>

#include "engine/compile/program.h"
#include "engine/runtime/comm/shared_memory.h"
#include "engine/train/servers/server.h"
#include "launcher/run_directory.h"

namespace trainctl {

class ServerOutput : public ServerObserver {
 public:
  /// All must outlive it.
  ServerOutput(const PlannedJob& job, const Program& program, RankStatus& status, const RunDirectory& directory);
  ServerOutput(const ServerOutput&) = delete;
  ServerOutput& operator=(const ServerOutput&) = delete;

  void on_update(int64_t updates, int64_t staleness) override;
  void on_first_update(const StartUpClock& clock) override;
  void on_epoch(const EpochReport& report) override;
  /// Writes "630 updates; staleness of gradients: 1.8 updates on average, 7 at most" and, for each table, "table.deep: 512,345 rows, 140.1 MiB; 8,401,122 read, 8,399,040 updated".
  void ended(const AsyncServer& server) const;

 private:
  const PlannedJob& job_;
  RankStatus& status_;
  const std::string start_up_path_;
  int64_t sum_ = 0, count_ = 0, most_ = 0;  ///< sum, count and maximum of the updates' staleness
};

}  // namespace trainctl
