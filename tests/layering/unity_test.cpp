// In unity builds (cmake/unity.cmake) the sources of a room share one anonymous namespace. This test finds names that
// two of them define there, whichever files are grouped today.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "tests/layering/definitions.h"

namespace {

using trainctl::Definition;
using trainctl::definitions_of;

/// The library or test program whose sources may be compiled in one group with this one; "" if it is compiled alone.
std::string unity_group(const std::string& path) {
  static const std::regex alone(
      "engine/ops/(attention|small_step)/.*_cuda\\.(cu|cpp)|engine/ops/matmul/tiles_.*|engine/ops/cuda/cudnn_plans.*|"
      "engine/train/data/image/.*_kernels\\.cpp|engine/runtime/comm/combine\\.cpp|cli/main\\.cpp|tests/(fuzz|bench)/"
      ".*");
  static const std::regex cuda_room(
      "engine/(ops|runtime)/.*(_cuda\\.cpp|\\.cu)|engine/runtime/(cuda/|comm/nccl_(library|communicator)).*");
  static const std::regex cases("engine/.*_cases\\.cpp|tests/op_cases/[^/]*\\.cpp");
  static const std::regex room("^engine/[^/]+|^cli/(run|measure)/|^tests/.*/|^[^/]+");
  if (std::regex_match(path, alone)) return "";
  std::smatch found;
  std::regex_search(path, found, room);
  std::string group = found.str() + path.substr(path.rfind('.'));
  if (std::regex_match(path, cases) && !path.ends_with("_test.cpp")) group = "cases";
  return group + (std::regex_match(path, cuda_room) ? "_cuda" : path.ends_with("_cpu.cpp") ? "_cpu" : "");
}

/// The names in the anonymous namespaces of a source, after the namespaces around them.
std::set<std::string> names_of_source(std::istream& source) {
  std::set<std::string> names;
  for (const Definition& definition : definitions_of(source))
    if (const std::string name = definition.name(); definition.is_anonymous() && !name.empty()) names.insert(name);
  return names;
}

/// group -> name -> files
using Definitions = std::map<std::string, std::map<std::string, std::set<std::string>>>;

/// An alias may be repeated with the same meaning.
std::set<std::string> collisions(const Definitions& definitions) {
  std::set<std::string> found;
  for (const auto& [group, names] : definitions) {
    std::string previous;
    for (const auto& [name, files] : names) {
      const std::string alias = name.substr(0, name.find(" = ") + 1);
      if (alias.empty() ? files.size() > 1 : previous.starts_with(alias))
        found.insert(*files.begin() + ": " + name + " is defined again in " + *files.rbegin());
      previous = name;
    }
  }
  return found;
}

}  // namespace

TEST_CASE("the check of anonymous namespaces finds planted collisions, and no overloads") {
  Definitions planted;
  const auto add = [&](const std::string& path, const std::string& text) {
    std::istringstream source("namespace {\n" + text + "\n}  // namespace\n");
    for (const std::string& name : names_of_source(source)) planted[unity_group(path)][name].insert(path);
  };
  add("engine/plan/a.cpp",
      "constexpr int kMost = 3;\nstruct Row {\n};\nint pad(const Shape& s,\n        int n) {\n}\nusing A = int;");
  add("engine/plan/x/b.cpp",
      "const double kMost{2};\nstruct Row {\n};\nint pad(const Shape& shape, int by) {\n}\nusing A = float;");
  add("engine/plan/c.cpp", "int pad(Shape& s) {\n}\nstruct Later;\nusing A = int;\nvoid f() {\n  int kMost = 1;\n}");
  add("engine/search/d.cpp", "constexpr int kMost = 3;\nstruct Row {\n};");
  CHECK(collisions(planted).size() == 4);  // kMost, Row, pad, A; engine/search is another room
}

TEST_CASE("no two sources of a room define the same name in an anonymous namespace") {
  namespace fs = std::filesystem;
  const fs::path root = TRAINCTL_SOURCE_DIR;
  Definitions definitions;
  for (const char* folder : {"engine", "cli", "launcher", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string path = fs::relative(entry.path(), root).string();
      if (!path.ends_with(".cpp") && !path.ends_with(".cu")) continue;
      std::ifstream source(entry.path());
      for (const std::string& name : names_of_source(source)) definitions[unity_group(path)][name].insert(path);
    }
  }
  definitions.erase("");
  REQUIRE(definitions.size() > 40);
  for (const std::string& collision : collisions(definitions)) FAIL_CHECK(collision);
}
