// checkpoint export and import, and the maps that come with the program.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "cli/text/job_templates.h"
#include "engine/base/error.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/name_map.h"
#include "engine/train/checkpoint/weight_files.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

using Words = std::vector<std::string>;

const char* const kWeightsJob = R"(
name: weights
seed: 3
dataset: {type: random, shape: [6], classes: 4, label_dtype: i32, batch: 8, samples: 16}
network:
  - {name: fc1, type: dense, units: 10}
  - {name: bn, type: batch_norm}
  - {name: fc2, type: dense, units: 4}
loss: softmax_cross_entropy
optimizer: {type: adam, learning_rate: 0.01}
train: {steps: 3, checkpoint: {}}
launch: {device: cpu, ranks: 2}
parallel: {mode: data_parallel, optimizer_shard: {level: 3, min_kb: 0}}
)";

const char* const kMap = R"(
words: {w: [weight, bias], bn: [weight, bias, running_mean, running_var]}
tensors:
  fc1.weight: {name: [one.even, one.odd], order: "(h [1+1]) d = d h, d h"}
  fc1.bias: one.bias
  bn.{bn}: norm.{bn}
  fc2.{w}: two.{w}
constants: {norm.batches: {with: bn.running_mean, dtype: I64, value: steps}}
)";

/// A folder with the job, the map, and a run of three steps.
struct TrainedJob {
  Scratch scratch;

  TrainedJob() {
    write("job.yaml", kWeightsJob);
    write("map.yaml", kMap);
    CHECK(command({"run", "job.yaml"}).exit_code == kExitDone);
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
  std::string path(const std::string& name) const { return scratch.path() + "/" + name; }
  CommandResult command(const Words& words) const { return trainctl_command(scratch.path(), words); }
  CommandResult exported(const std::string& what, const std::string& file, Words more = {"--map", "map.yaml"}) const {
    more.insert(more.begin(), {"checkpoint", "export", what, "-o", file});
    return command(more);
  }
  CommandResult imported(const std::string& file, const std::string& folder, Words more = {"--map", "map.yaml"}) const {
    more.insert(more.begin(), {"checkpoint", "import", file, "--job", "job.yaml", "-o", folder});
    return command(more);
  }
};

std::vector<float> values(const WeightFiles& files, const std::string& name) {
  std::vector<float> all(static_cast<size_t>(num_elements(files.find(name)->shape)));
  files.read_f32(name, 0, static_cast<int64_t>(all.size()), all.data());
  return all;
}

int64_t whole_number(const WeightFiles& files, const std::string& name) {
  int64_t value = 0;
  REQUIRE(files.find(name)->type == StoredType::i64);
  files.read(name, 0, {reinterpret_cast<uint8_t*>(&value), sizeof value});
  return value;
}

}  // namespace

TEST_CASE("each map of the program names every tensor of its template's job, once") {
  for (const JobTemplate& item : name_maps()) {
    const std::string name(item.name);
    INFO(name);
    const NameMap map = NameMap::parse(item.text, name);
    for (const JobTemplate& job : job_templates()) {
      if (job.name != item.name) continue;
      const PlannedJob planned = plan_job(parse_job(job.text, name + ".yaml", {}));
      const LayerNumbers layers = numbers_of(planned.spec);
      std::set<std::string> theirs;
      for (const VariablePlan& variable : planned.plan.variables) {
        const std::string& ours = planned.graph.tensors[variable.tensor].name;
        const auto mapped = map.of_ours(ours, layers);
        REQUIRE_MESSAGE(mapped, ours);
        for (const std::string& each : mapped->theirs) CHECK_MESSAGE(theirs.insert(each).second, each);
        if (mapped->order) CHECK_NOTHROW(mapped->order->sizes_from_ours(variable.global_shape, mapped->sizes));
      }
      CHECK(theirs.size() >= planned.plan.variables.size());
    }
  }
}

TEST_CASE("exported weights are imported again bit by bit, and training continues from them") {
  const TrainedJob job;
  const CommandResult out = job.exported("1", "a.safetensors");
  INFO(out.out << out.err);
  REQUIRE(out.exit_code == kExitDone);
  CHECK(contains(out.out, "not exported: optimizer state, 12 tensors"));
  const CommandResult in = job.imported("a.safetensors", "start");
  INFO(in.out << in.err);
  REQUIRE(in.exit_code == kExitDone);
  CHECK(contains(in.out, "next: trainctl run job.yaml --resume-from start\n"));
  REQUIRE(job.exported("start", "b.safetensors").exit_code == kExitDone);
  const WeightFiles a(job.path("a.safetensors")), b(job.path("b.safetensors"));
  CHECK(a.names() == b.names());
  CHECK(a.names().size() == 10);
  CHECK(a.find("one.odd")->shape == Shape{6, 5});
  for (const std::string& name : a.names())
    if (name != "norm.batches") CHECK_MESSAGE(values(a, name) == values(b, name), name);
  CHECK(whole_number(a, "norm.batches") == 3);  // steps that were trained
  CHECK(whole_number(b, "norm.batches") == 0);

  const CommandResult resumed = job.command(
      {"run", "job.yaml", "--resume-from", "start", "launch.ranks=4", "optimizer={type: sgd, learning_rate: 0.01}"});
  INFO(resumed.out << resumed.err);
  CHECK(resumed.exit_code == kExitDone);
}

TEST_CASE("without a map names are those of the job, and bf16 is rounded") {
  const TrainedJob job;
  REQUIRE(job.exported("1", "a.safetensors", {}).exit_code == kExitDone);
  REQUIRE(job.exported("1", "b.safetensors", {"--dtype", "bf16"}).exit_code == kExitDone);
  const WeightFiles whole(job.path("a.safetensors")), rounded(job.path("b.safetensors"));
  REQUIRE(whole.find("fc1.weight") != nullptr);
  CHECK(rounded.find("fc1.weight")->type == StoredType::bf16);
  const std::vector<float> a = values(whole, "fc1.weight"), b = values(rounded, "fc1.weight");
  for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= std::abs(a[i]) / 256);
  REQUIRE(job.imported("b.safetensors", "start", {}).exit_code == kExitDone);
  REQUIRE(job.exported("start", "c.safetensors", {}).exit_code == kExitDone);
  const WeightFiles back(job.path("c.safetensors"));
  CHECK(back.find("fc1.weight")->type == StoredType::f32);
  CHECK(values(back, "fc1.weight") == b);
}

TEST_CASE("a tensor that the map does not name is not omitted silently from an export") {
  const TrainedJob job;
  job.write("map.yaml", "tensors: {fc1.weight: one, fc1.bias: two}\n");
  const CommandResult refused = job.exported("1", "a.safetensors");
  CHECK(refused.exit_code == kExitEnv);
  CHECK(contains(refused.err, "the map has no pattern for 6 of 8 tensors"));
  CHECK(contains(refused.err, "bn.running_var"));
  const CommandResult partial = job.exported("1", "a.safetensors", {"--map", "map.yaml", "--partial"});
  CHECK(partial.exit_code == kExitDone);
  CHECK(contains(partial.out, "omitted because the map does not name them: 6"));

  job.write("map.yaml", "tensors: {fc1.weight: one, fc1.bias: two, fc9.weight: three}\n");
  const CommandResult misspelt = job.exported("1", "b.safetensors", {"--map", "map.yaml", "--partial"});
  CHECK(contains(misspelt.out, "patterns of the map that match no tensor: 1\n    fc9.weight\n"));
}

TEST_CASE("tensors that are missing, left over or of another shape are listed, and accepted only with --partial") {
  const TrainedJob job;
  REQUIRE(job.exported("1", "a.safetensors", {}).exit_code == kExitDone);
  const Words other = {
      "network=[{name: fc1, type: dense, units: 12}, {name: fc3, type: dense, units: 3}, {name: fc2, type: dense, "
      "units: 4, bias: false}]"};
  const CommandResult refused = job.imported("a.safetensors", "start", other);
  CHECK(refused.exit_code == kExitEnv);
  for (const char* part :
       {"missing in the file:\n    fc3.weight\n    fc3.bias\n", "missing in the job:\n", "    fc2.bias\n",
        "different shape:\n    fc1.weight is [12, 6] in the job, but fc1.weight [10, 6] in the "
        "file\n"})
    CHECK_MESSAGE(contains(refused.err, part), refused.err);
  CHECK(contains(refused.err, "none of its tensors fits this job"));
  CHECK_FALSE(std::filesystem::exists(job.path("start")));

  Words wider = {"--partial", "network=[{name: fc1, type: dense, units: 10}, {name: fc3, type: dense, units: 3}]"};
  const CommandResult partial = job.imported("a.safetensors", "start", wider);
  INFO(partial.out << partial.err);
  CHECK(partial.exit_code == kExitDone);
  CHECK(contains(partial.out, "not in the file; the job's initializers apply: 2\n"));
  CHECK(contains(partial.out, "--resume-from start --partial"));
  const CommandResult again = job.imported("a.safetensors", "start", wider);
  CHECK(again.exit_code == kExitEnv);
  CHECK(contains(again.err, "start already exists"));
}

TEST_CASE("a map that gives one tensor of a file to two of the job is refused, in both directions") {
  const TrainedJob job;
  REQUIRE(job.exported("1", "a.safetensors", {}).exit_code == kExitDone);
  job.write("map.yaml", "tensors:\n  fc1.weight: fc1.weight\n  fc1.bias: fc1.bias\n  bn.weight: fc1.bias\n");
  const CommandResult in = job.imported("a.safetensors", "start", {"--map", "map.yaml", "--partial"});
  CHECK(in.exit_code == kExitSpec);
  CHECK_MESSAGE(contains(in.err, "map.yaml:4:3: tensors.bn.weight: fc1.bias and bn.weight both map to 'fc1.bias'"),
                in.err);
  CHECK_FALSE(std::filesystem::exists(job.path("start")));
  const CommandResult out = job.exported("1", "b.safetensors", {"--map", "map.yaml", "--partial"});
  CHECK(out.exit_code == kExitSpec);
  CHECK_MESSAGE(contains(out.err, "map.yaml:4:3: tensors.bn.weight: two tensors map to 'fc1.bias'"), out.err);
}

TEST_CASE("files of torch, and a wrong index, are refused with the reason") {
  const TrainedJob job;
  REQUIRE(job.exported("1", "a.safetensors", {}).exit_code == kExitDone);
  job.write("model.bin", std::string("PK\x03\x04", 4) + "archive/data.pkl");
  CHECK(contains(job.imported("model.bin", "start", {}).err, "model.bin: is a PyTorch pickle"));
  job.write("model.safetensors.index.json",
            R"({"weight_map": {"fc1.weight": "a.safetensors", "fc9": "a.safetensors"}})");
  CHECK(contains(job.imported("model.safetensors.index.json", "start", {}).err,
                 "tensor 'fc9' is not in a.safetensors, although the index lists it there"));
  job.write("model.safetensors.index.json", R"({"weight_map": {"fc1.weight": "../a.safetensors"}})");
  CHECK(contains(job.imported(".", "start", {}).err,
                 "the file of 'fc1.weight' is not the name of a file in that "
                 "folder"));
  job.write("model.safetensors.index.json", R"({"weight_map": {"fc1.weight": "a.safetensors"}})");
  CHECK(job.imported(".", "start", {}).exit_code == kExitDone);
}

TEST_CASE("errors in a map show its line, of a file or of the program") {
  const TrainedJob job;
  job.write("map.yaml", "tensors:\n  fc1.weight: {name: x, order: '(h k) d = d (h k)'}\n  '{w': x\n");
  const CommandResult form = job.exported("1", "a.safetensors");
  CHECK(form.exit_code == kExitSpec);
  CHECK(contains(form.err, "map.yaml:3:3: tensors.{w: '{w': '{' is never closed"));
  job.write("map.yaml", "tensors:\n  fc1.weight: {name: x, order: '(h k) d = d (h k)'}\n");
  const CommandResult sizes = job.exported("1", "a.safetensors");
  CHECK(contains(sizes.err,
                 "map.yaml:2:3: tensors.fc1.weight: the order does not fit fc1.weight [10, 6]: 'h' cannot be derived"));
  const CommandResult unknown = job.exported("1", "a.safetensors", {"--map", "gpt3"});
  CHECK(unknown.exit_code == kExitSpec);
  CHECK(contains(unknown.err, "unknown name map 'gpt3'"));
  CHECK(contains(unknown.err,
                 "maps: bert, deepseek, gemma, gpt2, gpt_oss, llama, mixtral, phi3, qwen3_moe, resnet50, vit"));
}

TEST_CASE("a safetensors file is recognized whatever the length of its header, and a pickle is refused by name") {
  const Scratch scratch;
  const std::string json = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const auto write = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(scratch.path() + "/" + name, std::ios::binary) << bytes;
    return scratch.path() + "/" + name;
  };
  for (const uint64_t length : {640, 896, 1152, 1408, 66'176, 1000}) {  // most begin as a pickle: 80 02, 80 03, ...
    CAPTURE(length);
    std::string header = json;
    header.resize(length, ' ');
    const WeightFiles files(write("w.safetensors", std::string(reinterpret_cast<const char*>(&length), sizeof length) +
                                                       header + std::string(8, '\0')));
    CHECK(files.names() == std::vector<std::string>{"w"});
  }
  for (const char* start : {"\x80\x02}q", "\x80\x04\x95{", "PK\x03\x04"})
    CHECK_THROWS_WITH_AS(WeightFiles(write("w.bin", start + std::string(100, '{'))),
                         doctest::Contains("is a PyTorch pickle"), EnvError);
}

TEST_CASE("a folder without safetensors weights is an error that states what it contains instead") {
  const Scratch scratch;
  const auto refused_with = [&](const std::string& file) {
    const std::string folder = scratch.path() + "/" + file;
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/" + file) << "x";
    try {
      WeightFiles files(folder);
    } catch (const EnvError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin"}) {
    CAPTURE(pickle);
    CHECK(contains(refused_with(pickle), "convert them to safetensors"));
  }
  CHECK(contains(refused_with("adapter_model.safetensors"), "adapters.lora.from"));
  CHECK(contains(refused_with("config.json"), "contains neither model.safetensors nor"));
}

TEST_CASE("an f64 weight that f32 cannot represent is an error that names the tensor and the element") {
  const Scratch scratch;
  const std::string header = R"({"w":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})";
  const uint64_t length = header.size();
  const double values_of_file[] = {1, 1e39};
  const std::string path = scratch.path() + "/w.safetensors";
  std::ofstream(path, std::ios::binary) << std::string(reinterpret_cast<const char*>(&length), sizeof length) << header
                                        << std::string(reinterpret_cast<const char*>(values_of_file), 16);
  CHECK_THROWS_WITH_AS(values(WeightFiles(path), "w"),
                       doctest::Contains("tensor 'w': element 1 is 1e+39, which is too large for f32"), EnvError);
}

TEST_CASE("a mixture that was not imported is exported as a model folder, unless its config.json would be another's") {
  const Scratch scratch;
  const auto command = [&](const Words& words) { return trainctl_command(scratch.path(), words); };
  const auto exported = [&](const std::string& text, const Words& more) {
    std::ofstream(scratch.path() + "/job.yaml") << text;
    Words words = {"run",
                   "job.yaml",
                   "vars={layers: 2, heads: 4, kv_heads: 2, d: 16, hidden: 12, experts: 4, top_k: 2, length: 8, "
                   "vocab: 32}",
                   "precision=fp32",
                   "launch.device=cpu",
                   "dataset.batch=4",
                   "train.steps=1",
                   "launch.log_dir=logs"};
    words.insert(words.end(), more.begin(), more.end());
    std::filesystem::remove_all(scratch.path() + "/logs");
    std::filesystem::remove_all(scratch.path() + "/model");
    const CommandResult run = command(words);
    INFO(run.err);
    REQUIRE(run.exit_code == kExitDone);
    return command({"checkpoint", "export", "logs/1", "--map", "auto", "-o", "model/"});
  };
  const std::string moe =
      std::string(std::find_if(job_templates().begin(), job_templates().end(), [](const JobTemplate& t) {
                    return t.name == "moe";
                  })->text);
  const CommandResult done = exported(moe, {"launch.ranks=2", "parallel.expert=2"});
  INFO(done.err);
  CHECK(done.exit_code == kExitDone);
  CHECK(contains(slurp(scratch.path() + "/model/config.json"), "MixtralForCausalLM"));
  const std::string causal = "causal: true";
  for (const auto& [field, reason] : {std::pair("causal: true, softcap: 2.0", "a softcap of scores"),
                                      std::pair("causal: true, scale: 0.3", "a scale of scores"),
                                      std::pair("causal: false", "attention that is not causal"),
                                      std::pair("causal: true, packing: qkv", "packing: qkv")}) {
    std::string text = moe;
    text.replace(text.find(causal), causal.size(), field);
    const CommandResult refused = exported(text, {});
    CHECK(refused.exit_code == kExitSpec);
    CHECK_MESSAGE(contains(refused.err, reason), refused.err);
  }
  const std::string repeated = "{module: block, name: h, repeat: \"${layers}\"}";
  std::string text = moe;
  const std::string block = text.substr(text.find("  block:\n"), text.find("\nnetwork:") - text.find("  block:\n"));
  std::string other = block;
  other.replace(0, 8, "  other:");
  other.replace(other.find("top_k: \"${top_k}\""), 17, "top_k: 1");
  text.replace(text.find(repeated), repeated.size(), "{module: block, name: h.0}\n  - {module: other, name: h.1}");
  text.insert(text.find("\nnetwork:"), other);
  const CommandResult differs = exported(text, {});
  CHECK_MESSAGE(contains(differs.err, "blocks that differ: h.0.moe and block 1"), differs.err);
}
