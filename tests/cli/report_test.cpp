// trainctl report: thinned curves, the fields of jobs, and what a page is made of. tests/report/ opens pages in a
// browser.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/report/curve.h"
#include "cli/report/metrics_data.h"
#include "cli/report/page.h"
#include "cli/report/run_data.h"
#include "engine/base/error.h"
#include "engine/spec/job_fields.h"
#include "engine/spec/parse.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
using Json = nlohmann::ordered_json;

namespace {

Curve waves(int64_t count) {
  Curve curve;
  for (int64_t i = 0; i < count; ++i) curve.add(i + 1, std::sin(static_cast<double>(i)));
  return curve;
}

}  // namespace

TEST_CASE("a thinned curve keeps its ends, its spikes and values that are not finite, and adds no point") {
  Curve curve = waves(100'000);
  curve.values[61'803] = 50;
  curve.values[70'000] = -40;
  curve.values[80'000] = NAN;
  const Curve thin = thinned(curve, 1000);
  CHECK(thin.steps.size() <= 1003);
  CHECK(thin.steps.size() >= 500);
  CHECK(thin.steps.front() == 1);
  CHECK(thin.steps.back() == 100'000);
  CHECK(std::count(thin.values.begin(), thin.values.end(), 50.0) == 1);
  CHECK(std::count(thin.values.begin(), thin.values.end(), -40.0) == 1);
  CHECK(std::count_if(thin.values.begin(), thin.values.end(), [](double v) { return std::isnan(v); }) == 1);
  for (size_t i = 0; i < thin.steps.size(); ++i) {
    if (i > 0) CHECK(thin.steps[i - 1] < thin.steps[i]);
    const double value = curve.values[static_cast<size_t>(thin.steps[i] - 1)];
    CHECK((value == thin.values[i] || std::isnan(value)));
  }
  CHECK(thinned(waves(1000), 1000).steps.size() == 1000);
}

TEST_CASE("a distribution has the nearest ranks of all values") {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Json json = distribution_json(values);
  CHECK(json.dump() == R"({"count":100,"mean":50.5,"median":50.0,"p90":90.0,"p99":99.0,"least":1.0,"most":100.0})");
  CHECK(distribution_json({}).dump() == R"({"count":0})");
}

TEST_CASE("lines of metrics.jsonl become curves by their kind, and the rest events") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/metrics.jsonl";
  std::ofstream(path) << R"({"start_up":{"seconds":1.5}}
{"epoch":1,"step":1,"run_step":1,"loss":2.5,"seconds":0.5}
{"kind":"data","run_step":1,"workers":2,"ahead":1,"reason":"waits"}
{"epoch":1,"step":2,"run_step":2,"loss":null,"not_finite":"-inf","seconds":0.25}
{"epoch_end":1,"last_step":2,"steps":2,"mean_loss":1.25,"epoch_seconds":0.75}
{"kind":"validation","epoch":1,"run_step":2,"loss":0.75}
{"kind":"workers","steps":[1,2]}
{"stopped_at_step":2}
{"epoch":2,"step":1,)";  // being written
  const Json data = metrics_data(path);
  CHECK(data["curves"]["loss"].dump() == R"({"steps":[1,2],"values":[2.5,"-inf"]})");
  CHECK(data["epochs"]["mean_loss"].dump() == R"({"steps":[2],"values":[1.25]})");
  CHECK(data["validations"]["loss"].dump() == R"({"steps":[2],"values":[0.75]})");
  CHECK(data["step_seconds"]["median"] == 0.25);
  CHECK(data["last"]["not_finite"] == "-inf");
  CHECK(data["start_up"]["seconds"] == 1.5);
  CHECK(data["workers"]["steps"].size() == 2);
  CHECK(data["events"].size() == 2);
  CHECK(data["validated"]["loss"]["best_step"] == 2);
  CHECK(metrics_data(scratch.path() + "/none")["step_seconds"]["count"] == 0);
  std::ofstream(path) << "{}\n7\n";
  CHECK_THROWS_WITH_AS(metrics_data(path), doctest::Contains("line 2 is not a JSON object"), SpecError);
}

TEST_CASE("lines of metrics.jsonl whose fields have other types than trainctl writes are events") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/metrics.jsonl";
  std::ofstream(path) << R"({"kind":5,"run_step":1}
{"run_step":"one","loss":1}
{"epoch_end":1,"last_step":"x","mean_loss":2}
{"run_step":2,"loss":null,"not_finite":7}
)";
  const Json data = metrics_data(path);
  CHECK(data["events"].size() == 2);
  CHECK(data["epochs"]["mean_loss"].dump() == R"({"steps":[0],"values":[2.0]})");
  CHECK(data["curves"]["loss"].dump() == R"({"steps":[2],"values":["nan"]})");
}

TEST_CASE("a run whose plan.json is damaged is an error that names the file") {
  const Scratch scratch;
  const RunDirectory run = RunDirectory::create(scratch.path(), 1);
  run.write("plan.json", R"({"layers": [1]})");
  CHECK_THROWS_WITH_AS(run_data(run), doctest::Contains("plan.json is damaged"), EnvError);
}

TEST_CASE("jobs are compared field by field, layers by name, without folders and secrets") {
  const std::string one =
      "seed: 1\nenv:\n  KEY: secret\n  LONG: \"two\n    lines: of it\"\n"
      "network:\n  - {name: fc, type: dense, units: 4, kernel: [5]}\noptimizer:\n  type: sgd\n"
      "launch:\n  log_dir: /a\n";
  std::string two = one;
  two.replace(two.find("units: 4"), 8, "units: 8").replace(two.find("/a"), 2, "/b");
  two += "  ranks: 2\n";
  CHECK(differing_fields({job_fields(one, "job.yaml"), job_fields(two, "job.yaml")}).dump() ==
        R"([{"field":"network.fc.units","values":["4","8"]},{"field":"launch.ranks","values":[null,"2"]}])");
  const std::string shown = hide_env(one);
  CHECK(contains(shown, "env:\n  KEY: …\n  LONG: …\nnetwork:\n"));
  CHECK(hide_env("env: {A: secret}\nseed: 1\n") == "env: …\nseed: 1\n");
}

TEST_CASE("no data can end a script of a page early, and a page refers to nothing outside") {
  const std::string page = report_page(page_data({{{"name", "</script>/*style*/"}, {"job", "a: 1\n"}}}, "1.2"));
  CHECK(contains(page, R"("name":"\u003c/script>/*style*/")"));
  CHECK(contains(page, R"("trainctl":"1.2")"));
  CHECK_FALSE(contains(page, "<script src"));
  CHECK_FALSE(contains(page, "https://"));
  CHECK(page.find("http://") == page.find("http://www.w3.org/2000/svg"));
}

TEST_CASE("trainctl report writes a page of the latest run, of named ones, and of a plan") {
  const Scratch scratch;
  const std::string& folder = scratch.path();
  small_job(folder);
  REQUIRE(trainctl_command(folder, {"run", "job.yaml", "train.epochs=2"}).exit_code == kExitDone);
  const CommandResult written = trainctl_command(folder, {"report"});
  CHECK(written.exit_code == kExitDone);
  CHECK(contains(written.out, "report.html: "));
  CHECK(slurp(folder + "/report.html").starts_with("<!doctype html>"));

  const Json data = Json::parse(trainctl_command(folder, {"report", "1", "--plan", "job.yaml", "launch.ranks=2",
                                                          "parallel.mode=data_parallel", "--json"})
                                    .out);
  REQUIRE(data["runs"].size() == 2);
  CHECK(data["runs"][0]["state"] == "done");
  CHECK(data["runs"][0]["machine"]["cpus"].get<int>() > 0);
  CHECK(data["runs"][1]["state"] == "planned");
  CHECK(data["runs"][1]["plan"]["ranks"] == 2);
  CHECK(data["differences"].dump().find("launch.ranks") != std::string::npos);
}

TEST_CASE("trainctl report refuses fields without a plan, missing runs, and files that it cannot write") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult field = trainctl_command(scratch.path(), {"report", "launch.ranks=2"});
  CHECK(field.exit_code == kExitSpec);
  CHECK(contains(field.err, "--plan job.yaml"));
  CHECK(trainctl_command(scratch.path(), {"report", "7"}).exit_code == kExitSpec);
  CHECK(trainctl_command(scratch.path(), {"report", "--plan", "job.yaml", "-o", "no/such/page.html"}).exit_code ==
        kExitEnv);
}
