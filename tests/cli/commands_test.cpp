// Tests commands that start no ranks.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/parse.h"
#include "engine/train/data/image/png_file.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

TEST_CASE("every command explains itself, with an example") {
  const Scratch scratch;
  CHECK(contains(trainctl_command(scratch.path(), {"--help"}).out, "Exit codes"));
  for (const char* command : {"run", "plan", "check", "show", "schema", "init", "logs"}) {
    CAPTURE(command);
    const CommandResult help = trainctl_command(scratch.path(), {command, "--help"});
    CHECK(help.exit_code == kExitDone);
    CHECK(contains(help.out, std::string("trainctl ") + command));
    CHECK(contains(help.out, "Example"));
  }
  CHECK(contains(trainctl_command(scratch.path(), {"--version"}).out, "trainctl "));
}

TEST_CASE("the worker is hidden from the user") {
  const Scratch scratch;
  CHECK_FALSE(contains(trainctl_command(scratch.path(), {"--help"}).out, "worker"));
}

TEST_CASE("a command line that makes no sense exits with 2") {
  const Scratch scratch;
  CHECK(trainctl_command(scratch.path(), {}).exit_code == kExitSpec);
  CHECK(trainctl_command(scratch.path(), {"dance"}).exit_code == kExitSpec);
  CHECK(trainctl_command(scratch.path(), {"run"}).exit_code == kExitSpec);
  small_job(scratch.path());
  const CommandResult result = trainctl_command(scratch.path(), {"check", "job.yaml", "launch.ranks"});
  CHECK(result.exit_code == kExitSpec);
  CHECK(contains(result.err, "'launch.ranks' is not of the form field=value"));
}

TEST_CASE("check says that a job is valid, and accepts overrides") {
  const Scratch scratch;
  small_job(scratch.path());
  const CommandResult result =
      trainctl_command(scratch.path(), {"check", "job.yaml", "launch.ranks=2", "parallel.mode=data_parallel"});
  CHECK(result.exit_code == kExitDone);
  CHECK(contains(result.out, "job.yaml: valid"));
  CHECK(contains(result.out, "2 ranks"));
}

TEST_CASE("all errors in the job are shown with line and caret, and the exit code is 2") {
  const Scratch scratch;
  small_job(scratch.path(), "train: {epoch: 1}\nparalel: {}\n");
  const CommandResult result = trainctl_command(scratch.path(), {"check", "job.yaml"});
  CHECK(result.exit_code == kExitSpec);
  CHECK(result.out.empty());
  CHECK(contains(result.err, "job.yaml:9:9:"));
  CHECK(contains(result.err, "train: {epoch: 1}"));
  CHECK(contains(result.err, "^ "));
  CHECK(contains(result.err, "job.yaml:10:1:"));
  CHECK(contains(result.err, "2 errors"));
}

TEST_CASE("a job file that does not exist is named, with exit code 2") {
  const Scratch scratch;
  const CommandResult result = trainctl_command(scratch.path(), {"run", "no.yaml"});
  CHECK(result.exit_code == kExitSpec);
  CHECK(contains(result.err, "no.yaml"));
}

TEST_CASE("show program stops after a pass, or shows what each pass does") {
  const Scratch scratch;
  small_job(scratch.path());
  const auto show = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"show", "program", "job.yaml"};
    words.insert(words.end(), more.begin(), more.end());
    return trainctl_command(scratch.path(), words);
  };
  const std::string lowered = show({"--after", "lower_stage"}).out;
  CHECK(contains(lowered, "unplaced buffers"));
  CHECK(contains(lowered, "in -> out (shape buffer@offset+bytes)"));
  CHECK(contains(lowered, "b0@0+"));
  CHECK(show({"--after", "order_streams"}).out == show({}).out);
  CHECK(contains(show({"--after", "place_buffers"}).out, "in -> out (shape @offset+bytes)"));

  const std::string passes = show({"--passes"}).out;
  for (const char* name : {"lay_out_variables", "lower_stage", "fuse_products", "place_buffers", "order_streams"})
    CHECK(contains(passes, std::string("\n") + name));
  CHECK(contains(passes, " ms"));

  const CommandResult unknown = show({"--after", "fuse_los"});
  CHECK(unknown.exit_code == kExitSpec);
  CHECK(contains(unknown.err, "unknown pass 'fuse_los'; did you mean 'fuse_loss'?"));
  CHECK(contains(unknown.err, "available passes: lay_out_variables, divide_storage, choose_formats, lower_stage, "));
  const CommandResult both = show({"--after", "fuse_loss", "--passes"});
  CHECK(both.exit_code == kExitSpec);
  CHECK(contains(both.err, "cannot be combined"));
  const CommandResult plan = trainctl_command(scratch.path(), {"show", "plan", "job.yaml", "--passes"});
  CHECK(plan.exit_code == kExitSpec);
  CHECK(contains(plan.err, "only a program has passes, not a plan"));
}

TEST_CASE("show program works for every rank of asynchronous workers and servers, whole and pass by pass") {
  const Scratch scratch;
  const std::string job = TRAINCTL_SOURCE_DIR "/configs/wide_deep_ps.yaml";
  for (const char* rank : {"0", "3", "4", "5"}) {
    CAPTURE(rank);
    for (const std::vector<std::string>& how :
         std::vector<std::vector<std::string>>{{}, {"--passes"}, {"--after", "lower_stage"}}) {
      std::vector<std::string> words = {"show", "program", job, "--rank", rank};
      words.insert(words.end(), how.begin(), how.end());
      const CommandResult result = trainctl_command(scratch.path(), words);
      INFO(result.err);
      CHECK(result.exit_code == kExitDone);
    }
  }
}

TEST_CASE("show prints each noun") {
  const Scratch scratch;
  small_job(scratch.path());
  CHECK(contains(trainctl_command(scratch.path(), {"show", "graph", "job.yaml"}).out, "fc1.weight"));
  CHECK(contains(trainctl_command(scratch.path(), {"show", "plan", "job.yaml"}).out, "fc1"));
  CHECK(contains(trainctl_command(scratch.path(), {"show", "program", "job.yaml"}).out, "matmul"));
  const std::string weights = trainctl_command(scratch.path(), {"show", "weights", "job.yaml", "--rank", "1",
                                                                "launch.ranks=2", "parallel.mode=semi_auto_parallel",
                                                                "parallel.strategies={fc1: [[1, 1], [2, 1]]}"})
                                  .out;
  CHECK(contains(weights, "rank 1"));
  CHECK(contains(weights, "[8:16, 0:8]"));
  const CommandResult wrong = trainctl_command(scratch.path(), {"show", "program", "job.yaml", "--rank", "7"});
  CHECK(wrong.exit_code == kExitSpec);
  CHECK(contains(wrong.err, "there is no rank 7"));
}

TEST_CASE("schema is JSON, and names the sections") {
  const Scratch scratch;
  const CommandResult result = trainctl_command(scratch.path(), {"schema"});
  CHECK(result.exit_code == kExitDone);
  const auto schema = nlohmann::json::parse(result.out, nullptr, false);
  REQUIRE(schema.is_object());
  CHECK(schema["properties"].contains("parallel"));
}

TEST_CASE("translate knows own types in the spelling of other tools") {
  const Scratch scratch;
  const auto translated = [&](const std::string& name) {
    const CommandResult result = trainctl_command(scratch.path(), {"translate", "--json", name});
    return nlohmann::json::parse(result.out).at(0);
  };
  const std::pair<const char*, const char*> names[] = {
      {"nn.Conv1d", "conv1d"}, {"nn.MaxPool2d", "max_pool2d"}, {"nn.AdaptiveAvgPool2d", "adaptive_avg_pool2d"},
      {"nn.ReLU", "relu"},     {"F.softmax", "softmax"},       {"torch.optim.SGD", "sgd"},
      {"nn.GRU", "gru"},       {"torch.einsum", "einsum"},     {"torch.where", "where"}};
  for (const auto& [name, here] : names) {
    CAPTURE(name);
    CHECK(translated(name)["here"] == here);
  }
  const nlohmann::json lstm = translated("nn.LSTM");
  CHECK(lstm["kind"] == "layer");
  CHECK(lstm["write"].get<std::string>().starts_with("write {type: lstm}; fields: units, "));
  CHECK(translated("nn.NoSuchLayer")["write"] == "unknown");
}

TEST_CASE("translate leaves out the paths of a configuration") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/config.json") << R"({"lr": 0.1, "deepspeed": "deepspeed_configs/zero2.json"})";
  const CommandResult result = trainctl_command(scratch.path(), {"translate", "config.json"});
  CHECK(result.exit_code == kExitDone);
  CHECK(contains(result.out, "learning_rate"));
  CHECK_FALSE(contains(result.out, "zero2"));
}

TEST_CASE("init writes a valid job, and never overwrites a file") {
  const Scratch scratch;
  CHECK(trainctl_command(scratch.path(), {"init", "mlp", "-o", "mine.yaml"}).exit_code == kExitDone);
  CHECK(trainctl_command(scratch.path(), {"check", "mine.yaml"}).exit_code == kExitDone);
  const CommandResult again = trainctl_command(scratch.path(), {"init", "mlp", "-o", "mine.yaml"});
  CHECK(again.exit_code == kExitEnv);
  CHECK(contains(again.err, "mine.yaml already exists"));
  const CommandResult unknown = trainctl_command(scratch.path(), {"init", "mpl"});
  CHECK(unknown.exit_code == kExitSpec);
  CHECK(contains(unknown.err, "did you mean 'mlp'?"));
}

namespace {

void write_photos(const std::string& folder) {
  Image image;
  image.resize(40, 50, 3);
  for (int64_t y = 0; y < 40; ++y) std::fill_n(image.row(y), 150, uint8_t{100});
  for (const char* name : {"cat", "dog"}) {
    std::filesystem::create_directories(folder + "/" + name);
    for (int i = 0; i < 20; ++i) write_png(folder + "/" + name + "/" + std::to_string(i) + ".png", image.view());
  }
}

}  // namespace

TEST_CASE("init --data writes a job with the classes of a folder, and a folder in place of a template leads to it") {
  const Scratch scratch;
  for (const char* name : {"cat", "dog", "owl's nest"}) {
    std::filesystem::create_directories(scratch.path() + "/my photos/" + name);
    std::ofstream(scratch.path() + "/my photos/" + name + "/1.jpg") << "not read by init";
  }
  const CommandResult folder = trainctl_command(scratch.path(), {"init", "my photos"});
  CHECK(folder.exit_code == kExitSpec);
  CHECK(contains(folder.err, "'my photos' is data, not a template"));
  CHECK(contains(folder.err, "trainctl init --data my photos -o job.yaml"));
  REQUIRE(trainctl_command(scratch.path(), {"init", "--data", "my photos", "-o", "job.yaml"}).exit_code == kExitDone);
  const JobSpec job = load_job(scratch.path() + "/job.yaml");
  CHECK(job.dataset.paths == std::vector<std::string>{scratch.path() + "/my photos"});
  CHECK(job.network.back().attrs.integer("units") == 3);
  CHECK(job.name == "my photos");
  CHECK(job.train.epochs == 40);
  CHECK(job.dataset.has_shares());
  const CommandResult other = trainctl_command(scratch.path(), {"init", "mlp", "--data", "my photos"});
  CHECK(other.exit_code == kExitSpec);
  CHECK(contains(other.err, "--data is for photos, texts"));
}

TEST_CASE("init --data takes a folder with train and val, and --validation names other held-out photos") {
  const Scratch scratch;
  for (const char* name : {"train/cat", "train/dog", "val/cat", "val/dog", "other/cat", "other/dog"}) {
    std::filesystem::create_directories(scratch.path() + "/pets/" + name);
    std::ofstream(scratch.path() + "/pets/" + name + "/1.jpg") << "not read by init";
  }
  REQUIRE(trainctl_command(scratch.path(), {"init", "--data", "pets", "-o", "job.yaml"}).exit_code == kExitDone);
  const JobSpec job = load_job(scratch.path() + "/job.yaml");
  CHECK(job.name == "pets");
  CHECK(job.dataset.paths == std::vector<std::string>{scratch.path() + "/pets/train"});
  CHECK(job.validation_set().paths == std::vector<std::string>{scratch.path() + "/pets/val"});
  CHECK_FALSE(job.dataset.has_shares());
  const CommandResult other = trainctl_command(
      scratch.path(), {"init", "--data", "pets/train", "--validation", "pets/other", "-o", "other.yaml"});
  CAPTURE(other.err);
  REQUIRE(other.exit_code == kExitDone);
  CHECK(load_job(scratch.path() + "/other.yaml").validation_set().paths ==
        std::vector<std::string>{scratch.path() + "/pets/other"});
}

TEST_CASE("init --data takes a text, and writes a job that learns it") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/my book.txt") << std::string(4000, 'a');
  std::ofstream(scratch.path() + "/held_out.txt") << std::string(400, 'b');
  REQUIRE(trainctl_command(scratch.path(), {"init", "--data", "my book.txt", "-o", "a.yaml"}).exit_code == kExitDone);
  CHECK(load_job(scratch.path() + "/a.yaml").name == "my book");
  REQUIRE(trainctl_command(scratch.path(),
                           {"init", "--data", "my book.txt", "--validation", "held_out.txt", "-o", "b.yaml"})
              .exit_code == kExitDone);
  CHECK(load_job(scratch.path() + "/b.yaml").validation_set().paths ==
        std::vector<std::string>{scratch.path() + "/held_out.txt"});
  for (const char* job : {"a.yaml", "b.yaml"}) {
    const CommandResult checked = trainctl_command(scratch.path(), {"check", job});
    CAPTURE(checked.err);
    CHECK(checked.exit_code == kExitDone);
  }
}

TEST_CASE("each template of init is a job that check and plan take as it is") {
  const Scratch scratch;
  const std::vector<std::string> templates = {"classifier",          "command", "dpo",          "finetune_chat",
                                              "finetune_classifier", "gpt2",    "image_folder", "llama",
                                              "llama_long",          "mlp",     "moe",          "resnet50"};
  CHECK(contains(trainctl_command(scratch.path(), {"init", "--help"}).out, "One of: " + join(templates)));
  write_photos(scratch.path() + "/photos");  // of image_folder
  for (const std::string& name : templates) {
    CAPTURE(name);
    const std::string file = name + ".yaml";
    REQUIRE(trainctl_command(scratch.path(), {"init", name, "-o", file}).exit_code == kExitDone);
    CHECK(trainctl_command(scratch.path(), {"check", file}).exit_code == kExitDone);
    const CommandResult plan = trainctl_command(scratch.path(), {"plan", file});
    CHECK(plan.exit_code == kExitDone);
    CHECK(plan.err == "");
  }
}

TEST_CASE("init writes the data of a template beside the job, and replaces no other file") {
  const Scratch scratch;
  const CommandResult printed = trainctl_command(scratch.path(), {"init", "dpo"});
  CHECK(contains(printed.err, "with -o FILE, the data that this job names are written next to it"));
  CHECK(contains(trainctl_command(scratch.path(), {"init", "dpo", "-o", "jobs/a.yaml"}).err, "cannot write"));
  std::filesystem::create_directory(scratch.path() + "/jobs");
  CHECK(contains(trainctl_command(scratch.path(), {"init", "dpo", "-o", "jobs/a.yaml"}).out,
                 "jobs/a.yaml: written, with its data in jobs/finetune; next"));
  CHECK(trainctl_command(scratch.path(), {"check", "jobs/a.yaml"}).exit_code == kExitDone);
  CHECK_FALSE(std::filesystem::exists(scratch.path() + "/jobs/finetune/reviews.jsonl"));
  CHECK(trainctl_command(scratch.path(), {"init", "finetune_chat", "-o", "jobs/b.yaml"}).exit_code == kExitDone);
  std::ofstream(scratch.path() + "/jobs/finetune/reviews.jsonl") << "mine\n";
  const CommandResult kept = trainctl_command(scratch.path(), {"init", "finetune_classifier", "-o", "jobs/c.yaml"});
  CHECK(kept.exit_code == kExitEnv);
  CHECK(contains(kept.err, "jobs/finetune/reviews.jsonl already exists"));
}

TEST_CASE("the templates' networks have as many parameters as the models of their names") {
  const Scratch scratch;
  const auto parameters = [&](const std::string& name, const std::vector<std::string>& overrides) {
    REQUIRE(trainctl_command(scratch.path(), {"init", name, "-o", name + ".yaml"}).exit_code == kExitDone);
    std::vector<std::string> words = {"plan", name + ".yaml", "--json"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    const auto plan = nlohmann::json::parse(trainctl_command(scratch.path(), words).out, nullptr, false);
    REQUIRE(plan.is_object());
    return plan["parameters"].get<long>();
  };
  CHECK(parameters("resnet50", {}) == 25'557'032);                 // torchvision's resnet50
  CHECK(parameters("gpt2", {"vars.vocab=50257"}) == 124'439'808);  // Hugging Face's gpt2
}

TEST_CASE("without a terminal nothing is coloured") {
  const Scratch scratch;
  small_job(scratch.path());
  for (const auto& words : {std::vector<std::string>{"plan", "job.yaml"}, {"check", "no.yaml"}, {"run", "job.yaml"}}) {
    const CommandResult result = trainctl_command(scratch.path(), words);
    CHECK_FALSE(contains(result.out + result.err, "\033["));
  }
}

TEST_CASE("an unknown command is answered with the nearest one") {
  const Scratch scratch;
  const CommandResult result = trainctl_command(scratch.path(), {"runn", "job.yaml"});
  CHECK(result.exit_code == kExitSpec);
  CHECK(contains(result.err, "unknown command 'runn'; did you mean 'run'?"));
  CHECK(contains(trainctl_command(scratch.path(), {"frobnicate"}).err,
                 "available commands: run, evaluate, predict, generate, plan, check"));
}

TEST_CASE("output that cannot be written is a failure") {
  const Scratch scratch;
  const std::string command = std::string(TRAINCTL_BINARY) + " schema >/dev/full 2>" + scratch.path() + "/err";
  CHECK(WEXITSTATUS(std::system(command.c_str())) == kExitEnv);
}

TEST_CASE("a run works without standard streams, as under cron") {
  const Scratch scratch;
  small_job(scratch.path());
  const std::string command = "cd " + scratch.path() +
                              " && " TRAINCTL_BINARY
                              " run job.yaml launch.ranks=2 parallel.mode=data_parallel <&- >&- 2>&-";
  CHECK(WEXITSTATUS(std::system(command.c_str())) == kExitDone);
}
