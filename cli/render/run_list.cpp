// Lists runs from their folders.
#include "cli/render/run_list.h"

#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/render/log_printer.h"
#include "cli/render/table.h"
#include "launcher/log_tail.h"
#include "launcher/run_directory.h"

namespace trainctl {
namespace {

constexpr std::string_view kLastLine = "first rank's last line";

/// job.yaml is written once, before the ranks start.
timespec start_of(const RunDirectory& run) {
  struct stat status {};
  return stat(run.file("job.yaml").c_str(), &status) == 0 ? status.st_mtim : timespec{};
}

std::string local_time(const timespec& time) {
  if (time.tv_sec == 0) return "?";
  char text[32];
  std::tm local{};
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", localtime_r(&time.tv_sec, &local));
  return text;
}

/// Without control characters, which could move a terminal's cursor.
std::string last_line(const RunDirectory& run) {
  std::string line = tail_of_file(run.rank_file(0, "stdout"), 1);
  line.erase(0, line.find_last_of("\r\n") + 1);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; }, ' ');
  return line;
}

}  // namespace

std::string run_table(const std::string& log_dir, int width) {
  const std::vector<int> runs = list_runs(log_dir);
  if (runs.empty()) return "no runs in " + log_dir + "\n";
  Table table({">run", "state", ">ranks", "started", std::string(kLastLine)});
  for (const int number : runs) {
    const RunDirectory run(log_dir, number);
    table.add({std::to_string(number), std::string(to_string(state_of(run))), std::to_string(run.ranks().size()),
               local_time(start_of(run)), last_line(run)});
  }
  std::string text = table.str(), cut;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    cut += text.substr(at, std::min(end - at, static_cast<size_t>(width))) + "\n";
    at = end + 1;
  }
  return cut;
}

std::string run_lines(const std::string& log_dir) {
  std::string text;
  for (const int number : list_runs(log_dir)) {
    const RunDirectory run(log_dir, number);
    const timespec start = start_of(run);
    const std::string started = format_time(start.tv_sec * int64_t{1'000'000'000} + start.tv_nsec);
    nlohmann::ordered_json json = {{"run", number}, {"state", to_string(state_of(run))}, {"ranks", run.ranks().size()}};
    json["started"] = started.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(started);
    json["path"] = run.path();
    json["last_line"] = last_line(run);
    text += json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return text;
}

}  // namespace trainctl
