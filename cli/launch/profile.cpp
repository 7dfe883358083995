// See the header.
#include "cli/launch/profile.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "cli/render/profile_report.h"
#include "engine/base/error.h"
#include "engine/train/profile/summary.h"
#include "engine/train/profile/trace.h"

namespace trainctl {

std::string collect_profile(const ProfileOptions& options, const std::vector<Program>& programs, const std::string& job,
                            const RunDirectory& directory) {
  std::vector<RankProfile> profiles;
  for (const Program& program : programs) {
    std::ifstream file(directory.rank_file(program.rank, "trace.json"));
    if (file) profiles.push_back({&program, read_trace(file)});
  }
  if (profiles.empty()) {
    return fmt::format("no profile: no rank came to the end of step {} (--profile-steps {})", options.steps.first,
                       to_string(options.steps));
  }
  const std::string path = options.file.empty() ? directory.file("trace.json") : options.file;
  std::ofstream file(path, std::ios::trunc);
  write_trace(file, profiles, job);
  file.close();
  if (!file) throw EnvError(fmt::format("cannot write the trace {}: {}", path, std::strerror(errno)));
  std::string text = render_profile(summarize(profiles));
  if (profiles.size() < programs.size()) {
    text +=
        fmt::format("\n{} of {} ranks left a trace; the others are not counted\n", profiles.size(), programs.size());
  }
  return text + fmt::format("\ntrace of all ranks in {}; open it in ui.perfetto.dev or chrome://tracing", path);
}

}  // namespace trainctl
