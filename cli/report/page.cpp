// The page of `trainctl report`: one self-contained HTML file.
#include "cli/report/page.h"

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/output_file.h"

namespace trainctl {
namespace {

void fill_in(std::string& page, std::string_view mark, std::string_view text) {
  const size_t at = page.find(mark);
  check(at != std::string::npos, "report.html has the mark " + std::string(mark));
  page.replace(at, mark.size(), text);
}

/// Escapes JSON inside a script element, so that no "</script>" can end it.
std::string embedded(const nlohmann::ordered_json& data) {
  const std::string json = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  }
  return text;
}

}  // namespace

std::string report_page(const nlohmann::ordered_json& data) {
  std::string page(page_html());
  fill_in(page, "/*style*/", page_style());
  fill_in(page, "/*script*/", page_script());
  fill_in(page, "/*data*/", embedded(data));  // last: it may contain the other marks
  return page;
}

int64_t write_page(const std::string& path, const nlohmann::ordered_json& data) {
  const std::string page = report_page(data);
  write_output(path, page);
  return static_cast<int64_t>(page.size());
}

std::string_view report_version() { return TRAINCTL_VERSION; }

}  // namespace trainctl
