// Run numbers count within a log directory, so runs of several directories may have the same number.
#include "cli/commands/find_run.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/spec/job_spec.h"
#include "launcher/live_status.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

std::string absolute(const std::string& path) {
  std::string text = fs::absolute(path).lexically_normal();
  if (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

bool exists(const std::string& log_dir, int run) {
  const std::vector<int> runs = list_runs(log_dir);
  return std::binary_search(runs.begin(), runs.end(), run);
}

std::string listed(const std::vector<RegisteredRun>& runs) {
  std::string text;
  for (const RegisteredRun& run : runs)
    text += (text.empty() ? "" : ", ") + name_of(run) + " in " + short_path(run.log_dir);
  return text;
}

[[noreturn]] void none_runs(const std::string& what, const std::vector<RegisteredRun>& all) {
  throw SpecError({}, "", what, all.empty() ? "trainctl logs lists all runs" : "active runs: " + listed(all));
}

[[noreturn]] void no_such_run(const std::string& name, const std::string& log_dir) {
  const std::vector<int> runs = list_runs(log_dir);
  if (runs.empty()) throw SpecError({}, "", "no runs in " + log_dir, "use --log-dir to select another folder");
  throw SpecError({}, "", "no run " + name + " in " + log_dir, "available runs: " + format_ranks(runs));
}

}  // namespace

RunDirectory find_run(std::string name, std::string log_dir) {
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  if (const size_t slash = name.rfind('/'); slash != std::string::npos) {
    log_dir = name.substr(0, std::max<size_t>(slash, 1));
    name.erase(0, slash + 1);
  }
  const std::vector<int> runs = list_runs(log_dir);
  if (name.empty() || name == "latest") {
    if (runs.empty()) no_such_run(name, log_dir);
    return {log_dir, runs.back()};
  }
  int number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc{} || end != name.data() + name.size() || !std::binary_search(runs.begin(), runs.end(), number))
    no_such_run(name, log_dir);
  return {log_dir, number};
}

void RunArguments::add_to(CLI::App& command, const std::string& what) {
  command.add_option("run", run, what + "; default: the active run of this folder, or the only one");
  command.add_option("--log-dir", log_dir, "launch.log_dir of the job; default: log_output");
}

RegisteredRun RunArguments::find_running() const {
  const std::vector<RegisteredRun> all = running_runs();
  const std::string folder = absolute(log_dir.empty() ? LaunchSpec{}.log_dir : log_dir);
  std::vector<RegisteredRun> fitting;
  for (const RegisteredRun& one : all) {
    if (run && one.run != *run) continue;
    if (!log_dir.empty() && one.log_dir != folder) continue;
    if (run && one.log_dir == folder) return one;
    fitting.push_back(one);
  }
  const std::string number = run ? std::to_string(*run) : "";
  if (run && exists(folder, *run))
    none_runs("run " + number + " in " + short_path(folder) + " is no longer active; its state is " +
                  std::string(to_string(state_of(RunDirectory(folder, *run)))),
              all);
  if (!run && fitting.size() > 1) {  // the run of this folder is meant
    const auto only = [&](const auto& is_here) -> const RegisteredRun* {
      const auto first = std::find_if(fitting.begin(), fitting.end(), is_here);
      const bool is_only = std::count_if(fitting.begin(), fitting.end(), is_here) == 1;
      return is_only ? &*first : nullptr;
    };
    const std::string here = absolute(".");
    const RegisteredRun* found = only([&](const RegisteredRun& one) { return one.log_dir == folder; });
    if (found == nullptr)
      found = only([&](const RegisteredRun& one) { return one.log_dir.starts_with(here == "/" ? here : here + "/"); });
    if (found != nullptr) return *found;
  }
  if (fitting.empty()) none_runs(run ? "no run " + number + " in " + short_path(folder) : "no run is active", all);
  if (fitting.size() > 1)
    throw SpecError(
        {}, "",
        run ? "several active runs have the number " + number : std::to_string(fitting.size()) + " runs are active",
        (run ? "select one with --log-dir: " : "name one: ") + listed(fitting));
  return fitting.front();
}

std::string name_of(const RegisteredRun& run) { return "run " + std::to_string(run.run) + " (" + run.name + ")"; }

std::string short_path(const std::string& path) {
  std::error_code error;
  const std::string relative = fs::path(path).lexically_relative(fs::current_path(error));
  return error || relative.empty() || relative.starts_with("..") ? path : relative;
}

}  // namespace trainctl
