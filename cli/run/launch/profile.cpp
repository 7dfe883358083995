// `run --profile`: after the ranks have ended, writes one trace of all ranks and its summary.
#include "cli/run/launch/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/text/profile_report.h"
#include "engine/base/error.h"
#include "engine/base/output_file.h"
#include "engine/train/profile/profile_json.h"
#include "engine/train/profile/summary.h"
#include "engine/train/profile/trace.h"

namespace trainctl {

void GpuWatch::look() {
  if (const std::optional<CudaLoad> load = monitor_.load(index_)) seen_.push_back(*load);
}

std::optional<CudaLoad> GpuWatch::middle() const {
  if (seen_.empty()) return std::nullopt;
  const auto median = [&](double CudaLoad::*field) {
    std::vector<double> values;
    for (const CudaLoad& load : seen_) values.push_back(load.*field);
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
  };
  CudaLoad middle = seen_[0];
  for (const auto field : {&CudaLoad::clock_mhz, &CudaLoad::watts, &CudaLoad::busy}) middle.*field = median(field);
  return middle;
}

std::string collect_profile(const ProfileOptions& options, const std::vector<Program>& programs, const std::string& job,
                            const RunDirectory& directory, const Machine& machine,
                            const std::optional<CudaLoad>& load) {
  std::vector<RankProfile> profiles;
  for (const Program& program : programs) {
    std::ifstream file(directory.rank_file(program.rank, "trace.json"));
    if (file) profiles.push_back({&program, read_trace(file)});
  }
  if (profiles.empty()) {
    return fmt::format("no profile: no rank finished step {} (--profile-steps {})", options.steps.first,
                       to_string(options.steps));
  }
  const std::string path = options.file.empty() ? directory.file("trace.json") : options.file;
  std::ostringstream trace;
  write_trace(trace, profiles, job);
  write_output(path, trace.str());
  const ProfileSummary summary = summarize(profiles);
  const std::vector<StepComponent> parts = step_components(profiles, machine);
  directory.write("profile.json", profile_json(summary, parts, ran_tasks(profiles), machine).dump() + "\n");
  std::string text = render_profile(summary) + "\n" + render_parts(parts, machine, load);
  if (profiles.size() < programs.size()) {
    text += fmt::format("\nonly {} of {} ranks wrote a trace; the others are not included\n", profiles.size(),
                        programs.size());
  }
  return text + fmt::format("\ntrace of all ranks: {}; open it in ui.perfetto.dev or chrome://tracing", path);
}

}  // namespace trainctl
