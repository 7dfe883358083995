// The jobs that tests and benchmarks run stand in tests/jobs, a file each, and are known by the file's name. What a
// test changes it says in overrides. Two kinds of text stay with their test: networks that it makes from its own
// arguments, and texts of which it checks lines and columns.
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

/// As it stands in the file, to be written elsewhere.
inline std::string job_text(const std::string& name) {
  std::ifstream file(job_file(name));
  if (!file) throw std::runtime_error("no job " + job_file(name));
  return {std::istreambuf_iterator<char>(file), {}};
}

inline JobSpec job_spec(const std::string& name, const std::vector<std::string>& overrides = {}) {
  return load_job(job_file(name), overrides);
}

/// All of them, sorted.
inline std::vector<std::string> job_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TRAINCTL_SOURCE_DIR "/tests/jobs"))
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace trainctl
