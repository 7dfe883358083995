// tests/bad_specs/*.yaml: each opens with the errors it must give, in file order and no others:
//   # error: LINE:COL: part of "path: message (hint)"        0:0 where the position is not known
//   # override: a.b=c                                        as given on the command line
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/spec/parse.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

struct Expected {
  std::string at, text;
};

struct BadJob {
  std::vector<Expected> errors;
  std::vector<std::string> overrides;
};

BadJob read_header(const fs::path& file) {
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

std::vector<Expected> errors_of(const fs::path& file, const std::vector<std::string>& overrides) {
  std::vector<Expected> errors;
  try {
    load_job(file.string(), overrides);
  } catch (const SpecError& e) {
    for (const Diagnostic& d : e.diagnostics()) {
      const std::string hint = d.hint.empty() ? "" : " (" + d.hint + ")";
      errors.push_back({std::to_string(d.pos.line) + ":" + std::to_string(d.pos.column),
                        (d.path.empty() ? "" : d.path + ": ") + d.message + hint});
    }
  }
  return errors;
}

}  // namespace

TEST_CASE("every bad job gets exactly the errors it asks for, where they are") {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(TRAINCTL_SOURCE_DIR "/tests/bad_specs"))
    if (entry.path().extension() == ".yaml") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= 45);
  for (const fs::path& file : files) {
    INFO(file.filename().string());
    const BadJob job = read_header(file);
    REQUIRE_FALSE(job.errors.empty());
    const std::vector<Expected> errors = errors_of(file, job.overrides);
    std::string got;
    for (const Expected& error : errors) got += error.at + ": " + error.text + "\n";
    INFO("got:\n" << got);
    CHECK(errors.size() == job.errors.size());
    for (size_t i = 0; i < std::min(errors.size(), job.errors.size()); ++i) {
      CHECK(errors[i].at == job.errors[i].at);
      CHECK_MESSAGE(errors[i].text.find(job.errors[i].text) != std::string::npos, "expected: " << job.errors[i].text);
    }
  }
}
