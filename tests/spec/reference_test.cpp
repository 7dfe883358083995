// Compares docs/job.md with the field table. TRAINCTL_UPDATE_DOCS=1 rewrites the tables.
#include "engine/spec/reference.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "engine/base/text.h"

using namespace trainctl;

namespace {

const char* const kPage = TRAINCTL_SOURCE_DIR "/docs/job.md";

std::string read_page() {
  std::ifstream in(kPage);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Returns where the table behind a marker begins and ends: the lines that start with '|'.
std::pair<size_t, size_t> table_at(const std::string& page, const std::string& marker) {
  const size_t at = page.find(marker);
  if (at == std::string::npos) return {at, at};
  const size_t begin = at + marker.size();
  size_t end = begin;
  while (end < page.size() && page[end] == '|') end = page.find('\n', end) + 1;
  return {begin, end};
}

}  // namespace

TEST_CASE("docs/job.md shows every field of the table, as the table has it") {
  std::string page = read_page();
  const bool update = std::getenv("TRAINCTL_UPDATE_DOCS") != nullptr;
  for (const auto& [name, table] : reference_tables()) {
    INFO("table '" << name << "'; TRAINCTL_UPDATE_DOCS=1 on this test writes the page anew");
    const auto [begin, end] = table_at(page, "<!-- fields: " + name + " -->\n");
    REQUIRE(begin != std::string::npos);
    if (update)
      page.replace(begin, end - begin, table);
    else
      CHECK(page.substr(begin, end - begin) == table);
  }
  if (update) std::ofstream(kPage) << page;
}
