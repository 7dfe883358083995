// Writes rank.<N>/trace.json of `run --profile`, once the profiled steps are over.
#include "cli/run/worker/rank_profile.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <span>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/train/profile/trace.h"

namespace trainctl {

RankProfileFile::RankProfileFile(const Program& program, const std::string& steps, const std::string& job,
                                 const RunDirectory& directory)
    : job_(job), path_(directory.rank_file(program.rank, "trace.json")) {
  if (!steps.empty()) profile_.emplace(program, parse_profile_steps(steps));
}

void RankProfileFile::on_step(const StepReport&) {
  if (profile_ && !written_ && profile_->complete()) write();
}

void RankProfileFile::ended() {
  if (profile_ && !written_ && !profile_->profile().spans.empty()) write();
}

/// Writes the file atomically, since the launcher may read it at any time.
void RankProfileFile::write() {
  written_ = true;
  const std::string part = path_ + ".part";
  std::ofstream file(part, std::ios::trunc);
  write_trace(file, std::span(&profile_->profile(), 1), job_);
  file.close();
  if (!file || std::rename(part.c_str(), path_.c_str()) != 0) {
    throw EnvError("cannot write " + path_ + ": " + describe_errno(errno));
  }
}

}  // namespace trainctl
