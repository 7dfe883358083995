// The manual pages, compared with the help that comes from the same table.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"
#include "tests/skip.h"

using namespace trainctl;

namespace {

std::string out(const Scratch& scratch, std::vector<std::string> words) {
  const CommandResult result = trainctl_command(scratch.path(), words);
  CHECK(result.exit_code == kExitDone);
  CHECK(result.err.empty());
  return result.out;
}

std::set<std::string> long_options(const std::string& text) {
  const std::regex option("(^|[ ,\n])(--[a-z][a-z-]*)");
  std::set<std::string> found;
  for (auto at = std::sregex_iterator(text.begin(), text.end(), option); at != std::sregex_iterator(); ++at)
    found.insert((*at)[2]);
  return found;
}

/// A page as a reader would copy from it: without escapes and fonts.
std::string plain(const std::string& roff) {
  return std::regex_replace(std::regex_replace(roff, std::regex(R"(\\f[BIR])"), ""), std::regex(R"(\\-)"), "-");
}

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The words of a page's command, from its synopsis: "trainctl bench op [OPTION]..." -> {"bench", "op"}.
std::vector<std::string> words_of(const std::filesystem::path& path) {
  const std::string page = content(path), start = "\n.SH SYNOPSIS\n\\fB";
  const size_t begin = page.find(start) + start.size();
  std::istringstream parts(plain(page.substr(begin, page.find("\\fR", begin) - begin)));
  std::vector<std::string> words;
  for (std::string word; parts >> word;) words.push_back(word);
  CHECK(words.front() == "trainctl");
  words.erase(words.begin());
  return words;
}

std::vector<std::filesystem::path> pages(const Scratch& scratch) {
  out(scratch, {"man", "-o", scratch.path() + "/man1"});
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path() + "/man1")) found.push_back(entry);
  return found;
}

}  // namespace

TEST_CASE("every command has a manual page with all options and examples of its help") {
  const Scratch scratch;
  const std::vector<std::filesystem::path> found = pages(scratch);
  std::set<std::string> names;
  for (const std::filesystem::path& path : found) names.insert(path.filename());
  for (const char* name : {"trainctl.1", "trainctl-run.1", "trainctl-bench.1", "trainctl-bench-op.1", "trainctl-man.1",
                           "trainctl-checkpoint-diff.1"})
    CHECK(names.count(name) == 1);
  CHECK(names.count("trainctl-worker.1") == 0);
  for (const std::filesystem::path& path : found) {
    CAPTURE(path);
    std::vector<std::string> words = words_of(path);
    CHECK(out(scratch, [&] {
            std::vector<std::string> man = words;
            man.insert(man.begin(), "man");
            return man;
          }()) == content(path));
    words.push_back("--help");
    const std::string help = out(scratch, words), page = plain(content(path));
    const std::set<std::string> shown = long_options(page);
    for (const std::string& option : long_options(help)) {
      CAPTURE(option);
      CHECK(shown.count(option) == 1);
    }
    const size_t examples = help.find("Examples:\n");
    REQUIRE(examples != std::string::npos);
    const size_t line = examples + std::string("Examples:\n").size();
    CHECK(contains(page, help.substr(line, help.find('\n', line) - line)));
  }
}

TEST_CASE("manual pages are roff that groff reads without a warning") {
  const Scratch scratch;
  if (std::system("groff --version >/dev/null 2>&1") != 0) {
    skip_test("needs groff");
    return;
  }
  for (const std::filesystem::path& path : pages(scratch)) {
    CAPTURE(path);
    const std::string said = scratch.path() + "/said", shown = scratch.path() + "/shown";
    const std::string command = "groff -man -ww -Tutf8 -P-cbou " + path.string() + " >" + shown + " 2>" + said;
    CHECK(std::system(command.c_str()) == 0);
    CHECK(content(said).empty());
    CHECK(contains(content(shown), "SYNOPSIS"));
  }
}

TEST_CASE("a manual page of an unknown command, and a folder that cannot be made, are errors") {
  const Scratch scratch;
  const CommandResult unknown = trainctl_command(scratch.path(), {"man", "rnu"});
  CHECK(unknown.exit_code == kExitSpec);
  CHECK(contains(unknown.err, "trainctl has no command 'rnu'"));
  CHECK(contains(unknown.err, "did you mean 'run'?"));
  const CommandResult no_folder = trainctl_command(scratch.path(), {"man", "-o", "/proc/man1"});
  CHECK(no_folder.exit_code == kExitEnv);
  CHECK(contains(no_folder.err, "--output"));
}
