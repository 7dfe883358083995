// Words that completion offers, and the errors for invalid command lines.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
using Words = std::vector<std::string>;

namespace {

Words offered(const Scratch& scratch, const Words& words) {
  Words arguments = {"complete", "--"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  std::istringstream text(trainctl_command(scratch.path(), arguments).out);
  Words found;
  for (std::string line; std::getline(text, line);) found.push_back(line.substr(0, line.find('\t')));
  return found;
}

bool has(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string complaint(const Scratch& scratch, const Words& words) {
  const CommandResult result = trainctl_command(scratch.path(), words);
  CHECK(result.exit_code == kExitSpec);
  CHECK(result.out.empty());
  CHECK(contains(result.err, "--help shows examples"));
  return result.err;
}

}  // namespace

TEST_CASE("completion knows commands, options and the words of arguments") {
  const Scratch scratch;
  const Words commands = offered(scratch, {""});
  for (const char* command : {"run", "ps", "stop", "attach", "logs", "completion"}) CHECK(has(commands, command));
  CHECK_FALSE(has(commands, "worker"));
  CHECK(offered(scratch, {"sh"}) == Words{"show"});
  CHECK(has(offered(scratch, {"run", "--"}), "--detach"));
  CHECK(offered(scratch, {"stop", "--no"}) == Words{"--now"});
  CHECK(has(offered(scratch, {"show", ""}), "program"));
  CHECK(offered(scratch, {"show", "--pa"}) == Words{"--passes"});
  CHECK(offered(scratch, {"show", "program", "--after", "fuse_p"}) == Words{"fuse_products"});
  CHECK(has(offered(scratch, {"show", "program", "--after", ""}), "order_streams"));
  CHECK(offered(scratch, {"completion", "b"}) == Words{"bash"});
  CHECK(offered(scratch, {"init", "com"}) == Words{"command"});
  CHECK(offered(scratch, {"dance", ""}).empty());
}

TEST_CASE("completion knows job files, and the fields that may be set in them") {
  const Scratch scratch;
  small_job(scratch.path());
  std::filesystem::create_directory(scratch.path() + "/jobs");
  std::ofstream(scratch.path() + "/jobs/mine.yaml") << "command: [true]\n";
  std::ofstream(scratch.path() + "/notes.txt") << "x";
  CHECK(offered(scratch, {"run", ""}) == Words{"job.yaml", "jobs/"});
  CHECK(offered(scratch, {"run", "jobs/"}) == Words{"jobs/mine.yaml"});
  CHECK(offered(scratch, {"run", "job.yaml", "launch.bi"}) == Words{"launch.bind="});
  CHECK(offered(scratch, {"run", "job.yaml", "launch.bind="}) ==
        Words{"launch.bind=core", "launch.bind=none", "launch.bind=numa"});
  CHECK(offered(scratch, {"run", "job.yaml", "dataset.shuf"}) == Words{"dataset.shuffle=", "dataset.shuffle_block="});
  CHECK(has(offered(scratch, {"run", "--detach", "job.yaml", "train.epochs=2", "parallel.strategies."}),
            "parallel.strategies.fc1="));
  CHECK(has(offered(scratch, {"show", "graph", "job.yaml", "par"}), "parallel.mode="));
  CHECK(offered(scratch, {"run", "jobs/mine.yaml", "parallel."}).empty());
  CHECK(has(offered(scratch, {"run", "jobs/mine.yaml", "wor"}), "working_dir="));
}

TEST_CASE("completion knows the numbers of runs") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml") << "command: [true]\n";
  for (int i = 0; i < 2; ++i) REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml"}).exit_code == 0);
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml", "launch.log_dir=other"}).exit_code == 0);
  CHECK(offered(scratch, {"logs", ""}) == Words{"1", "2", "latest"});
  CHECK(offered(scratch, {"report", "1", ""}) == Words{"1", "2", "latest"});
  CHECK(offered(scratch, {"logs", "--log-dir", "other", ""}) == Words{"1", "latest"});
  CHECK(offered(scratch, {"logs", "--log-dir=other", ""}) == Words{"1", "latest"});
  CHECK(offered(scratch, {"stop", ""}).empty());
}

TEST_CASE("completion knows the words of nested commands, ops, collectives and the values of options") {
  const Scratch scratch;
  CHECK(offered(scratch, {"bench", ""}) == Words{"collective", "data", "model", "op"});
  CHECK(has(offered(scratch, {"bench", "op", "m"}), "matmul"));
  CHECK(has(offered(scratch, {"bench", "op", "relu", "sof"}), "softmax"));
  CHECK(has(offered(scratch, {"bench", "model", "qw"}), "qwen3-8b"));
  CHECK(offered(scratch, {"bench", "op", "--sh"}) == Words{"--shape"});
  CHECK(offered(scratch, {"bench", "op", "matmul", "--device", ""}) == Words{"cpu", "cuda"});
  CHECK(offered(scratch, {"bench", "op", "matmul", "--device=c"}) == Words{"--device=cpu", "--device=cuda"});
  CHECK(offered(scratch, {"bench", "op", "--dtype", ""}) == Words{"bf16", "f32", "tf32"});
  CHECK(offered(scratch, {"bench", "collective", "all_"}) == Words{"all_gather", "all_reduce", "all_to_all"});
  CHECK(offered(scratch, {"help", "b"}) == Words{"bench"});
  CHECK(offered(scratch, {"help", "bench", ""}) == Words{"collective", "data", "model", "op"});
  CHECK(offered(scratch, {"help", "run", ""}).empty());
  CHECK(offered(scratch, {"run", "--show", "a"}) == Words{"all"});
}

TEST_CASE("completion knows layers, their fields, and the values of every choice") {
  const Scratch scratch;
  small_job(scratch.path());
  const auto field = [&](const std::string& typed) { return offered(scratch, {"run", "job.yaml", typed}); };
  CHECK(field("net") == Words{"network."});
  CHECK(field("network.") == Words{"network.act1.", "network.fc1.", "network.out."});
  CHECK(field("network.f") == Words{"network.fc1."});
  CHECK(has(field("network.fc1."), "network.fc1.units="));
  CHECK_FALSE(has(field("network.act1."), "network.act1.units="));
  CHECK(has(field("network.act1.type="), "network.act1.type=gelu"));
  CHECK(field("network.fc1.bias=") == Words{"network.fc1.bias=false", "network.fc1.bias=true"});
  CHECK(field("loss=") == Words{"loss=binary_cross_entropy", "loss=cosine_embedding", "loss=ctc", "loss=dice",
                                "loss=distillation", "loss=dpo", "loss=focal", "loss=hinge", "loss=huber",
                                "loss=info_nce", "loss=kl_div", "loss=log_cosh", "loss=mae", "loss=mse", "loss=poisson",
                                "loss=quantile", "loss=smooth_l1", "loss=softmax_cross_entropy", "loss=triplet"});
  CHECK(has(field("loss"), "loss.input="));
  CHECK(has(field("optimizer."), "optimizer.momentum="));
  CHECK_FALSE(has(field("optimizer."), "optimizer.betas="));  // the file has sgd
  CHECK(has(offered(scratch, {"run", "job.yaml", "optimizer.type=adam", "optimizer."}), "optimizer.betas="));
  CHECK(field("optimizer.type=a") ==
        Words{"optimizer.type=adafactor", "optimizer.type=adagrad", "optimizer.type=adam", "optimizer.type=adamw"});
  CHECK(field("optimizer.learning_rate.type=c") == Words{"optimizer.learning_rate.type=constant",
                                                         "optimizer.learning_rate.type=cosine",
                                                         "optimizer.learning_rate.type=cosine_restarts"});
  CHECK(has(field("print="), "print=fc1"));
  CHECK(has(field("env"), "env."));
}

TEST_CASE("completion knows vars, and the arguments and layers of modules") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml")
      << "vars: {d: 8, heads: 2}\ndataset: {type: random, shape: ['${d}']}\n"
         "modules: {block: {args: {width: 4}, layers: [{name: fc, type: dense, units: '${width}'}]}}\n"
         "network: [{module: block, name: h}]\n";
  const auto field = [&](const std::string& typed) { return offered(scratch, {"run", "job.yaml", typed}); };
  CHECK(field("vars.") == Words{"vars.d=", "vars.heads="});
  CHECK(has(field("modules.block."), "modules.block.args.width="));
  CHECK(has(field("modules.block.layers.fc."), "modules.block.layers.fc.units="));
  CHECK(has(field("network.h."), "network.h.with="));
}

TEST_CASE("completion goes by what can be read of a job that is still wrong") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/draft.yaml")
      << "network:\n  - {name: fc, type: dense}\n  - {type: relu}\n  - {type: relu}\n  - {module: block, name: h}\n"
         "modules:\n  block: [{name: inner, type: dense}]\n";
  const auto field = [&](const std::string& typed) { return offered(scratch, {"run", "draft.yaml", typed}); };
  CHECK(field("network.") == Words{"network.fc.", "network.h.", "network.relu.", "network.relu_1."});
  CHECK(has(field("network.h."), "network.h.repeat="));
  CHECK(field("modules.") == Words{"modules.block."});
  CHECK(field("modules.block.") == Words{"modules.block.inner."});
  CHECK(has(field("modules.block.inner."), "modules.block.inner.units="));
  CHECK(has(offered(scratch, {"run", "none.yaml", "launch.ra"}), "launch.ranks="));
}

TEST_CASE("errors in a command line are reported in our own words") {
  const Scratch scratch;
  small_job(scratch.path());
  CHECK(contains(complaint(scratch, {}), "trainctl: missing command; available commands: run, evaluate"));
  CHECK(contains(complaint(scratch, {"run"}), "trainctl run: JOB.yaml is missing"));
  CHECK(contains(complaint(scratch, {"show"}),
                 "trainctl show: what is missing: spec | model | graph | plan | program | weights"));
  CHECK(contains(complaint(scratch, {"show", "grap", "job.yaml"}), "cannot show 'grap'; did you mean 'graph'?"));
  CHECK(contains(complaint(scratch, {"run", "job.yaml", "--detatch"}),
                 "unknown option '--detatch'; did you mean '--detach'?"));
  CHECK(contains(complaint(scratch, {"run", "job.yaml", "--launch.ranks=4"}), "without dashes: launch.ranks=4"));
  CHECK(contains(complaint(scratch, {"show", "graph", "job.yaml", "--rank", "x"}), "--rank: 'x' is not a number"));
  CHECK(contains(complaint(scratch, {"stop", "99999999999999999999"}), "'99999999999999999999' is not a number"));
  CHECK(contains(complaint(scratch, {"logs", "1", "--tail", "x"}), "--tail: 'x' is not a number"));
  CHECK(contains(complaint(scratch, {"logs", "1", "--tail"}), "--tail requires a value"));
  CHECK(contains(complaint(scratch, {"ps", "3"}), "'3' is an unexpected argument"));
}
