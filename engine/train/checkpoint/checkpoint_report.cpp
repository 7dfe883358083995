// The checkpoint section of `trainctl plan`: the sizes of the files that the ranks would write.
#include "engine/train/checkpoint/checkpoint_report.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "engine/base/error.h"
#include "engine/compile/compile.h"
#include "engine/compile/rank_classes.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/spec/adapters.h"
#include "engine/train/checkpoint/state_image.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

/// Counts the bytes of model.safetensors: the whole tensors of the slots that write_checkpoint puts into that file.
class WholeFile {
 public:
  explicit WholeFile(const Graph& graph) {
    for (const Tensor& tensor : graph.tensors)
      if (tensor.is_base) left_out_.insert(tensor.name);
  }
  void add(const Program& program) {
    for (const StoredRange& range : stored_ranges(program)) {
      const Variable& variable = *range.variable;
      const bool is_chosen = range.slot == kWeightSlot || range.slot == kStateSlot;
      if (!is_chosen || range.is_copy || range.count == 0 || left_out_.contains(variable.name)) continue;
      if (!names_.insert(variable.name).second) continue;
      entries_.push_back({.name = variable.name + ":" + std::string(range.slot),
                          .type = stored_type(range.dtype),
                          .shape = variable.global_shape});
    }
  }
  size_t num_tensors() const { return names_.size() + left_out_.size(); }
  /// Size of the file without the metadata in its header, which is short.
  int64_t bytes() {
    const SafetensorsHeader header = lay_out(std::move(entries_));
    return header.data_at + header.data_bytes();
  }

 private:
  std::set<std::string> names_, left_out_;
  std::vector<SafetensorsEntry> entries_;
};

/// Ranks whose files have the same size share a row; rows are in the order of their first ranks.
class RankRows {
 public:
  void add(int rank, int64_t bytes) {
    const auto [place, is_new] = row_of_.try_emplace(bytes, rows_.size());
    if (is_new) rows_.push_back({{"ranks", Json::array()}, {"bytes", bytes}});
    rows_[place->second]["ranks"].push_back(rank);
  }
  Json take() { return std::move(rows_); }

 private:
  std::unordered_map<int64_t, size_t> row_of_;  ///< by bytes
  Json rows_ = Json::array();
};

/// Adds the base that the saves leave out.
void put_base(const PlannedJob& job, Json& report) {
  if (saves_without_base(job.spec)) report["base"] = job.spec.weights->from;
}

}  // namespace

Json checkpoint_report(const PlannedJob& job) {
  check(job.spec.train.saves_state(), "the job saves checkpoints");
  const bool integrated = job.spec.train.saving().integrated;
  StateCompiler states(job.graph, job.plan, job.cost);
  RankRows rows;
  WholeFile whole(job.graph);
  int64_t bytes = 0;
  int files = 2;  // checkpoint.json, job.yaml
  for (int rank = 0; rank < job.spec.processes(); ++rank) {
    const Program program = of_process(states.compile(rank_of_program(job.plan, rank)), job.plan, rank);
    const int64_t of_rank = state_image_bytes(program);
    if (integrated && whole.num_tensors() < job.plan.variables.size()) whole.add(program);
    rows.add(rank, of_rank);
    bytes += of_rank;
    files += of_rank > 0 ? 1 : 0;
  }
  Json report = {
      {"bytes", bytes}, {"files", files}, {"seconds", 0.0}, {"assumed_bytes_per_second", kAssumedBytesPerSecond}};
  if (integrated) {
    const int64_t more = whole.bytes();
    report["bytes"] = bytes + more;
    report["files"] = files + 1;
    report["integrated_bytes"] = more;
  }
  report["seconds"] = report["bytes"].get<double>() / kAssumedBytesPerSecond;
  report["ranks"] = rows.take();
  put_base(job, report);
  return report;
}

Json final_weights_report(const PlannedJob& job, const std::vector<Program>& programs) {
  WholeFile whole(job.graph);
  for (const Program& program : programs) whole.add(program);
  const std::string dir = job.spec.train.saving().dir;
  Json report = {{"bytes", whole.bytes()},
                 {"folder", dir.empty() ? job.spec.launch.log_dir + "/<run>/checkpoints" : dir}};
  put_base(job, report);
  return report;
}

}  // namespace trainctl
