// trainctl metrics: a run's numbers as a table and as CSV.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/render/metric_rows.h"
#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/jobs/jobs.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

/// A run whose folder has only metrics.jsonl.
RunDirectory run_with(const Scratch& scratch, const std::string& metrics) {
  const std::string log_dir = scratch.path() + "/log_output";
  std::filesystem::create_directories(log_dir + "/1");
  std::ofstream(log_dir + "/1/metrics.jsonl") << metrics;
  return {log_dir, 1};
}

}  // namespace

TEST_CASE("metrics.jsonl becomes rows of one kind, with a column for each field of theirs") {
  const Scratch scratch;
  const RunDirectory run = run_with(scratch, R"({"start_up":{"seconds":1.5}}
{"epoch":1,"step":1,"run_step":1,"loss":2.5}
{"kind":"data","run_step":1,"workers":2,"reason":"waits"}
{"epoch":1,"step":2,"run_step":2,"loss":null,"not_finite":"nan","accuracy":0.5}
{"epoch_end":1,"last_step":2,"steps":2,"mean_loss":1.25}
{"kind":"validation","epoch":1,"run_step":2,"loss":0.75}
{"stopped_at_step":2,"reason":"a, \"b\""}
{"epoch":2,"step":1,)");  // being written
  CHECK(read_metric_rows(run, RowKind::steps).csv() ==
        "epoch,step,run_step,loss,accuracy\n"
        "1,1,1,2.5,\n"
        "1,2,2,nan,0.5\n");
  CHECK(read_metric_rows(run, RowKind::epochs).csv() == "epoch_end,last_step,steps,mean_loss\n1,2,2,1.25\n");
  CHECK(read_metric_rows(run, RowKind::validations).csv() == "epoch,run_step,loss\n1,2,0.75\n");
  MetricRows last = read_metric_rows(run, RowKind::steps);
  last.keep_last(1);
  CHECK(last.rows == std::vector<std::vector<std::string>>{{"1", "2", "2", "nan", "0.5"}});
}

TEST_CASE("a line whose kind is not a string is not a row of any kind") {
  const Scratch scratch;
  const RunDirectory run = run_with(scratch, "{\"kind\":5,\"step\":1,\"run_step\":1}\n");
  for (const RowKind kind : {RowKind::steps, RowKind::epochs, RowKind::validations})
    CHECK(read_metric_rows(run, kind).rows.empty());
}

TEST_CASE("control characters of cells and names are shown escaped") {
  const Scratch scratch;
  const RunDirectory run = run_with(scratch, "{\"step\":1,\"run_step\":1,\"a\\u001b[2J\":\"b\\u001b[31m\"}\n");
  CHECK(read_metric_rows(run, RowKind::steps).csv() == "step,run_step,a\\x1b[2J\n1,1,b\\x1b[31m\n");
}

TEST_CASE("cells of a CSV with commas and quotes are quoted") {
  const MetricRows rows{{"a,b", "c"}, {{"say \"x\"", "2"}}};
  CHECK(rows.csv() == "\"a,b\",c\n\"say \"\"x\"\"\",2\n");
}

TEST_CASE("a metrics.jsonl that is broken or not there is an error that names it") {
  const Scratch scratch;
  CHECK_THROWS_AS(read_metric_rows(run_with(scratch, "{}\n7\n"), RowKind::steps), SpecError);
  CHECK_THROWS_AS(read_metric_rows({scratch.path() + "/log_output", 2}, RowKind::steps), EnvError);
}

TEST_CASE("trainctl metrics prints the rows of a run") {
  const Scratch scratch;
  small_job(scratch.path());
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml", "train.epochs=2"}).exit_code == kExitDone);
  const CommandResult csv = trainctl_command(scratch.path(), {"metrics", "--csv"});
  CHECK(csv.exit_code == kExitDone);
  CHECK(csv.out.starts_with("epoch,step,run_step,loss,learning_rate,seconds\n1,1,1,"));
  const CommandResult table = trainctl_command(scratch.path(), {"metrics", "1", "--rows", "epochs", "--tail", "1"});
  CHECK(contains(table.out, "mean_loss"));
  CHECK(std::count(table.out.begin(), table.out.end(), '\n') == 2);
  CHECK(contains(trainctl_command(scratch.path(), {"metrics", "--rows", "validations"}).out,
                 "run 1 has no validations yet"));
  CHECK(trainctl_command(scratch.path(), {"metrics", "9"}).exit_code == kExitSpec);
}
