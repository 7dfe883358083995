// Files of tests/bad_specs: each opens with the errors that it must give, in file order, and no others.
//   # error: LINE:COL: part of "path: message (hint)"        0:0 if the position is unknown
//   # override: a.b=c                                        as given on the command line
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace trainctl {

struct ExpectedError {
  std::string at, text;
};

struct BadJob {
  std::vector<ExpectedError> errors;
  std::vector<std::string> overrides;
};

inline BadJob read_bad_job(const std::filesystem::path& file) {
  BadJob job;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line) && line.starts_with("# ");) {
    if (line.starts_with("# override: ")) job.overrides.push_back(line.substr(12));
    if (!line.starts_with("# error: ")) continue;
    const size_t split = line.find(": ", 9);
    REQUIRE_MESSAGE(split != std::string::npos, "'# error: LINE:COL: text', not: " << line);
    job.errors.push_back({line.substr(9, split - 9), line.substr(split + 2)});
  }
  return job;
}

/// Runs `pipeline(file, overrides)` on each job of a folder and compares its SpecErrors with those at the file's top.
template <class Pipeline>
void check_bad_jobs(const std::filesystem::path& folder, size_t at_least, Pipeline&& pipeline) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= at_least);
  for (const auto& file : files) {
    INFO(file.filename().string());
    const BadJob job = read_bad_job(file);
    REQUIRE_FALSE(job.errors.empty());
    std::vector<ExpectedError> errors;
    std::string got;
    try {
      pipeline(file.string(), job.overrides);
    } catch (const SpecError& e) {
      for (const Diagnostic& d : e.diagnostics()) {
        const std::string hint = d.hint.empty() ? "" : " (" + d.hint + ")";
        errors.push_back({std::to_string(d.pos.line) + ":" + std::to_string(d.pos.column),
                          (d.path.empty() ? "" : d.path + ": ") + d.message + hint});
        got += errors.back().at + ": " + errors.back().text + "\n";
      }
    }
    INFO("got:\n" << got);
    CHECK(errors.size() == job.errors.size());
    for (size_t i = 0; i < std::min(errors.size(), job.errors.size()); ++i) {
      CHECK(errors[i].at == job.errors[i].at);
      CHECK_MESSAGE(errors[i].text.find(job.errors[i].text) != std::string::npos, "expected: " << job.errors[i].text);
    }
  }
}

}  // namespace trainctl
