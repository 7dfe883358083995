// Output of ps and logs for runs that have ended.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

TEST_CASE("ps -a and logs have the last step, loss and duration of runs that have ended") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult run = trainctl_command(scratch.path(), {"run", "job.yaml", "train.steps=12"});
  REQUIRE(run.exit_code == kExitDone);
  const size_t at = run.out.find("step: 4, loss is ", run.out.find("epoch: 2 step: 4,"));
  REQUIRE(at != std::string::npos);
  const std::string loss = run.out.substr(at + 17, run.out.find('\n', at) - at - 17);

  const nlohmann::json listed =
      nlohmann::json::parse(trainctl_command(scratch.path(), {"ps", "-a", "--json"}).out, nullptr, false);
  REQUIRE(listed.size() == 1);
  CHECK(listed[0]["state"] == "done");
  CHECK(listed[0]["step"] == 12);
  CHECK(listed[0]["steps"] == 12);
  CHECK(listed[0]["loss"].get<double>() == doctest::Approx(std::stod(loss)).epsilon(1e-3));
  CHECK(listed[0]["seconds"].get<double>() > 0);
  CHECK(listed[0]["started"].get<double>() > 0);
  CHECK(listed[0]["exit_code"] == 0);

  const std::string table = trainctl_command(scratch.path(), {"ps", "-a"}).out;
  CHECK(contains(table, "12/12"));
  CHECK(contains(table, loss));
  const std::string runs = trainctl_command(scratch.path(), {"logs"}).out;
  CHECK(contains(runs, "12/12"));
  CHECK(contains(runs, loss));

  const CommandResult logs = trainctl_command(scratch.path(), {"logs", "1"});
  CHECK(contains(logs.err, "--- run 1: done after "));
  CHECK(contains(logs.err, ", step 12/12, loss " + loss + " ---\n"));
  CHECK(trainctl_command(scratch.path(), {"logs", "1", "--json"}).err.empty());
}

TEST_CASE("the table of epochs has the validation of a last epoch that train.steps ends early") {
  const Scratch scratch;
  small_job(scratch.path(), "metrics: []\nvalidation: {dataset: {samples: 16}, every_steps: 3}\n");
  const CommandResult run = trainctl_command(scratch.path(), {"run", "job.yaml", "train.steps=12"});
  CAPTURE(run.out);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == kExitDone);
  const size_t table = run.out.find("  epoch  mean loss  validation loss\n");
  REQUIRE(table != std::string::npos);
  const size_t last = run.out.rfind("validation epoch 2 step 4: loss ", table);
  REQUIRE(last != std::string::npos);
  const std::string loss = run.out.substr(last + 32, run.out.find('\n', last) - last - 32);
  const std::string rows = run.out.substr(table, run.out.find("done after") - table);
  CHECK(contains(rows, loss));
  CHECK(std::count(rows.begin(), rows.end(), '.') == 3);  // two means, and the validation of the last epoch alone
}
