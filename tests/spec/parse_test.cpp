// Reading correct jobs: defaults, kinds, positions, and writing them out again.
#include "engine/spec/parse.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "engine/base/printable.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

const std::string kParseData = "dataset: {type: random, shape: [8], label_dtype: f32}\n";
const std::string kParseJob = kParseData + "network:\n  - {name: fc, type: dense, units: 4}\n";

void check_same(const JobSpec& a, const JobSpec& b) {
  CHECK(a.name == b.name);
  CHECK(a.seed == b.seed);
  CHECK(a.dataset.paths == b.dataset.paths);
  CHECK(a.dataset.batch == b.dataset.batch);
  CHECK(a.dataset.shape == b.dataset.shape);
  REQUIRE(a.dataset.transforms.size() == b.dataset.transforms.size());
  for (size_t i = 0; i < a.dataset.transforms.size(); ++i) {
    CHECK(a.dataset.transforms[i].name == b.dataset.transforms[i].name);
    CHECK(a.dataset.transforms[i].attrs == b.dataset.transforms[i].attrs);
  }
  REQUIRE(a.network.size() == b.network.size());
  for (size_t i = 0; i < a.network.size(); ++i) {
    CHECK(a.network[i].name == b.network[i].name);
    CHECK(a.network[i].type == b.network[i].type);
    CHECK(a.network[i].inputs == b.network[i].inputs);
    CHECK(a.network[i].attrs == b.network[i].attrs);
  }
  REQUIRE(a.loss.has_value() == b.loss.has_value());
  if (a.loss) CHECK((a.loss->type == b.loss->type && a.loss->input == b.loss->input));
  CHECK(a.optimizer.learning_rate.base == b.optimizer.learning_rate.base);
  CHECK(a.optimizer.attrs == b.optimizer.attrs);
  CHECK(a.parallel.mode == b.parallel.mode);
  REQUIRE(a.parallel.strategies.size() == b.parallel.strategies.size());
  for (size_t i = 0; i < a.parallel.strategies.size(); ++i) {
    CHECK(a.parallel.strategies[i].pattern == b.parallel.strategies[i].pattern);
    CHECK(a.parallel.strategies[i].cuts == b.parallel.strategies[i].cuts);
  }
  CHECK(a.parallel.stage_config.size() == b.parallel.stage_config.size());
  CHECK(a.parallel.recompute.size() == b.parallel.recompute.size());
  CHECK(a.parallel.max_memory == b.parallel.max_memory);
  CHECK(a.print == b.print);
}

}  // namespace

TEST_CASE("an omitted field takes the default of job_spec.h") {
  const JobSpec job = parse_job(kParseJob, "job.yaml");
  CHECK(job.name == "job");
  CHECK(job.seed == 1);
  CHECK(job.dataset.batch == 32);
  CHECK_FALSE(job.loss);
  CHECK(job.optimizer.type == "sgd");
  CHECK(job.optimizer.learning_rate.base == 0.01);
  CHECK(job.parallel.mode == ParallelMode::stand_alone);
  CHECK(job.launch.ranks == 1);
  REQUIRE(job.network.size() == 1);
  CHECK(job.network[0].inputs == std::vector<std::string>{"data"});
  CHECK(job.network[0].attrs.flag("bias"));
  CHECK_FALSE(job.network[0].attrs.has("init.type"));
}

TEST_CASE("a layer reads the previous one by default, and is named by its type and a counter") {
  const JobSpec job = parse_job(kParseData +
                                    "network: [{type: relu}, {type: relu}, {name: relu_2, type: tanh}, {type: relu},\n"
                                    "  {type: add, inputs: [relu, data]}]\n",
                                "job.yaml");
  std::vector<std::string> names;
  for (const LayerSpec& layer : job.network) names.push_back(layer.name);
  CHECK(names == std::vector<std::string>{"relu", "relu_1", "relu_2", "relu_3", "add"});
  CHECK(job.network[3].inputs == std::vector<std::string>{"relu_2"});
  CHECK(job.network[4].inputs == std::vector<std::string>{"relu", "data"});
}

TEST_CASE("short forms mean the same as their long forms") {
  const JobSpec job = parse_job(kParseJob +
                                    "loss: mae\noptimizer: {learning_rate: 0.5}\nprint: fc\n"
                                    "parallel: {optimizer_shard: 2, recompute: fc, max_memory: 512MiB}\n"
                                    "launch: {timeout: 2m, grace: 500ms}\n",
                                "job.yaml");
  CHECK(job.loss->type == "mae");
  CHECK(job.loss->input == "fc");
  CHECK(job.optimizer.learning_rate.base == 0.5);
  CHECK(job.optimizer.learning_rate.type == "constant");
  CHECK(job.parallel.optimizer_shard.level == 2);
  CHECK(job.parallel.recompute[0].pattern == "fc");
  CHECK(job.parallel.max_memory == 512ll * 1024 * 1024);
  CHECK(job.launch.timeout_seconds == 120);
  CHECK(job.launch.grace_seconds == 0.5);
  CHECK(job.print.tensors == std::vector<std::string>{"fc"});
}

TEST_CASE("print is a layer, a list of layers, or a mapping with a format") {
  const std::vector<std::string> fc = {"fc"};
  for (const char* form : {"fc", "[fc]", "{tensors: fc}", "{tensors: [fc], format: text, every: 1}"}) {
    CAPTURE(form);
    const PrintSpec print = parse_job(kParseJob + "print: " + form + "\n", "job.yaml").print;
    CHECK(print == PrintSpec{fc, PrintFormat::text, 1});
  }
  const JobSpec job = parse_job(kParseJob + "print: {tensors: [fc], format: npy, every: 10}\n", "job.yaml");
  CHECK(job.print == PrintSpec{fc, PrintFormat::npy, 10});
  CHECK(parse_job(to_yaml(job), "again.yaml").print == job.print);
  CHECK_FALSE(to_yaml(parse_job(kParseJob, "job.yaml")).find("\nprint:") != std::string::npos);
}

TEST_CASE("bytes take decimal and binary units, and whole numbers exactly") {
  const auto bytes = [](const std::string& text) {
    return parse_job(kParseJob + "parallel: {max_memory: " + text + "}\n", "j").parallel.max_memory;
  };
  CHECK(bytes("25GB") == 25'000'000'000);
  CHECK(bytes("1.5 KiB") == 1536);
  CHECK(bytes("9007199254740993") == 9007199254740993);  // 2^53 + 1
  CHECK_THROWS_AS(bytes("99999TB TB"), SpecError);
  CHECK_THROWS_AS(bytes("-1"), SpecError);
}

TEST_CASE("null is the same as omitting a field") {
  const JobSpec job = parse_job(kParseJob + "loss: null\nparallel:\ntrain: {epochs: ~}\n", "job.yaml");
  CHECK_FALSE(job.loss);
  CHECK(job.train.epochs == 1);
}

TEST_CASE("a job with only train.steps has no limit of epochs, even after it was written and read again") {
  const JobSpec job = parse_job(kParseJob + "train: {steps: 1000}\n", "job.yaml");
  CHECK(job.train.epochs == 0);
  const JobSpec again = parse_job(to_yaml(job), "again.yaml");
  CHECK(again.train.epochs == 0);
  CHECK(again.train.steps == 1000);
  CHECK(parse_job(kParseJob + "train: {steps: 1000, epochs: 3}\n", "job.yaml").train.epochs == 3);
  CHECK(parse_job(kParseJob, "job.yaml").train.epochs == 1);
  CHECK_THROWS_AS(parse_job(kParseJob + "train: {steps: 1000, epochs: 0}\n", "job.yaml"), SpecError);
}

TEST_CASE("anchors, aliases and merge keys are resolved") {
  const JobSpec job = parse_job(kParseData +
                                    "network:\n  - &fc {name: a, type: dense, units: 4, bias: false}\n"
                                    "  - {<<: *fc, name: b}\n",
                                "job.yaml");
  CHECK(job.network[1].name == "b");
  CHECK(job.network[1].attrs == job.network[0].attrs);
}

TEST_CASE("aliases cannot make a small file large") {
  std::string text = "a: &a \"" + std::string(300'000, 'x') + "\"\nb: [*a";
  for (int i = 0; i < 3000; ++i) text += ", *a";
  std::string found;
  try {
    parse_job(text + "]\n", "job.yaml");
  } catch (const SpecError& error) {
    found = error.diagnostics()[0].message;
  }
  CHECK(found.starts_with("the file contains more than 1048576 bytes of text after its aliases are expanded"));
}

TEST_CASE("a job written by json.dumps is read, with characters beyond 16 bits as two escapes") {
  CHECK(parse_job("\"name\": \"run \\ud83d\\uDE00 \\\\ud83d\"\n" + kParseJob, "job.yaml").name ==
        "run \xF0\x9F\x98\x80 \\ud83d");
  CHECK(parse_job("name: 'a \\ud83d\\ude00'\n" + kParseJob, "job.yaml").name == "a \\ud83d\\ude00");  // no escapes
}

TEST_CASE("every field has its position, and a default that of its section") {
  const JobSpec job =
      parse_job(kParseJob + "parallel:\n  mode: hybrid_parallel\n  strategies: {f*: [[1, 1], [2, 1]]}\n", "job.yaml");
  CHECK(job.position("network[0].units") == SourcePos{"job.yaml", 3, 36});
  CHECK(job.position("network[0].bias") == SourcePos{"job.yaml", 3, 5});
  CHECK(job.position("parallel.strategies.f*[1][0]") == SourcePos{"job.yaml", 6, 30});
  CHECK(job.position("parallel.stages") == SourcePos{"job.yaml", 5, 3});
  CHECK(job.position("launch.ranks") == SourcePos{"job.yaml", 1, 1});
  CHECK(job.parallel.strategies[0].path == "parallel.strategies.f*");
}

TEST_CASE("columns count characters, not bytes, and a byte order mark does not count") {
  try {
    parse_job("\xEF\xBB\xBFname: \"\xC3\xA4\xC3\xB6\" \n" + kParseJob + "print: [\"\xC3\xBC\", x]\n", "job.yaml");
    FAIL("accepted");
  } catch (const SpecError& e) {
    REQUIRE(e.diagnostics().size() == 2);
    CHECK(e.diagnostics()[0].pos.column == 9);
    CHECK(e.diagnostics()[1].pos.column == 14);
  }
}

TEST_CASE("the path of the data set is relative to the job file and is made absolute") {
  const std::string text = "dataset: {type: mnist, path: data/x}\nnetwork: [{type: relu}]\n";
  CHECK(parse_job(text, "/a/b/job.yaml").dataset.paths.at(0) == "/a/b/data/x");
  CHECK(parse_job(text, "job.yaml").dataset.paths.at(0) == (fs::current_path() / "data/x").string());
  CHECK(parse_job("dataset: {type: mnist, path: /d}\nnetwork: [{type: relu}]\n", "/a/job.yaml").dataset.paths.at(0) ==
        "/d");
}

TEST_CASE("every runnable job parses, and its resolved YAML parses to the same job") {
  int jobs = 0;
  for (const char* folder : {"configs", "templates"}) {
    for (const auto& entry : fs::directory_iterator(fs::path(TRAINCTL_SOURCE_DIR) / folder)) {
      if (entry.path().extension() != ".yaml") continue;
      INFO(entry.path().string());
      ++jobs;
      const JobSpec job = load_job(entry.path().string());
      const std::string yaml = to_yaml(job);
      const JobSpec again = parse_job(yaml, "elsewhere/job.yaml");
      check_same(job, again);
      CHECK(to_yaml(again) == yaml);
    }
  }
  CHECK(jobs >= 6);
}

TEST_CASE("text that looks like something else keeps its quotes when written") {
  const JobSpec job =
      parse_job("name: \"true\"\n" + kParseJob + "launch: {log_dir: \"a: #b\\\\ \\\"q\\\"\"}\n", "job.yaml");
  const JobSpec again = parse_job(to_yaml(job), "job.yaml");
  CHECK(again.name == "true");
  CHECK(again.launch.log_dir == "a: #b\\ \"q\"");
}

TEST_CASE("any text that a job may hold reads back as it was, as a word, a value and a key") {
  // clang-format off
  const std::vector<std::string> nasty = {
      ": ", "a: b", "a:", ":a", "#", "a #b", "#a", "yes", "No", "on", "y", "true", "False", "null", "~", "Null",
      "1e3", "1_000", "0x1F", "0o17", "-1", ".5", ".inf", ".nan", "12:30:45", "+1", "2026-01-31", "<<", "=",
      " leading", "trailing ", "  ", "\ttab", "a\tb", "a\nb", "a\n", "\na", "a\r\nb", "\r", "'", "\"", "it's",
      "\"quoted\"", "a\"b", "\\", "a\\nb", "C:\\x", "-", "- a", "---", "...", "?", "? a", "[", "]", "[a]", "{",
      "}", "{a: b}", ",", "a, b", "a,b", "&a", "*a", "h.*.fc", "!", "!!str a", "|", ">", "%", "@", "`",
      "\x01\x1f", "\x7f", "\xc2\x80", "\xc2\x85", "\xc2\xa0", "\xe2\x80\xa8", "\xef\xbb\xbf",
      "\xc3\xa4\xc3\xb6", "\xe6\x97\xa5", "\xf0\x9f\x98\x80", "$HOME", "a  b", "%YAML 1.2",
      "text", "a\xc2\x85" "b", "a\rb", "a\xef\xbb\xbf" "b", "aq:"
  };
  // clang-format on
  JobSpec job = parse_job("command: [true]", "/folder/job.yaml");
  for (const std::string& text : nasty) {
    job.command.push_back(text);
    job.env["TEXT"] = text;
    if (text.find('=') == std::string::npos && text != "<<") job.env[text] = text;  // a key << merges mappings
    if (find_unprintable(text) == std::string::npos && !text.starts_with("$")) job.launch.log_dir = text;
    const JobSpec again = parse_job(to_yaml(job), "/folder/job.yaml");
    INFO(to_yaml(job));
    CHECK(again.command == job.command);
    CHECK(again.env == job.env);
    CHECK(again.launch.log_dir == job.launch.log_dir);
    CHECK(to_yaml(again) == to_yaml(job));
  }
}

TEST_CASE("the resolved job is readable: sections as blocks, lists and layers on one line") {
  const std::string text =
      to_yaml(parse_job("dataset: {type: random, shape: [8], label_dtype: f32}\n"
                        "network: [{name: fc, type: dense, units: 4}]\nloss: mae\n"
                        "parallel: {mode: semi_auto_parallel, strategies: {f*: [[2, 1], [1, 1]]}, recompute: [f*]}\n"
                        "launch: {ranks: 2}\n",
                        "job.yaml"));
  for (const char* line :
       {"name: job\n", "dataset:\n  type: random\n", "\n  shape: [8]\n",
        "\nnetwork:\n  - {name: fc, type: dense, inputs: [data], ", "\n  strategies:\n    f*: [[2, 1], [1, 1]]\n",
        "\n  recompute: [f*]\n", "\nlaunch:\n  ranks: 2\n"}) {
    INFO(text);
    INFO(line);
    CHECK(text.find(line) != std::string::npos);
  }
  CHECK(text.back() == '\n');
}

TEST_CASE("a file that cannot be read is a SpecError") {
  CHECK_THROWS_WITH_AS(load_job("no/such/job.yaml"), doctest::Contains("cannot read the job file"), SpecError);
  CHECK_THROWS_WITH_AS(load_job(TRAINCTL_SOURCE_DIR), doctest::Contains("it is a folder"), SpecError);
  CHECK_THROWS_WITH_AS(parse_job("", "job.yaml"), doctest::Contains("the job file is empty"), SpecError);
}

TEST_CASE("a file that is too large is refused before it is read as YAML") {
  const std::string text = kParseJob + "#" + std::string(size_t{1} << 20, 'x') + "\n";
  CHECK_THROWS_WITH_AS(parse_job(text, "job.yaml"), doctest::Contains("a job file has at most 1048576"), SpecError);
}

TEST_CASE("a tied weight may be an embedding's") {
  const JobSpec job = parse_job(
      "dataset: {type: random, shape: [4], dtype: i32, classes: 9, label_shape: [4]}\n"
      "network:\n  - {name: wte, type: embedding, vocab: 9, units: 8}\n"
      "  - {name: head, type: dense, units: 9, bias: false, share: wte}\n"
      "loss: softmax_cross_entropy\n",
      "job.yaml");
  CHECK(job.network[1].attrs.text("share") == "wte");
}

TEST_CASE("the loss may be assigned to a stage like a layer") {
  const JobSpec job =
      parse_job(kParseJob +
                    "loss: mae\nparallel: {mode: data_parallel, stages: 2, stage_config: {fc: 0, loss: 1}}\n"
                    "launch: {ranks: 2}\n",
                "job.yaml");
  CHECK(job.parallel.stage_config[1].pattern == "loss");
}
