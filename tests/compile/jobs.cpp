// Loads jobs of tests/jobs with the settings that the compiler's tests vary in them.
#include "tests/compile/jobs.h"

#include <algorithm>
#include <array>

#include "engine/model/model.h"
#include "tests/jobs/jobs.h"

namespace trainctl {

const std::vector<std::string> kNetworks = {"deep_mlp",    "norms", "language", "attention",
                                            "transformer", "pairs", "convnet"};
const std::vector<std::string> kLevels = {
    "parallel.optimizer_shard={level: 0}", "parallel.optimizer_shard={level: 1, min_kb: 0}",
    "parallel.optimizer_shard={level: 2, min_kb: 0}", "parallel.optimizer_shard={level: 3, min_kb: 0}"};
const std::vector<std::string> kSchedules = {"parallel.schedule=gpipe", "parallel.schedule=1f1b"};

Job job(JobSpec spec) {
  Job j;
  j.spec = std::move(spec);
  const DatasetSpec& set = j.spec.dataset;
  const bool clicks = set.type == "clicks";
  DataShapes shapes =
      data_and_label(set.shape, set.label_shape, set.dtype == "i32", clicks || set.label_dtype == "i32");
  if (clicks) shapes.fields.push_back({"ids", {set.ids}, true});
  j.graph = build_graph(j.spec, shapes);
  j.plan = make_plan(j.graph, j.spec, CostModel());
  return j;
}

Job job(const std::string& name, std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), "dataset.batch=48");
  return job(job_spec(name, overrides));
}

std::vector<RecvStart> starts_of_recvs(const Program& program) {
  std::vector<RecvStart> starts;
  std::vector<int> after(program.instructions.size(), -1);  // the last kernel that has ended when an instruction starts
  std::array<int, kStreams> of_stream;
  of_stream.fill(-1);
  int last_kernel = -1;
  for (int i = 0; i < static_cast<int>(program.instructions.size()); ++i) {
    const Instruction& now = program.instructions[static_cast<size_t>(i)];
    int& ended = of_stream[static_cast<size_t>(now.stream)];
    for (int w : now.waits) {
      const Opcode opcode = program.instructions[static_cast<size_t>(w)].opcode;
      ended = std::max(ended, opcode == Opcode::kernel ? w : after[static_cast<size_t>(w)]);
    }
    after[static_cast<size_t>(i)] = ended;
    if (now.opcode == Opcode::kernel && now.stream == Stream::compute) last_kernel = i;
    if (now.opcode == Opcode::recv) starts.push_back({i, last_kernel, ended});
  }
  return starts;
}

std::vector<std::vector<std::string>> product(const std::vector<std::vector<std::string>>& lists) {
  std::vector<std::vector<std::string>> all = {{}};
  for (const auto& list : lists) {
    std::vector<std::vector<std::string>> longer;
    for (const auto& start : all) {
      for (const std::string& entry : list) {
        longer.push_back(start);
        if (!entry.empty()) longer.back().push_back(entry);
      }
    }
    all = std::move(longer);
  }
  return all;
}

}  // namespace trainctl
