// The files that the launcher writes to a run's folder: the job and its plan at the start, the outcome at the end.
#include "cli/run/launch/run_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/run/saves/resumed_optimizer.h"
#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "engine/spec/plugins.h"
#include "engine/train/files/npy_file.h"
#include "launcher/failure_report.h"
#include "launcher/host_facts.h"
#include "launcher/hosts/copies.h"
#include "launcher/quiet_fork.h"

namespace trainctl {
namespace {

/// Workers read the job from another folder, so its paths must be absolute. Later versions may choose another rate.
JobSpec resolved_job(const JobSpec& spec) {
  namespace fs = std::filesystem;
  JobSpec resolved = with_chosen_rate(spec);
  resolved.launch.log_dir = fs::absolute(resolved.launch.log_dir);
  if (auto& saves = resolved.train.checkpoint; saves && !saves->dir.empty()) saves->dir = fs::absolute(saves->dir);
  return resolved;
}

std::string error_text(const RunOutcome& run) {
  auto json = nlohmann::ordered_json::parse(failure_json(run.outcome, run.cluster));
  json["report"] = run.report;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

void write_job(const RunDirectory& directory, const Workload& workload) {
  directory.write("job.yaml", to_yaml(resolved_job(workload.spec())), readers_of(workload.spec()));
  directory.write("plan.json", workload.plan().dump(2) + "\n");
  directory.write("machine.json", machine_json(host_facts(), TRAINCTL_VERSION));
  directory.reserve_outcome();
}

std::vector<std::string> copied_to_hosts(const JobSpec& spec) {
  std::vector<std::string> paths = spec.launch.copy;
  for (const std::string& plugin : spec.plugins) paths.push_back(plugin_file(plugin).path);
  return paths;
}

JobSpec job_on_hosts(const JobSpec& spec) {
  JobSpec job = resolved_job(spec);
  const std::vector<std::string> all_copies = copied_to_hosts(spec);
  const auto place = [&](std::vector<std::string>& paths) {
    for (std::string& path : paths)
      if (const auto copied = hosts::copied_path(all_copies, path)) path = "../../" + *copied;
  };
  for (std::string& plugin : job.plugins) {
    PluginFile file = plugin_file(plugin);
    std::vector<std::string> path = {file.path};
    place(path);
    file.path = path.front();
    plugin = to_string(file);
  }
  const auto place_set = [&](DatasetSpec& set) {
    place(set.paths);
    for (auto& named : set.source_paths) place(named.second);
  };
  place_set(job.dataset);
  for (DatasetSpec& source : job.dataset.sources) place_set(source);
  if (job.validation) place_set(job.validation->dataset);
  return job;
}

std::string join_printed_tensors(const RunDirectory& directory) {
  try {
    join_npy_shards(directory.file("tensors"));
  } catch (const EnvError& error) {
    return std::string("cannot join the parts of printed tensors: ") + error.what();
  }
  return "";
}

std::string write_outcome(const RunDirectory& directory, const RunOutcome& run,
                          const std::function<nlohmann::ordered_json()>& more) {
  const auto written = in_child(run.outcome.disk_hangs ? kHangingDiskSeconds : kDiskSeconds, [&] {
    std::string trouble;
    const auto attempt = [&](const std::function<void()>& write) {
      try {
        write();
      } catch (const EnvError& error) {
        trouble += std::string(error.what()) + "\n";
      }
    };
    if (run.outcome.cause.kind != Cause::Kind::none) {
      const std::string text = error_text(run);
      attempt([&] { directory.write("error.json", text); });
    }
    attempt([&] {
      auto all = nlohmann::ordered_json::parse(with_result(outcome_json(run.outcome), run.result));
      all.update(more());
      RunResult brief = run.result;
      brief.unsaved.clear();
      directory.write_outcome(all.dump() + "\n", with_result(brief_outcome_json(run.outcome), brief));
    });
    return trouble;
  });
  return written.value_or("the disk of " + directory.path() +
                          " is not responding: cannot write outcome.json, so trainctl ps will list this run as lost\n");
}

void write_failure(const RunDirectory& directory, const std::string& what, int exit_code, double seconds) {
  const nlohmann::ordered_json failure = {{"exit_code", exit_code}, {"report", what + "\n"}};
  const std::string outcome = nlohmann::json{{"exit_code", exit_code}, {"seconds", seconds}}.dump() + "\n";
  try {
    directory.write("error.json", failure.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
    directory.write_outcome(outcome, outcome);
  } catch (const EnvError&) {
    // The failure itself is reported on the terminal.
  }
}

}  // namespace trainctl
