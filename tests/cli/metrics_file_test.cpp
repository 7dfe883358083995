// Tests which lines of metrics.jsonl remain between the attempts of a run.
#include "cli/run/launch/metrics_file.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "cli/run/worker/rank_output.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

std::string step_line(int step, const std::string& by = "0") {
  return "{\"run_step\":" + std::to_string(step) + ",\"by\":" + by + "}\n";
}
std::string validation_line_of(int step) {
  return "{\"kind\":\"validation\",\"run_step\":" + std::to_string(step) + "}\n";
}

struct MetricsScratch {
  MetricsScratch() : run(RunDirectory::create(scratch.path(), 2)) {}
  void write(const std::string& name, const std::string& text) const { run.write(name, text); }
  std::string text() const { return slurp(run.file("metrics.jsonl")); }
  Scratch scratch;
  RunDirectory run;
};

}  // namespace

TEST_CASE("a restart cuts metrics.jsonl after the step that it resumes from, and drops a line that is not whole") {
  const MetricsScratch s;
  const std::string kept = "{\"start_up\":{}}\n" + step_line(1) + step_line(2) + validation_line_of(2);
  s.write("metrics.jsonl", kept + step_line(3) + "{\"run_st");
  CHECK(keep_metrics(s.run, 2) == static_cast<int64_t>(kept.size()));
  CHECK(s.text() == kept);
  CHECK(keep_metrics(s.run, 0) == 16);
  CHECK(s.text() == "{\"start_up\":{}}\n");
}

TEST_CASE("a line whose kind is not a string counts as a step and does not prevent a restart") {
  const MetricsScratch s;
  const std::string text = "{\"kind\":5,\"run_step\":1}\n" + step_line(2);
  s.write("metrics.jsonl", text + step_line(3));
  CHECK(keep_metrics(s.run, 2) == static_cast<int64_t>(text.size()));
}

TEST_CASE("a run without metric lines keeps none") {
  const MetricsScratch s;
  CHECK(keep_metrics(s.run, 5) == 0);
  gather_metrics(s.run);
  CHECK_FALSE(fs::exists(s.run.file("metrics.jsonl")));
}

TEST_CASE("lines that rank 0's host took with it come from another host's rank, each step once and in order") {
  const MetricsScratch s;
  s.write("metrics.jsonl", step_line(1) + step_line(2));
  s.write("rank.1/metrics.jsonl", step_line(2, "1") + validation_line_of(2) + step_line(3, "1") + step_line(4, "1"));
  const std::string all = step_line(1) + step_line(2) + validation_line_of(2) + step_line(3, "1");
  CHECK(keep_metrics(s.run, 3) == static_cast<int64_t>(all.size()));
  CHECK(s.text() == all);
  gather_metrics(s.run);
  CHECK(s.text() == all + step_line(4, "1"));
  CHECK_FALSE(fs::exists(s.run.file("rank.1/metrics.jsonl")));
}

TEST_CASE("traffic.json of a rank counts if it is whole, and is ignored otherwise") {
  const MetricsScratch s;
  CHECK_FALSE(read_traffic(s.run, 0));
  s.write("rank.0/traffic.json", "{\"steps\": 3, \"within\": 40, \"between\": 5}\n");
  const auto traffic = read_traffic(s.run, 0);
  REQUIRE(traffic);
  CHECK(traffic->steps == 3);
  CHECK(traffic->within == 40);
  CHECK(traffic->between == 5);
  for (const char* damaged :
       {"[3]", "{\"steps\": \"3\", \"within\": 40, \"between\": 5}", "{\"steps\": 3, \"within\": null}",
        "{\"steps\": 0, \"within\": 1, \"between\": 1}", "{\"steps\": 3, \"within\": 40, \"bet"}) {
    CAPTURE(damaged);
    s.write("rank.0/traffic.json", damaged);
    CHECK_FALSE(read_traffic(s.run, 0));
  }
}
