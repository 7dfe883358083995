// checkpoint.json: a manifest reads back as it was written, and an error states the position of the fault.
#include "engine/train/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/train/files/digest.h"
#include "tests/train/checkpoint/sample.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

Manifest sample() {
  const std::string digits(kDigestDigits, 'a');
  return {
      .trainctl = "0.1.0",
      .name = "mnist_mlp",
      .run = 3,
      .attempt = 2,
      .step = 120,
      .epoch = 2,
      .epoch_step = 20,
      .samples = 3840,
      .seed = 18446744073709551615u,
      .order = "12,000 samples, shuffled by seed 1",
      .train_share = 0.9,
      .written = "2026-11-23T12:00:00Z",
      .files = {{"rank.0000.safetensors", 1000, digits}, {"rank.0001.safetensors", 2000, digits}},
      .tensors = {{"fc.weight",
                   "weight",
                   DType::f32,
                   {4, 3},
                   {{"rank.0000.safetensors", {{0, 0}, {2, 3}}}, {"rank.0001.safetensors", {{2, 0}, {2, 3}}}}},
                  {"fc.weight", "momentum", DType::bf16, {4, 3}, {{"rank.0000.safetensors", {{0, 0}, {4, 3}}}}}},
      .metrics = {{"loss", 0.31}, {"accuracy", std::nan("")}, {"worst", -HUGE_VAL}},
      .best = {{"loss", {.value = 0.29, .step = 80, .since = 2}}, {"accuracy", {.value = std::nan(""), .step = 40}}}};
}

/// Replaces the checksum with that of the changed text, so that the parser reaches the other faults.
std::string with_checksum(std::string text) {
  text.resize(text.rfind("\"checksum\""));
  return text + "\"checksum\": \"" + digest_of(text) + "\"}\n";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return with_checksum(text.replace(at, from.size(), to));
}

void check_refused(const std::string& text, const std::string& message) {
  CHECK_THROWS_WITH_AS(parse_manifest(text, "c.json"), doctest::Contains(message.c_str()), EnvError);
}
void check_refused(const std::string& from, const std::string& to, const std::string& message) {
  CAPTURE(to);
  check_refused(replaced(to_json(sample()), from, to), "c.json: " + message);
}

}  // namespace

TEST_CASE("a manifest reads back as it was written") {
  const Manifest written = sample(), read = parse_manifest(to_json(written), "c.json");
  CHECK(to_json(read) == to_json(written));
  CHECK(read.seed == written.seed);
  CHECK(read.order == written.order);
  CHECK(read.train_share == written.train_share);
  CHECK(read.tensors[0].pieces[1].box == Box{{2, 0}, {2, 3}});
  CHECK(read.tensors[1].dtype == DType::bf16);
  CHECK(read.metrics[0] == std::pair<std::string, double>{"loss", 0.31});
  CHECK(std::isnan(read.metrics[1].second));
  CHECK(read.metrics[2].second == -HUGE_VAL);
  CHECK(read.best[0].second.value == 0.29);
  CHECK(read.best[0].second.step == 80);
  CHECK(read.best[0].second.since == 2);
  CHECK(std::isnan(read.best[1].second.value));
  CHECK(read.find("fc.weight", "momentum") == &read.tensors[1]);
  CHECK(read.find("fc.weight", "exp_avg") == nullptr);
}

TEST_CASE("a manifest keeps the scale of the loss, and files of jobs without one have none") {
  Manifest written = sample();
  CHECK(!parse_manifest(to_json(written), "c.json").loss_scale);
  written.loss_scale = LossScaleState{.scale = 0x1p-20, .finite_steps = 12, .skipped = 3};
  CHECK(parse_manifest(to_json(written), "c.json").loss_scale == written.loss_scale);
}

TEST_CASE("a manifest is plain JSON, and its last line is the checksum of the lines before it") {
  const std::string text = to_json(sample());
  const nlohmann::json json = nlohmann::json::parse(text);
  CHECK(json["tensors"][0]["pieces"][1]["offset"] == std::vector<int>{2, 0});
  const size_t last = text.rfind("\"checksum\"");
  CHECK(json["checksum"] == digest_of(text.substr(0, last)));
  CHECK(text[last - 1] == '\n');
  CHECK(checksum_of(text) == json["checksum"].get<std::string>());
}

TEST_CASE("a piece is named by its tensor, slot and range, the whole tensor without a range") {
  CHECK(piece_key("fc", "weight", {4, 3}, {{0, 0}, {4, 3}}) == "fc:weight");
  CHECK(piece_key("fc", "weight", {4, 3}, {{2, 0}, {2, 3}}) == "fc:weight[2:4, 0:3]");
  CHECK(piece_key("s", "exp_avg", {}, {{}, {}}) == "s:exp_avg");
}

TEST_CASE("each changed, added or missing byte of a manifest is detected") {
  const std::string text = to_json(sample());
  for (size_t i = 0; i < text.size(); ++i)
    for (const int mask : {1, 2, 32, 255}) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ mask);
      CHECK_THROWS_AS(parse_manifest(changed, "c.json"), EnvError);
    }
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size()) CHECK_THROWS_AS(parse_manifest(text.substr(0, i), "c.json"), EnvError);
    CHECK_THROWS_AS(parse_manifest(text.substr(0, i) + "\n" + text.substr(i), "c.json"), EnvError);
  }
  check_refused(text.substr(0, text.size() / 2), "c.json: is damaged or truncated: expected \"checksum\": ");
}

TEST_CASE("a manifest of a later format is an error that says so, whether or not it has a checksum") {
  check_refused("\"format\":1", "\"format\":2", "has format 2, but this trainctl reads formats up to 1");
  check_refused("{\"format\": 3, \"all\": \"is other\"}", "c.json: has format 3, but this trainctl reads");
  check_refused("\"format\":1", "\"format\":0", "format: expected 1, found 0");
}

TEST_CASE("unknown fields are ignored") {
  const std::string text = replaced(to_json(sample()), "\"run\":3", "\"later\":{\"x\":[1]},\"run\":3");
  CHECK(to_json(parse_manifest(text, "c.json")) == to_json(sample()));
}

TEST_CASE("the error for a wrong field states its path, what was expected and what was found") {
  check_refused("\"step\":120,", "", "has no field 'step'");
  check_refused("\"step\":120", "\"step\":-1", "step: expected an integer from 0 to 9223372036854775807, found -1");
  check_refused("\"run\":3", "\"run\":\"3\"", "run: expected an integer from 0 to 2147483647, found \"3\"");
  check_refused("[4,3]", "[4,3.5]", "tensors[0].shape[1]: expected an integer from 0");
  check_refused("\"offset\":[2,0]", "\"offset\":{}", "tensors[0].pieces[1].offset: expected a list, found object");
  check_refused("\"F32\"", "\"F64\"", "tensors[0].dtype: expected F32, BF16, F16 or I32, found 'F64'");
  check_refused("\"nan\"", "\"none\"", "metrics.accuracy: expected a number, nan, inf or -inf");
  check_refused("\"step\":120", "\"step\":", "byte");
  check_refused("\"step\":120", "\"step\":1e999", "number overflow");
}

TEST_CASE("pieces that do not tile their tensor are refused, and the error states an element") {
  check_refused("\"offset\":[2,0]", "\"offset\":[1,0]", "tensors[0] (fc.weight:weight): element [1, 0] is in 2 pieces");
  check_refused("\"offset\":[2,0],\"shape\":[2,3]", "\"offset\":[2,0],\"shape\":[1,3]",
                "tensors[0] (fc.weight:weight): element [3, 0] is in no piece");
  check_refused("\"shape\":[4,3]", "\"shape\":[0,3]",
                "tensors[0] (fc.weight:weight): shape: expected sizes of at least 1");
  check_refused("\"shape\":[4,3]", "\"shape\":[4611686018427387904,3]", "tensors[0] (fc.weight:weight): shape: ");
}

TEST_CASE("a tensor is listed once, and its pieces are in listed files") {
  check_refused("\"slot\":\"momentum\"", "\"slot\":\"weight\"", "tensors[1] (fc.weight:weight): is listed twice");
  check_refused("{\"file\":\"rank.0001.safetensors\"", "{\"file\":\"rank.0002.safetensors\"",
                "tensors[0] (fc.weight:weight): pieces[1]: file: 'rank.0002.safetensors' is not one of files");
  check_refused("\"slot\":\"momentum\"", "\"slot\":\"a:b\"", "tensors[1] (fc.weight:a:b): slot: ");
}

TEST_CASE("files have plain names and are listed once, so that none is outside the directory") {
  for (const char* name :
       {"../rank.0000", "/etc/passwd", "", ".hidden", "a/b", "checkpoint.json", "a\\\\b", "a\\u0000"}) {
    CAPTURE(name);
    check_refused("{\"name\":\"rank.0000.safetensors\"", std::string("{\"name\":\"") + name + "\"", "files[0]: name: ");
  }
  check_refused("{\"name\":\"rank.0001.safetensors\"", "{\"name\":\"rank.0000.safetensors\"", "files[1]: name: ");
  check_refused(std::string(kDigestDigits, 'a'), std::string(kDigestDigits, 'A'),
                "files[0]: xxh128: expected 32 hexadecimal digits");
}

TEST_CASE("an unsound manifest is never written") {
  Manifest manifest = sample();
  manifest.tensors[0].pieces.pop_back();
  CHECK_THROWS_AS(to_json(manifest), InternalError);
}

TEST_CASE("a manifest is read only if its files exist with the listed sizes") {
  const ScratchFolder scratch;
  const std::string text = to_json(sample());
  scratch.write("checkpoint.json", ByteVector(text.begin(), text.end()));
  scratch.write("rank.0000.safetensors", ByteVector(1000));
  CHECK_THROWS_WITH_AS(read_manifest(scratch.path()), doctest::Contains("rank.0001.safetensors: is missing"), EnvError);
  scratch.write("rank.0001.safetensors", ByteVector(1999));
  CHECK_THROWS_WITH_AS(read_manifest(scratch.path()), doctest::Contains("has 1,999 bytes, expected 2,000"), EnvError);
  scratch.write("rank.0001.safetensors", ByteVector(2000));
  CHECK(read_manifest(scratch.path()).step == 120);
}

TEST_CASE("a manifest keeps its lineage and whether it has only weights, and files of older versions have neither") {
  Manifest manifest = sample();
  CHECK(parse_manifest(to_json(manifest), "c.json").lineage.empty());
  CHECK_FALSE(parse_manifest(to_json(manifest), "c.json").weights_only);
  manifest.lineage = "a11ce";
  manifest.weights_only = true;
  const Manifest read = parse_manifest(to_json(manifest), "c.json");
  CHECK(read.lineage == "a11ce");
  CHECK(read.weights_only);
}

TEST_CASE("the ranks of a host can read a checkpoint of which the host received only the files with pieces") {
  const ScratchFolder scratch;
  CheckpointDirectory directory(scratch.path() + "/run");
  const std::string path = save_sample(directory, two_small_tensors(), 7, directory.claim_attempt());
  CHECK(read_manifest_of_pieces(path).tensors.size() == read_manifest(path).tensors.size());
  std::filesystem::remove(path + "/job.yaml");
  CHECK_THROWS_AS(read_manifest(path), EnvError);
  const Manifest manifest = read_manifest_of_pieces(path);
  CHECK(files_with_pieces(manifest).size() == manifest.files.size());
  std::filesystem::remove(path + "/" + manifest.files.back().name);
  CHECK_THROWS_WITH_AS(read_manifest_of_pieces(path), doctest::Contains("is missing"), EnvError);
}
