// plan.json in the folder of a run, compared with the output of `trainctl plan --json`.
#include <doctest/doctest.h>

#include <boost/asio/io_context.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/run/launch/job_report.h"
#include "cli/run/launch/workload.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

/// The paths of all values: "launch/losses/*/host".
void add_paths(const nlohmann::ordered_json& json, const std::string& path, std::set<std::string>& to) {
  to.insert(path);
  if (json.is_object())
    for (const auto& [name, value] : json.items()) add_paths(value, path + "/" + name, to);
  if (json.is_array())
    for (const auto& value : json) add_paths(value, path + "/*", to);
}

std::set<std::string> paths_of(const nlohmann::ordered_json& json) {
  std::set<std::string> paths;
  add_paths(json, "", paths);
  return paths;
}

}  // namespace

TEST_CASE("a run's plan.json has every value that plan --json prints") {
  const std::string saves = "train={steps: 2, checkpoint: {every_steps: 1}}", cpu = "launch.device=cpu";
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> jobs = {
      {{"launch.ranks=1"}, {"/final_weights/bytes"}},
      {{"launch.ranks=2", "parallel.mode=data_parallel", saves}, {"/checkpoint/ranks/*/bytes"}},
      {{"launch.ranks=2", "parallel.mode=data_parallel", "validation={dataset: {samples: 12}}"},
       {"/validation/rank_classes/*/memory/activations"}},
      {{"launch.ranks=2", "parallel.mode=auto_parallel"},
       {"/search/tried/*/plan", "/search/not_shown", "/estimate/seconds"}},
      {{"launch.ranks=2", "parallel.mode=data_parallel", "launch.machine=cpu"}, {"/estimate/parts/products"}},
      {{"launch={ranks: 4, hosts: ['a:2', 'b:2'], elastic: 2, device: cpu}", "parallel.mode=data_parallel", saves},
       {"/launch/losses/*/covered"}},
      {{"launch.ranks=2", "parallel={mode: parameter_server, servers: 1, staleness: 1}", "launch.machine=cpu"},
       {"/estimate/seconds"}},
  };
  for (auto [fields, expected] : jobs) {
    fields.push_back(cpu);
    CAPTURE(fields[0]);
    CAPTURE(fields[1]);
    const JobSpec spec = job_spec("gpt", fields);
    const std::set<std::string> printed = paths_of(report_of(plan_job(spec), false).json);
    for (const std::string& path : expected) CHECK_MESSAGE(printed.contains(path), path);
    boost::asio::io_context loop;
    const std::set<std::string> written = paths_of(make_workload(spec, {}, loop)->plan());
    for (const std::string& path : printed) CHECK_MESSAGE(written.contains(path), path);
  }
}
