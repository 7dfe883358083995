// Jobs that start a user's program.
#include <doctest/doctest.h>

#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "engine/spec/read_command.h"

using namespace trainctl;
using Words = std::vector<std::string>;

TEST_CASE("the words of a command are as the user wrote them, regardless of YAML's types") {
  const Words words = {"true", "0.10", "1e-3", "0x1F", "yes", "a b", "", "-", "$RANK", "null"};
  const JobSpec job = parse_job(R"(command: [true, 0.10, 1e-3, 0x1F, yes, "a b", "", -, $RANK, "null"])", "job.yaml");
  CHECK(job.has_command());
  CHECK(job.command == words);
  const JobSpec again = parse_job(to_yaml(job), "other/job.yaml");
  CHECK(again.command == words);
}

TEST_CASE("a job with a command keeps its environment, folder and launch when it is written out") {
  const JobSpec job = parse_job(R"(
name: mine
command:
  - python3
  - train.py
env: {FLAG: true, LR: 0.10, TEXT: "a: b\nc"}
working_dir: ../src/
launch: {ranks: 4, max_restarts: 2, bind: numa, grace: 3s}
)",
                                "/home/me/jobs/job.yaml");
  CHECK(job.env == std::map<std::string, std::string>{{"FLAG", "true"}, {"LR", "0.10"}, {"TEXT", "a: b\nc"}});
  CHECK(job.working_dir == "/home/me/src");
  CHECK(job.launch.max_restarts == 2);
  CHECK(job.launch.bind == BindMode::numa);
  const std::string text = to_yaml(job);
  CHECK(text.find("dataset") == std::string::npos);
  CHECK(text.find("timeout") == std::string::npos);
  const JobSpec again = parse_job(text, "/elsewhere/job.yaml");
  CHECK(again.command == job.command);
  CHECK(again.env == job.env);
  CHECK(again.working_dir == "/home/me/src");
  CHECK(to_yaml(again) == text);
}

TEST_CASE("a command runs in the job file's folder unless working_dir is set") {
  CHECK(parse_job("command: [true]", "/home/me/jobs/job.yaml").working_dir == "/home/me/jobs");
  CHECK(parse_job("command: [true]", "/job.yaml").working_dir == "/");
  CHECK(parse_job("command: [true]\nworking_dir: /data", "/home/me/job.yaml").working_dir == "/data");
}

TEST_CASE("overrides reach the words and the environment of a command") {
  const JobSpec job = parse_job("command: [python3, train.py, --lr, 0.1]", "job.yaml",
                                {"command[3]=0.2", "env.SEED=7", "launch.ranks=3", "working_dir=/tmp"});
  CHECK(job.command == Words{"python3", "train.py", "--lr", "0.2"});
  CHECK(job.env.at("SEED") == "7");
  CHECK(job.launch.ranks == 3);
  CHECK(job.working_dir == "/tmp");
}

TEST_CASE("a job with a network has an environment too") {
  const JobSpec job = parse_job(R"(
env: {NCCL_DEBUG: INFO}
dataset: {type: random, shape: [8], label_dtype: f32}
network: [{type: dense, units: 4}]
)",
                                "job.yaml");
  CHECK_FALSE(job.has_command());
  CHECK(job.env.at("NCCL_DEBUG") == "INFO");
  CHECK(job.working_dir.empty());
  CHECK(parse_job(to_yaml(job), "job.yaml").env == job.env);
}

TEST_CASE("the variables by which ranks find each other are reserved") {
  for (const char* name : {"RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT",
                           "TRAINCTL_STORE_PORT", "ROLE_NAME"})
    CHECK(is_reserved_variable(name));
  for (const char* name : {"OMP_NUM_THREADS", "PYTHONUNBUFFERED", "RANKS", "PATH"})
    CHECK_FALSE(is_reserved_variable(name));
}
