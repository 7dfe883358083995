// Tests of command lines that a new user tries: options of other launchers, words in the wrong place, help everywhere.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
using Words = std::vector<std::string>;

namespace {

Words split(const std::string& line) {
  std::istringstream in(line);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

/// Returns the stderr of a command line that must be refused as a whole, before anything starts.
std::string refusal(const Scratch& scratch, const std::string& line) {
  CAPTURE(line);
  const CommandResult result = trainctl_command(scratch.path(), split(line));
  CHECK(result.exit_code == kExitSpec);
  CHECK(result.out.empty());
  CHECK_FALSE(std::filesystem::exists(scratch.path() + "/log_output"));
  return result.err;
}

/// The examples of a help text: lines that begin with a command.
Words examples(const std::string& help) {
  Words found;
  std::istringstream in(help.substr(std::min(help.find("Examples:"), help.size())));
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("  trainctl ")) found.push_back(line.substr(2));
  return found;
}

}  // namespace

TEST_CASE("an option of another launcher is answered with our spelling") {
  const Scratch scratch;
  small_job(scratch.path());
  for (const char* option : {"--ranks 4",
                             "--ranks=4",
                             "-n 4",
                             "-n4",
                             "-np 4",
                             "-np4",
                             "--np 4",
                             "--nproc-per-node 4",
                             "--nproc_per_node=4",
                             "--nproc-per-node=4",
                             "--worker_num=4",
                             "--worker_num 4",
                             "--local_worker_num=4",
                             "--num_gpus 4",
                             "--num_processes 4",
                             "--num-processes=4",
                             "--ntasks=4",
                             "--world-size 4",
                             "--gpus 4",
                             "-c 4"}) {
    CAPTURE(option);
    for (const char* command : {"run", "plan", "check", "show graph"}) {
      CAPTURE(command);
      CHECK(contains(refusal(scratch, std::string(command) + " job.yaml " + option), "write launch.ranks=4"));
      CHECK(contains(refusal(scratch, std::string(command) + " " + option + " job.yaml"), "write launch.ranks=4"));
    }
    CHECK(contains(refusal(scratch, std::string(option) + " run job.yaml"), "write launch.ranks=4"));
    CHECK(contains(refusal(scratch, std::string(option) + " job.yaml"), "write launch.ranks=4"));
  }
  CHECK(contains(refusal(scratch, "run job.yaml --nproc-per-node gpu"), "write launch.ranks=N"));
  CHECK(contains(refusal(scratch, "run job.yaml -n"), "write launch.ranks=N"));
  CHECK(contains(refusal(scratch, "bench collective all_reduce -np 4"), "write --ranks 4"));
}

TEST_CASE("options of other launchers for several hosts are errors that name trainctl's way") {
  const Scratch scratch;
  small_job(scratch.path());
  for (const char* option : {"--nnodes 2", "--node-rank 0", "--node_rank=0", "--num_machines 1"})
    CHECK(contains(refusal(scratch, std::string("run job.yaml ") + option), "all ranks run on this host"));
  CHECK(contains(refusal(scratch, "run job.yaml --hostfile hosts"), "write launch.hostfile=hosts"));
  for (const char* option : {"--master-addr 10.0.0.1", "--master_port=29500", "--rdzv-backend c10d",
                             "--rdzv_endpoint=a:1", "--main_process_port 1"})
    CHECK(contains(refusal(scratch, std::string("run job.yaml ") + option), "chooses the address and a free port"));
}

TEST_CASE("all unknown options of a command line are reported together") {
  const Scratch scratch;
  small_job(scratch.path());
  const std::string err = refusal(scratch, "run job.yaml --nnodes 1 --nproc_per_node 4 --epochs 3");
  for (const char* part : {"'--nnodes'; remove it", "write launch.ranks=4", "write train.epochs=3"})
    CHECK(contains(err, part));
}

TEST_CASE("a field of the job given as an option is an error that states its override") {
  const Scratch scratch;
  small_job(scratch.path());
  for (const auto& [option, ours] :
       std::vector<std::pair<std::string, std::string>>{{"--epochs 3", "train.epochs=3"},
                                                        {"--batch-size=64", "dataset.batch=64"},
                                                        {"--lr 0.1", "optimizer.learning_rate=0.1"},
                                                        {"--learning-rate 0.1", "optimizer.learning_rate=0.1"},
                                                        {"--seed 7", "seed=7"},
                                                        {"--log-dir out", "launch.log_dir=out"},
                                                        {"--log_dir=out", "launch.log_dir=out"},
                                                        {"--device cuda", "launch.device=cuda"},
                                                        {"--max-restarts 2", "launch.max_restarts=2"},
                                                        {"--micro-batches 4", "parallel.micro_batches=4"},
                                                        {"--optimizer adam", "optimizer=adam"},
                                                        {"--loss mse", "loss=mse"},
                                                        {"--bind-to core", "launch.bind=core"},
                                                        {"--launch-ranks 4", "launch.ranks=4"},
                                                        {"-x NCCL_DEBUG=INFO", "env.NCCL_DEBUG=INFO"}})
    CHECK(contains(refusal(scratch, "run job.yaml " + option), "write " + ours + "\n"));
  CHECK(contains(refusal(scratch, "run job.yaml --set launch.ranks=4"), "without an option: launch.ranks=4"));
  CHECK(contains(refusal(scratch, "run --config job.yaml"), "without an option: trainctl run job.yaml"));
  CHECK(contains(refusal(scratch, "run job.yaml --launch.ranks=4"), "without dashes: launch.ranks=4"));
  CHECK(contains(refusal(scratch, "run job.yaml --launch.ranks 4"), "without dashes: launch.ranks=4"));
}

TEST_CASE("words in the wrong place are answered with the right one") {
  const Scratch scratch;
  small_job(scratch.path());
  std::ofstream(scratch.path() + "/train.py") << "";
  CHECK(contains(refusal(scratch, "job.yaml"), "to run this job: trainctl run job.yaml"));
  CHECK(contains(refusal(scratch, "train.py"), "command: [python3, train.py]"));
  CHECK(contains(refusal(scratch, "rnu job.yaml"), "did you mean 'run'?"));
  CHECK(contains(refusal(scratch, "train job.yaml"), "did you mean 'run'?"));
  CHECK(contains(refusal(scratch, "kill 1"), "did you mean 'stop'?"));
  CHECK(contains(refusal(scratch, "version"), "did you mean '--version'?"));
  CHECK(contains(refusal(scratch, "--json plan job.yaml"), "write options after it: trainctl plan --json"));
  CHECK(contains(refusal(scratch, "bench"),
                 "trainctl bench: missing command; available commands: op, model, data, collective"));
  CHECK(contains(refusal(scratch, "bench colective"),
                 "trainctl bench: unknown command 'colective'; did you mean 'collective'?"));
  CHECK(contains(refusal(scratch, "bench collective"), "trainctl bench collective: KIND is missing"));
  CHECK(contains(refusal(scratch, "bench op matmul --shap 1"), "did you mean '--shape'?"));
  CHECK(contains(refusal(scratch, "show job.yaml"), "trainctl show plan job.yaml"));
  CHECK(contains(refusal(scratch, "-- run job.yaml"), "'--' has no meaning before the command"));
  CHECK(contains(refusal(scratch, "run -- --ranks"), "cannot read the job file"));
}

TEST_CASE("help explains what --help does, in every place") {
  const Scratch scratch;
  const auto out = [&](const std::string& line) {
    const CommandResult result = trainctl_command(scratch.path(), split(line));
    CHECK(result.exit_code == kExitDone);
    CHECK(result.err.empty());
    return result.out;
  };
  CHECK(out("help") == out("--help"));
  CHECK(out("-h") == out("--help"));
  for (const std::string command : {"run", "plan", "check", "show", "ps", "logs", "attach", "stop", "init", "schema",
                                    "completion", "bench", "bench op", "bench collective", "help", "man"}) {
    CAPTURE(command);
    CHECK(out("help " + command) == out(command + " --help"));
    CHECK(out(command + " -h") == out(command + " --help"));
    CHECK(contains(out("help " + command), "Usage: trainctl " + command));
  }
  CHECK(out("run -h job.yaml launch.ranks=4") == out("run --help"));
  CHECK(contains(refusal(scratch, "help rnu"), "did you mean 'run'?"));
  CHECK(contains(refusal(scratch, "help bench opp"), "did you mean 'op'?"));
  CHECK(contains(refusal(scratch, "help run job.yaml"), "trainctl run has no subcommands"));
}

TEST_CASE("the examples in a command's help are only of that command") {
  const Scratch scratch;
  for (const std::string command : {"run", "plan", "check", "show", "ps", "logs", "attach", "stop", "init",
                                    "completion", "schema", "bench", "bench op", "bench collective", "help", "man"}) {
    CAPTURE(command);
    const Words found = examples(trainctl_command(scratch.path(), split(command + " --help")).out);
    if (command != "completion") CHECK_FALSE(found.empty());
    for (const std::string& example : found) {
      CAPTURE(example);
      CHECK(example.starts_with("trainctl " + command));
    }
  }
}

TEST_CASE("impossible values of run's options are refused before the run") {
  const Scratch scratch;
  small_job(scratch.path());
  std::ofstream(scratch.path() + "/command.yaml") << "command: [true]\n";
  std::filesystem::create_directory(scratch.path() + "/folder");
  CHECK(contains(refusal(scratch, "run command.yaml --record"),
                 "--record: only collectives of networks can be recorded"));
  CHECK(contains(refusal(scratch, "run command.yaml --profile"), "--profile: only networks can be profiled"));
  CHECK(contains(refusal(scratch, "run command.yaml --profile-steps 2"), "--profile"));
  CHECK(contains(refusal(scratch, "run job.yaml --profile --profile-steps 5-3"), "is not a valid range of steps"));
  CHECK(contains(refusal(scratch, "run job.yaml --profile trace.json"), "--profile=trace.json"));
  for (const char* empty : {"run job.yaml --profile=", "run job.yaml --show=", "show program job.yaml --after=",
                            "ps --log-dir=", "logs --grep=", "bench op matmul --shape="})
    CHECK(contains(refusal(scratch, empty), ": the value is empty"));
  CHECK(contains(refusal(scratch, "run command.yaml --detach --show all"), "--detach shows no output"));
  CHECK(contains(refusal(scratch, "run command.yaml --show 7"), "there is no rank 7"));
  CHECK(contains(refusal(scratch, "run command.yaml --detach --record"), "--record"));
}

TEST_CASE("an output that cannot be written is refused before the work") {
  const Scratch scratch;
  small_job(scratch.path());
  std::filesystem::create_directory(scratch.path() + "/folder");
  std::ofstream(scratch.path() + "/file") << "";
  for (const auto& [line, why] : std::vector<std::pair<std::string, std::string>>{
           {"run job.yaml --profile=none/x.json",
            "--profile: cannot write none/x.json: the folder none does not exist"},
           {"run job.yaml --profile=folder", "--profile: cannot write folder: it is a folder"},
           {"run job.yaml --profile=file/x", "the folder file does not exist"},
           {"run job.yaml launch.log_dir=file/logs", "launch.log_dir: cannot write file/logs: file is not a folder"},
           {"run job.yaml --detach launch.log_dir=file", "file is not a folder"},
           {"init mlp -o none/job.yaml", "cannot write none/job.yaml"}}) {
    CAPTURE(line);
    const CommandResult result = trainctl_command(scratch.path(), split(line));
    CHECK(result.exit_code == kExitEnv);
    CHECK(contains(result.err, why));
    CHECK_FALSE(std::filesystem::exists(scratch.path() + "/log_output"));
  }
}

TEST_CASE(
    "names of files and values of columns are shown with control characters escaped, and so are words of the command "
    "line") {
  const Scratch scratch;
  const std::string escapes = "\x1b]0;title\x07\x1b[2J";
  std::filesystem::create_directories(scratch.path() + "/set/a");
  std::ofstream(scratch.path() + "/set/a/" + escapes + ".png") << "no image";
  std::ofstream(scratch.path() + "/table.csv") << "a,y\n1,name" << escapes << "\n2,other\n";
  std::ofstream(scratch.path() + "/job.yaml") << R"(name: names
dataset: {type: csv, path: table.csv, batch: 1, fields: {x: a, label: y}}
network: [{name: o, type: dense, units: 2, inputs: [x]}]
loss: softmax_cross_entropy
)";
  for (const Words& words : {Words{"data", "check", "set"}, Words{"data", "check", "job.yaml"}, Words{"run" + escapes},
                             Words{"run", "job.yaml", "--no" + escapes}, Words{"run", escapes + ".yaml"},
                             Words{"run", "job.yaml", "name=" + escapes}, Words{"checkpoint", "show", escapes}}) {
    const CommandResult result = trainctl_command(scratch.path(), words);
    CAPTURE(words.back());
    CHECK(!contains(result.out + result.err, "\x1b"));
    CHECK(contains(result.out + result.err, "\\x1b]0;title\\x07\\x1b[2J"));
  }
}
