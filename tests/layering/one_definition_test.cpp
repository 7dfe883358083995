// Tests that no two types have the same name. The linker keeps one of several inline functions of the same name, and
// such types share the names of their destructors: objects of one would be destroyed as if they were the other's.
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

/// Definitions that several object files may have: types, templates, and what is inline. The linker itself reports
/// others.
bool may_be_merged(const Definition& definition) {
  static const std::regex nested("^(struct|class) [a-zA-Z0-9_:]+::.*");
  if (definition.text.starts_with("template <>")) return false;  // a specialisation has its template's name
  if (std::regex_match(definition.text, nested)) return false;   // struct Outer::Inner
  for (const char* word : {"struct ", "class ", "enum ", "union ", "template <", "inline "})
    if (definition.text.starts_with(word)) return true;
  return definition.text.starts_with("constexpr ") && definition.text.find('(') != std::string::npos;
}

/// name -> files
using Files = std::map<std::string, std::set<std::string>>;

void add(std::istream& source, const std::string& path, Files& files) {
  for (const Definition& definition : trainctl::definitions_of(source)) {
    const std::string name = definition.name();
    if (!definition.is_anonymous() && !name.empty() && may_be_merged(definition)) files[name].insert(path);
  }
}

}  // namespace

TEST_CASE("the check of definitions finds planted twins, and no declarations or specialisations") {
  Files planted;
  const auto plant = [&](const std::string& path, const std::string& text) {
    std::istringstream source("namespace a {\n\n" + text + "\n\n}  // namespace a\n");
    add(source, path, planted);
  };
  plant("x.h", "struct Row {\n};\nstruct Later;\ninline int pad(int n) {\n}\ntemplate <>\nstruct Hash<Row> {\n};");
  plant("y.h", "class Row {\n};\nstruct Later;\ninline int pad(int by) {\n}\ntemplate <>\nstruct Hash<int> {\n};");
  plant("z.cpp", "namespace {\nstruct Row {\n};\n}  // namespace\nvoid pad(int n) {\n}");
  CHECK(planted.size() == 2);
  CHECK(planted["a::Row"] == std::set<std::string>{"x.h", "y.h"});
  CHECK(planted["a::pad(int)"] == std::set<std::string>{"x.h", "y.h"});
}

TEST_CASE("no two files define a type or an inline function of the same name in a named namespace") {
  namespace fs = std::filesystem;
  const fs::path root = TRAINCTL_SOURCE_DIR;
  Files files;
  for (const char* folder : {"engine", "cli", "launcher"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
      std::ifstream source(entry.path());
      add(source, fs::relative(entry.path(), root).string(), files);
    }
  }
  REQUIRE(files.size() > 1000);
  for (const auto& [name, paths] : files)
    CHECK_MESSAGE(paths.size() == 1, name, " is defined in ", *paths.begin(), " and in ", *paths.rbegin());
}
