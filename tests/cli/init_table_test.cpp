// trainctl init --data TABLE: the job of a table, by the columns that it has.
#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

/// 60 rows: sizes, towns, a number per row, gaps, and what follows from size and town.
void write_houses(const std::string& path) {
  std::ofstream file(path);
  file << "id,size,town,floor,remark,owner,kind,price\n";
  for (int i = 0; i < 60; ++i) {
    const int size = 20 + (i * 37) % 100;
    const bool is_dear = i % 3 == 0;
    file << i << ',' << size << ',' << (is_dear ? "Genf" : "Chur") << ',' << i % 4 << ".0," << (i == 7 ? "" : "x")
         << ",owner " << i << ',' << (size > 70 ? "large" : "small") << ',' << size * (is_dear ? 3000 : 1500) << '\n';
  }
}

CommandResult init_table(const Scratch& scratch, const std::string& data, std::vector<std::string> more,
                         const std::string& job = "job.yaml") {
  std::vector<std::string> words = {"init", "--data", data, "-o", job};
  words.insert(words.end(), more.begin(), more.end());
  return trainctl_command(scratch.path(), words);
}

std::vector<std::string> columns_of(const JobSpec& job, const std::string& field) {
  for (const SampleFieldSpec& one : job.dataset.fields)
    if (one.name == field) return one.parts;
  return {};
}

}  // namespace

TEST_CASE("init --data takes a table, predicts its last column, and leaves out columns with gaps and identifiers") {
  const Scratch scratch;
  write_houses(scratch.path() + "/houses.csv");
  const CommandResult made = init_table(scratch, "houses.csv", {});
  CAPTURE(made.err);
  REQUIRE(made.exit_code == kExitDone);
  const JobSpec job = load_job(scratch.path() + "/job.yaml");
  CHECK(columns_of(job, "numbers") == std::vector<std::string>{"size", "floor"});
  CHECK(columns_of(job, "words") == std::vector<std::string>{"town", "kind"});
  CHECK(columns_of(job, "label") == std::vector<std::string>{"price"});
  CHECK(job.dataset.label_dtype == "f32");
  CHECK(job.loss->type == "mse");
  const CommandResult run =
      trainctl_command(scratch.path(), {"run", "job.yaml", "train.epochs=3", "launch.device=cpu"});
  CAPTURE(run.err);
  CHECK(run.exit_code == kExitDone);
  CHECK(contains(run.out, "validation loss"));
}

TEST_CASE("init --data predicts words and few small integers as classes, and --target and --target-type choose") {
  const Scratch scratch;
  write_houses(scratch.path() + "/houses.csv");
  REQUIRE(init_table(scratch, "houses.csv", {"--target", "kind"}).exit_code == kExitDone);
  JobSpec job = load_job(scratch.path() + "/job.yaml");
  CHECK(job.network.back().attrs.integer("units") == 2);
  CHECK(job.loss->type == "softmax_cross_entropy");
  const CommandResult run =
      trainctl_command(scratch.path(), {"run", "job.yaml", "train.epochs=3", "launch.device=cpu"});
  CAPTURE(run.err);
  CHECK(run.exit_code == kExitDone);
  REQUIRE(init_table(scratch, "houses.csv", {"--target", "floor"}, "floor.yaml").exit_code == kExitDone);
  CHECK(load_job(scratch.path() + "/floor.yaml").network.back().attrs.integer("units") == 4);
  CHECK(trainctl_command(scratch.path(), {"data", "check", "floor.yaml"}).exit_code == kExitDone);
  REQUIRE(init_table(scratch, "houses.csv", {"--target", "floor", "--target-type", "number"}, "n.yaml").exit_code ==
          kExitDone);
  CHECK(load_job(scratch.path() + "/n.yaml").loss->type == "mse");
}

TEST_CASE("init --data finds the delimiter, and numbers that are not those of classes are classes by their values") {
  const Scratch scratch;
  std::string file;
  for (const auto& [delimiter, name] : {std::pair{';', "';'"}, {'|', "'|'"}, {'\t', "tab"}}) {
    for (const std::vector<std::string>& labels : {std::vector<std::string>{"-1", "1"},
                                                   {"3", "5", "8", "10"},
                                                   {"0.5", "1.5"},
                                                   {"1", "2", "3"},
                                                   {"False", "True"}}) {
      CAPTURE(name);
      CAPTURE(labels.front());
      {
        std::ofstream table(scratch.path() + "/t.csv");
        table << "a" << delimiter << "b" << delimiter << "label\n";
        for (size_t i = 0; i < 40; ++i)
          table << i << delimiter << 40 - i << delimiter << labels[i * labels.size() / 40] << "\n";
      }
      file = std::string(name, 1, 1) + labels.front() + ".yaml";
      REQUIRE(init_table(scratch, "t.csv", {}, file).exit_code == kExitDone);
      const JobSpec job = load_job(scratch.path() + "/" + file);
      CHECK(job.dataset.delimiter == (delimiter == '\t' ? std::string("tab") : std::string(1, delimiter)));
      CHECK(job.loss->type == "softmax_cross_entropy");
      CHECK(job.network.back().attrs.integer("units") == static_cast<int64_t>(labels.size()));
      const CommandResult check = trainctl_command(scratch.path(), {"data", "check", file});
      CAPTURE(check.err);
      CHECK(check.exit_code == kExitDone);
    }
  }
  const CommandResult run = trainctl_command(scratch.path(), {"run", file, "train.epochs=3", "launch.device=cpu"});
  CAPTURE(run.err);
  CHECK(run.exit_code == kExitDone);
}

TEST_CASE("init --data predicts integers that hardly repeat as numbers") {
  const Scratch scratch;
  std::ofstream table(scratch.path() + "/t.csv");
  table << "a,label\n";
  for (int i = 0; i < 20; ++i) table << 20 - i << "," << i * i << "\n";
  table.close();
  REQUIRE(init_table(scratch, "t.csv", {}).exit_code == kExitDone);
  CHECK(load_job(scratch.path() + "/job.yaml").loss->type == "mse");
}

TEST_CASE("init --data takes JSON Lines and folders of tables, and an error says what a table lacks") {
  const Scratch scratch;
  write_houses(scratch.path() + "/houses.csv");
  REQUIRE(trainctl_command(scratch.path(), {"data", "convert", "houses.csv", "-o", "houses.jsonl"}).exit_code ==
          kExitDone);
  REQUIRE(init_table(scratch, "houses.jsonl", {"--target", "kind"}).exit_code == kExitDone);
  CHECK(load_job(scratch.path() + "/job.yaml").dataset.type == "table");
  CHECK(trainctl_command(scratch.path(), {"data", "check", "job.yaml"}).exit_code == kExitDone);
  CHECK(contains(init_table(scratch, "houses.csv", {"--target", "pric"}).err, "'price'"));
  CHECK(contains(init_table(scratch, "houses.csv", {"--target", "remark"}).err, "has no value in houses.csv:9"));
  std::ofstream(scratch.path() + "/a.csv") << "a;b;label\n1,5;2;x\n2,5;3;y\n";
  CHECK(contains(init_table(scratch, "a.csv", {}).err, "the column 'a' has numbers with decimal commas"));
  std::ofstream(scratch.path() + "/one.csv") << "a,label\n1,x\n2,x\n";
  CHECK(contains(init_table(scratch, "one.csv", {}).err, "the same value in all rows"));
  std::ofstream(scratch.path() + "/numbers.csv") << "1,2\n3,4\n";
  CHECK(contains(init_table(scratch, "numbers.csv", {}).err, "not with a header"));
  std::ofstream(scratch.path() + "/b.csv") << "a,label\n";
  CHECK(contains(init_table(scratch, "b.csv", {}).err, "b.csv"));
  std::ofstream(scratch.path() + "/talks.jsonl") << "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n";
  CHECK(contains(init_table(scratch, "talks.jsonl", {}).err, "--finetune chat"));
}
