// Tests that a file includes only layers below its own (docs/contributing.md), and rules for the texts of comments.
#include <doctest/doctest.h>

#include <algorithm>
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

/// A room, from the lowest to the highest. The longest path that a file begins with is its room.
struct Room {
  std::string path;
  Rooms may_include;  ///< other rooms
};

const Rooms kCore = {"engine/base", "engine/graph", "engine/ops"};

Rooms with(Rooms rooms, const Rooms& more) {
  rooms.insert(more.begin(), more.end());
  return rooms;
}

const Rooms kUpToPlan = with(kCore, {"engine/spec", "engine/machine", "engine/plan"});
const Rooms kUpToSearch = with(kUpToPlan, {"engine/model", "engine/solver"});
const Rooms kUpToPlanning = with(kUpToSearch, {"engine/search", "engine/compile", "engine/estimate", "engine/runtime"});
const Rooms kUpToFiles = with(kUpToPlanning, {"engine/planning", "engine/text"});
const Rooms kUpToData = with(kUpToFiles, {"engine/train/files"});
const Rooms kUpToCheckpoint = with(kUpToData, {"engine/train/data"});
const Rooms kUpToTrainer = with(kUpToCheckpoint, {"engine/train/checkpoint"});
const Rooms kUpToServers = with(kUpToTrainer, {"engine/train/trainer"});
const Rooms kUpToRun = with(kUpToServers, {"engine/train/servers", "engine/train/profile", "engine/train/verification",
                                           "engine/model_folder", "launcher", "cli/text"});

const std::vector<Room> kRooms = {
    {"engine/base", {}},
    {"engine/text", {"engine/base"}},
    {"engine/spec", {"engine/base"}},
    {"engine/graph", {"engine/base"}},
    {"engine/ops", {"engine/base", "engine/graph"}},
    {"engine/solver", {"engine/base"}},
    {"engine/model", with(kCore, {"engine/spec"})},
    {"engine/model_folder", {"engine/base", "engine/spec"}},
    {"engine/machine", kCore},
    {"engine/plan", with(kCore, {"engine/spec", "engine/machine"})},
    {"engine/search", kUpToSearch},
    {"engine/compile", with(kCore, {"engine/machine", "engine/plan"})},
    {"engine/estimate", with(kCore, {"engine/machine", "engine/plan", "engine/compile"})},
    {"engine/runtime", with(kCore, {"engine/compile"})},
    {"engine/planning", kUpToPlanning},
    {"engine/train/files", kUpToFiles},
    {"engine/train/data", kUpToData},
    {"engine/train/checkpoint", kUpToCheckpoint},
    {"engine/train/trainer", kUpToTrainer},
    {"engine/train/servers", kUpToServers},
    {"engine/train/profile", kUpToServers},
    {"engine/train/verification", kUpToServers},
    {"launcher", {"engine/base", "engine/spec"}},
    {"cli/text",
     with(kUpToServers, {"engine/train/servers", "engine/train/profile", "engine/model_folder", "launcher"})},
    {"cli/run", kUpToRun},
    {"cli/measure", kUpToRun},
    {"cli", with(kUpToRun, {"cli/run", "cli/measure"})},
};

// Floors inside a room, from the lowest to the highest: a folder includes only folders to its left, and files that lie
// directly in the room.
const std::map<std::string, std::vector<std::string>> kFloors = {
    {"engine/compile", {"order", "place", "lower", "fuse", "verify", "report"}},
    {"cli/run", {"saves", "worker", "launch", "clusters"}},
};

struct Include {
  fs::path file;  // relative to the source tree
  int line;
  std::string target;
};

const Room* find_room(const std::string& path) {
  const Room* found = nullptr;
  for (const Room& room : kRooms)
    if (path.starts_with(room.path + "/") && (found == nullptr || room.path.size() > found->path.size())) found = &room;
  return found;
}

std::string room_of(const std::string& path) {
  const Room* room = find_room(path);
  return room == nullptr ? "" : room->path;
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

/// The comment on a line that begins with a fragment, such as "Of", "Whether" or a trailing "of"; "" if there is none.
std::string fragment_in(const std::string& line) {
  static const std::regex pattern(
      R"re(//+<? *(?:Of|What|Those|As|Wh(?:ich|ere|en|ether|y|o|ose)|How)\b.*|///< *(?:of|what|those|as)\b.*)re");
  std::smatch match;
  return line.find("//") != std::string::npos && std::regex_search(line, match, pattern) ? match.str() : "";
}

/// The same for a line of Python: a comment, or the beginning of a docstring.
std::string fragment_in_python(const std::string& line) {
  static const std::regex pattern(
      R"re((?:(?:^|\s)#|""") *(?:Of|What|Those|As|Wh(?:ich|ere|en|ether|y|o|ose)|How)\b.*)re");
  std::smatch match;
  return std::regex_search(line, match, pattern) ? match.str() : "";
}

std::string where(const Include& i) { return i.file.string() + ":" + std::to_string(i.line) + ": " + i.target; }

}  // namespace

TEST_CASE("a room includes only rooms below it") {
  for (const Include& include : all_includes()) {
    const std::string from = room_of(include.file.string()), to = room_of(include.target);
    if (to.empty() || from == to) continue;
    INFO(where(include));
    REQUIRE_FALSE(from.empty());
    CHECK(find_room(include.file.string())->may_include.contains(to));
  }
}

TEST_CASE("a folder of a room includes only floors below it") {
  for (const auto& [room, floors] : kFloors) {
    const auto floor_of = [&](const std::string& file) {
      const auto at = std::find_if(floors.begin(), floors.end(), [&](const std::string& floor) {
        return file.starts_with(room + "/" + floor + "/");
      });
      return static_cast<int>(at - floors.begin());
    };
    for (const Include& include : all_includes()) {
      const int from = floor_of(include.file.string()), to = floor_of(include.target),
                none = static_cast<int>(floors.size());
      if (from == none || to == none) continue;
      INFO(where(include));
      CHECK(to <= from);
    }
  }
}

TEST_CASE("only the cases of ops for tests (<folder>_cases.cpp) include headers of tests") {
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
      {"boost/", std::regex("launcher/.*|cli/.*|engine/train/files/event_file\\.cpp")},
      {"boost/beast", std::regex("cli/report/serve\\.cpp")},
      {"CLI/", std::regex("cli/(?!run/|measure/|text/).*")},
      {"jpeglib", std::regex("engine/train/data/image/jpeg\\.cpp")},
      {"jerror", std::regex("engine/train/data/image/jpeg\\.cpp")},
      {"png.h", std::regex("engine/train/data/image/png(_file)?\\.cpp")},
      {"zlib", std::regex("engine/train/data/.*")},
      {"zip.h", std::regex("engine/train/data/(sources/zip_file|tables/npz_writer)\\.cpp")},
      {"zstd", std::regex("engine/train/data/(inflated_file|tables/table_writer|tables/hdf5_chunks)\\.cpp")},
      {"sndfile", std::regex("engine/train/data/sound_file\\.cpp")},
      {"hwloc", std::regex("launcher/topology\\.cpp")},
      {"archive", std::regex("launcher/tar_gz\\.cpp")},
      {"openssl/",
       std::regex(
           "launcher/.*|engine/base/(tls_stream|sha256)\\.cpp|engine/train/files/store/(credentials|signature)\\.cpp")},
      {"curl/", std::regex("engine/train/files/store/http\\.cpp")},
      {"utf8proc", std::regex("engine/text/unicode\\.cpp")},
      {"pcre2", std::regex("engine/text/regex\\.cpp")},
      {"sentencepiece_", std::regex("engine/text/sentencepiece_tokenizer\\.cpp")},
      {"xxhash", std::regex("engine/train/files/digest\\.cpp")},
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

TEST_CASE("only commands, rendering and the report write to the terminal") {
  // Exempt: output of ranks and of helper programs on remote hosts, which is a protocol or a log.
  static const std::regex exempt(
      "engine/ops/cuda/print_once\\.cpp|engine/runtime/cuda/cuda_executor\\.cpp|"
      "launcher/(clusters/remote_listener|hosts/(link_check|probe|relay|transport))\\.cpp");
  static const std::regex pattern(
      R"re(\bstd::(cout|cerr|clog) <<|\bstd::(puts|printf|fprintf|fputs)\b|\b[df]?printf\(|\bf?puts\()re");
  const fs::path root = TRAINCTL_SOURCE_DIR;
  int files = 0;
  for (const char* top : {"engine", "launcher", "cli/text", "cli/run", "cli/measure"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string file = fs::relative(entry.path(), root).string();
      if (entry.path().extension() != ".cpp" || std::regex_match(file, exempt)) continue;
      ++files;
      std::ifstream in(entry.path());
      std::string text;
      for (int line = 1; std::getline(in, text); ++line) {
        INFO(file << ":" << line << ": " << text);
        CHECK_FALSE(std::regex_search(text.substr(0, text.find("//")), pattern));
      }
    }
  }
  CHECK(files > 300);
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
        "/< what a rank does", "/<those of a step", "/< as in Launch", "/< Of a step", " Which ranks fail.",
        "/ Whether it is set.", " When a save is due.", "/ Where the rows are.", " Why it ended.", " Who reads it.",
        " Whose rows these are.", "/< How it ends"}) {
    CAPTURE(rest);
    CHECK(fragment_in("  int x = 0;  " + slashes + rest) == slashes + rest);
  }
  for (const char* rest :
       {" Often it is 0.", "/ Whatever a rank does.", " Asks for a step.", " of a step, if a line is full",
        "/< off by default", "/< number of steps", " The sum. Of a step it is 0.", " However long it takes.",
        "/ Whole rows.", "/< when it ended"}) {
    CAPTURE(rest);
    CHECK(fragment_in(slashes + rest) == "");
  }
  CHECK(fragment_in("return \"Of a step\";") == "");
  const std::string quotes(3, '"');
  CHECK(fragment_in_python("    " + quotes + "Of all ranks." + quotes) == quotes + "Of all ranks." + quotes);
  CHECK(fragment_in_python("x = 0  # What a rank does.") == " # What a rank does.");
  CHECK(fragment_in_python("color = '#As'  # Often it is 0.") == "");
}

TEST_CASE(
    "no comment is a fragment that begins with Of, What, Those, As, Which, How, Where, When, Whether, Why or Who") {
  const fs::path root = TRAINCTL_SOURCE_DIR;
  static const std::set<std::string> kSources = {".h", ".cpp", ".cu", ".cuh", ".py"};
  int fragments = 0;
  for (const char* top : {"engine", "cli", "launcher", "tests", "tools", "python"}) {
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (!kSources.contains(entry.path().extension())) continue;
      ++files;
      std::ifstream in(entry.path());
      std::string text;
      for (int line = 1; std::getline(in, text); ++line) {
        const bool is_python = entry.path().extension() == ".py";
        const std::string fragment = is_python ? fragment_in_python(text) : fragment_in(text);
        if (fragment.empty()) continue;
        ++fragments;
        MESSAGE(fs::relative(entry.path(), root).string(), ":", line, ": ", fragment);
      }
    }
    CAPTURE(top);
    CHECK(files > 5);
  }
  REQUIRE(fragments == 0);
}

TEST_CASE("every source begins with a comment that says what is in it") {
  const fs::path root = TRAINCTL_SOURCE_DIR;
  static const std::set<std::string> kSources = {".h", ".cpp", ".cu", ".cuh"};
  for (const char* top : {"engine", "cli", "launcher", "tests", "tools"})
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string file = fs::relative(entry.path(), root).string();
      if (!kSources.contains(entry.path().extension())) continue;
      std::ifstream in(entry.path());
      std::string line;
      std::getline(in, line);
      INFO(file << ": " << line);
      CHECK((line.starts_with("// ") || line.starts_with("/* ")));
      CHECK_FALSE(line.starts_with("// See "));
    }
}
