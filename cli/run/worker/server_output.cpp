// The output of an asynchronous server: start_up.json, its status for the launcher, and a line at its end.
#include "cli/run/worker/server_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/text.h"
#include "engine/train/files/metrics.h"

namespace trainctl {

namespace {

void write_server_line(const std::string& text) {
  const std::string line = text + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

ServerOutput::ServerOutput(const PlannedJob& job, const Program& program, RankStatus& status,
                           const RunDirectory& directory)
    : job_(job), status_(status), start_up_path_(directory.rank_file(program.rank, "start_up.json")) {}

void ServerOutput::on_first_update(const StartUpClock& clock) {
  std::ofstream(start_up_path_) << start_up_json(clock).dump() << '\n';
  status_.epoch = 1;  // signals to the launcher that the file exists
}

void ServerOutput::on_update(int64_t updates, int64_t staleness) {
  status_.finished_steps = static_cast<uint64_t>(updates);
  sum_ += staleness;
  ++count_;
  most_ = std::max(most_, staleness);
}

void ServerOutput::on_epoch(const EpochReport& report) {
  if (report.has_loss) write_server_line(epoch_line(report));
}

void ServerOutput::ended(const AsyncServer& server) const {
  const double mean = count_ == 0 ? 0.0 : static_cast<double>(sum_) / static_cast<double>(count_);
  write_server_line(fmt::format("{} updates; staleness of gradients: {:.1f} updates on average, {} at most",
                                with_commas(server.updates()), mean, most_));
  for (size_t t = 0; t < job_.tables.size(); ++t)
    write_server_line(fmt::format("{}: {} rows, {}; {} read, {} updated", job_.tables[t].layer,
                                  with_commas(server.tables()[t]->rows()), format_bytes(server.tables()[t]->bytes()),
                                  with_commas(server.tables()[t]->rows_read()),
                                  with_commas(server.tables()[t]->rows_updated())));
}

}  // namespace trainctl
