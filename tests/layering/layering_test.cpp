// The rooms of docs/contributing.md as a rule: reads every include line and fails on a forbidden edge.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

using Rooms = std::set<std::string>;

// room -> the other rooms whose headers it may include.
const std::map<std::string, Rooms> kMayInclude = {
    {"engine/base", {}},
    {"engine/spec", {"engine/base"}},
    {"engine/graph", {"engine/base"}},
    {"engine/ops", {"engine/base", "engine/graph"}},
    {"engine/model", {"engine/base", "engine/spec", "engine/graph", "engine/ops"}},
    {"engine/machine", {"engine/base", "engine/graph", "engine/ops"}},
    {"engine/plan", {"engine/base", "engine/spec", "engine/graph", "engine/ops", "engine/machine"}},
    {"engine/search",
     {"engine/base", "engine/spec", "engine/graph", "engine/ops", "engine/model", "engine/machine", "engine/plan"}},
    {"engine/compile", {"engine/base", "engine/spec", "engine/graph", "engine/ops", "engine/machine", "engine/plan"}},
    {"engine/estimate",
     {"engine/base", "engine/graph", "engine/ops", "engine/machine", "engine/plan", "engine/compile"}},
    {"engine/runtime", {"engine/base", "engine/graph", "engine/ops", "engine/compile"}},
    {"engine/train",
     {"engine/base", "engine/spec", "engine/graph", "engine/ops", "engine/model", "engine/machine", "engine/plan",
      "engine/search", "engine/compile", "engine/estimate", "engine/runtime"}},
    {"launcher", {"engine/base", "engine/spec"}},
    {"cli",
     {"engine/base", "engine/spec", "engine/graph", "engine/ops", "engine/model", "engine/machine", "engine/plan",
      "engine/search", "engine/compile", "engine/estimate", "engine/runtime", "engine/train", "launcher"}},
};

struct Include {
  fs::path file;  // relative to the source tree
  int line;
  std::string target;
};

std::string room_of(const std::string& path) {
  for (const auto& [room, allowed] : kMayInclude)
    if (path.starts_with(room + "/")) return room;
  return "";
}

std::vector<Include> all_includes() {
  static const std::regex pattern(R"re(^\s*#\s*include\s*[<"]([^>"]+)[>"])re");
  std::vector<Include> includes;
  const fs::path root = TRAINCTL_SOURCE_DIR;
  for (const char* top : {"engine", "launcher", "cli"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      static const std::set<std::string> kSources = {".h", ".cpp", ".cu", ".cuh", ".inc"};
      if (!kSources.contains(entry.path().extension())) continue;
      std::ifstream in(entry.path());
      std::string text;
      for (int line = 1; std::getline(in, text); ++line) {
        std::smatch match;
        if (std::regex_search(text, match, pattern))
          includes.push_back({fs::relative(entry.path(), root), line, match[1]});
      }
    }
  }
  REQUIRE(includes.size() > 300);
  return includes;
}

/// `start` and all of our files that it includes, directly or indirectly.
std::set<std::string> files_seen_from(const std::vector<Include>& includes, const std::set<std::string>& start) {
  std::map<std::string, std::vector<std::string>> targets;
  for (const Include& include : includes) targets[include.file.string()].push_back(include.target);
  std::set<std::string> seen;
  std::vector<std::string> open(start.begin(), start.end());
  while (!open.empty()) {
    const std::string file = open.back();
    open.pop_back();
    if (!seen.insert(file).second) continue;
    for (const std::string& target : targets[file])
      if (!room_of(target).empty()) open.push_back(target);
  }
  return seen;
}

/// The comment on a line that begins with a fragment, such as "Of" or a trailing "of"; "" if there is none.
std::string fragment_in(const std::string& line) {
  static const std::regex pattern(R"re(//+<? *(?:Of|What|Those|As)\b.*|///< *(?:of|what|those|as)\b.*)re");
  std::smatch match;
  return line.find("//") != std::string::npos && std::regex_search(line, match, pattern) ? match.str() : "";
}

std::string where(const Include& i) { return i.file.string() + ":" + std::to_string(i.line) + ": " + i.target; }

}  // namespace

TEST_CASE("a room includes only rooms to its left") {
  for (const Include& include : all_includes()) {
    const std::string from = room_of(include.file.string()), to = room_of(include.target);
    if (to.empty() || from == to) continue;
    INFO(where(include));
    REQUIRE_FALSE(from.empty());
    CHECK(kMayInclude.at(from).contains(to));
  }
}

TEST_CASE("only what tests know of ops (<folder>_cases.cpp) includes headers of tests") {
  for (const Include& include : all_includes()) {
    if (!include.target.starts_with("tests/")) continue;
    INFO(where(include));
    CHECK(include.file.string().ends_with("_cases.cpp"));
    CHECK(include.target.starts_with("tests/op_cases/"));
  }
}

TEST_CASE("runtime takes only program.h from compile") {
  for (const Include& include : all_includes())
    if (include.file.string().starts_with("engine/runtime/") && include.target.starts_with("engine/compile/")) {
      INFO(where(include));
      CHECK(include.target == "engine/compile/program.h");
    }
}

TEST_CASE("no header of runtime includes a plan or a job file, even indirectly") {
  const auto includes = all_includes();
  std::set<std::string> runtime;
  for (const Include& include : includes)
    if (include.file.string().starts_with("engine/runtime/")) runtime.insert(include.file.string());
  REQUIRE(runtime.size() > 50);
  const Rooms seen_rooms = {"engine/base", "engine/graph", "engine/ops", "engine/runtime"};
  for (const std::string& file : files_seen_from(includes, runtime)) {
    if (file == "engine/compile/program.h") continue;
    INFO(file);
    CHECK(seen_rooms.contains(room_of(file)));
  }
}

TEST_CASE("each outside library stays in its room") {
  struct Library {
    const char* prefix;
    std::regex allowed;
  };
  const std::vector<Library> libraries = {
      {"yaml-cpp/", std::regex("engine/spec/.*")},
      {"dnnl", std::regex("engine/ops/.*_cpu\\.(cpp|h)|engine/ops/.*onednn.*|engine/runtime/cpu/.*")},
      {"oneapi/", std::regex("engine/ops/.*_cpu\\.(cpp|h)|engine/ops/.*onednn.*|engine/runtime/cpu/.*")},
      {"gloo/", std::regex("engine/runtime/comm/(gloo|tls)_.*")},
      {"nccl", std::regex("engine/runtime/comm/nccl.*")},
      {"cuda", std::regex("engine/ops/.*_cuda\\.(cu|h|cuh)|engine/runtime/cuda/.*|engine/runtime/comm/nccl.*")},
      {"cublas", std::regex("engine/ops/.*_cuda\\.(cu|h|cuh)|engine/runtime/cuda/.*")},
      {"cudnn", std::regex("engine/ops/cuda/cudnn_plans_cuda\\.cpp")},
      {"boost/", std::regex("launcher/.*|cli/.*|engine/train/event_file\\.cpp")},
      {"CLI/", std::regex("cli/.*")},
      {"jpeglib", std::regex("engine/train/data/image/jpeg\\.cpp")},
      {"jerror", std::regex("engine/train/data/image/jpeg\\.cpp")},
      {"png.h", std::regex("engine/train/data/image/png(_file)?\\.cpp")},
      {"zlib", std::regex("engine/train/data/.*")},
      {"hwloc", std::regex("launcher/topology\\.cpp")},
      {"archive", std::regex("launcher/tar_gz\\.cpp")},
      {"openssl/", std::regex("launcher/.*|engine/base/tls_stream\\.cpp")},
      {"xxhash", std::regex("engine/train/checkpoint/digest\\.cpp")},
  };
  for (const Include& include : all_includes())
    for (const Library& library : libraries)
      if (include.target.starts_with(library.prefix)) {
        INFO(where(include));
        CHECK(std::regex_match(include.file.string(), library.allowed));
      }
}

TEST_CASE("plan and compile use no file, socket or clock") {
  static const std::set<std::string> kBanned = {"fstream",      "filesystem", "chrono",   "thread", "sys/socket.h",
                                                "netinet/in.h", "sys/stat.h", "unistd.h", "fcntl.h"};
  for (const Include& include : all_includes())
    for (const char* room : {"engine/plan/", "engine/compile/", "engine/graph/"})
      if (include.file.string().starts_with(room)) {
        INFO(where(include));
        CHECK_FALSE(kBanned.contains(include.target));
      }
}

TEST_CASE("CUDA sources do not include fmt") {
  for (const Include& include : all_includes())
    if (include.file.extension() == ".cu" || include.file.extension() == ".cuh") {
      INFO(where(include));
      CHECK_FALSE(include.target.starts_with("fmt/"));
    }
}

TEST_CASE("no test case has a semicolon in its name, at which CMake would split it in two") {
  static const std::regex pattern("TEST_CASE\\(\"[^\"]*;[^\"]*\"");
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TRAINCTL_SOURCE_DIR) / "tests")) {
    if (entry.path().extension() != ".cpp") continue;
    ++files;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      INFO(entry.path().filename().string() << ": " << line);
      CHECK_FALSE(std::regex_search(line, pattern));
    }
  }
  CHECK(files > 100);
}

TEST_CASE("the rule for comments finds each of its words at the beginning of a comment, and only there") {
  const std::string slashes(2, '/');  // so that the rule does not find the examples in this file
  for (const char* rest :
       {" Of all ranks.", "/ What a rank does.", "Those of a step.", "/   As torch.optim.SGD does.", "/< of a step",
        "/< what a rank does", "/<those of a step", "/< as in Launch", "/< Of a step"}) {
    CAPTURE(rest);
    CHECK(fragment_in("  int x = 0;  " + slashes + rest) == slashes + rest);
  }
  for (const char* rest :
       {" Often it is 0.", "/ Whatever a rank does.", " Asks for a step.", " of a step, if a line is full",
        "/< off by default", "/< number of steps", " The sum. Of a step it is 0."}) {
    CAPTURE(rest);
    CHECK(fragment_in(slashes + rest) == "");
  }
  CHECK(fragment_in("return \"Of a step\";") == "");
}

TEST_CASE("no comment begins with a fragment's Of, What, Those or As") {
  const fs::path root = TRAINCTL_SOURCE_DIR;
  static const std::set<std::string> kSources = {".h", ".cpp", ".cu", ".cuh"};
  int fragments = 0;
  for (const char* top : {"engine", "cli", "launcher", "tests", "tools"}) {
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (!kSources.contains(entry.path().extension())) continue;
      ++files;
      std::ifstream in(entry.path());
      std::string text;
      for (int line = 1; std::getline(in, text); ++line) {
        const std::string fragment = fragment_in(text);
        if (fragment.empty()) continue;
        ++fragments;
        MESSAGE(fs::relative(entry.path(), root).string(), ":", line, ": ", fragment);
      }
    }
    CAPTURE(top);
    CHECK(files > 10);
  }
  REQUIRE(fragments == 0);
}
