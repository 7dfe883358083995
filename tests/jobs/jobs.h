// The jobs that tests and benchmarks run are in tests/jobs, one per file, and are known by the file's name. Tests
// change them by overrides. Two kinds of jobs stay with their test: networks that it generates from its arguments, and
// texts whose lines and columns it checks.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/spec/parse.h"

namespace trainctl {

inline std::string job_file(const std::string& name) { return TRAINCTL_SOURCE_DIR "/tests/jobs/" + name + ".yaml"; }

/// The file's text, to be written to another place.
inline std::string job_text(const std::string& name) {
  std::ifstream file(job_file(name));
  if (!file) throw std::runtime_error("no job " + job_file(name));
  return {std::istreambuf_iterator<char>(file), {}};
}

inline JobSpec job_spec(const std::string& name, const std::vector<std::string>& overrides = {}) {
  return load_job(job_file(name), overrides);
}

/// All names, sorted.
inline std::vector<std::string> job_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TRAINCTL_SOURCE_DIR "/tests/jobs"))
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace trainctl
