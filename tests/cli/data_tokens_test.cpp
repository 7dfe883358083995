// trainctl data tokens --tokenizer and data train-tokenizer.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

void write_document(const Scratch& scratch, const std::string& name, const std::string& text) {
  std::ofstream(scratch.path() + "/" + name, std::ios::binary) << text;
}

CommandResult train_small_tokenizer(const Scratch& scratch) {
  write_document(scratch, "book.txt", "low lower lowest low low. new newer newest");
  return trainctl_command(scratch.path(), {"data", "train-tokenizer", "book.txt", "--vocab", "262", "-o", "tok"});
}

std::string file_bytes(const Scratch& scratch, const std::string& name) {
  std::ifstream in(scratch.path() + "/" + name, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace

TEST_CASE("data train-tokenizer writes a tokenizer that data tokens reads") {
  const Scratch scratch;
  const CommandResult trained = train_small_tokenizer(scratch);
  INFO(trained.err);
  REQUIRE(trained.exit_code == kExitDone);
  CHECK(trained.out == "tok/tokenizer.json: byte-level BPE of 262 tokens\n");
  const auto json = nlohmann::json::parse(file_bytes(scratch, "tok/tokenizer.json"));
  CHECK(json["model"]["merges"][0] == nlohmann::json({"l", "o"}));
  CHECK(nlohmann::json::parse(file_bytes(scratch, "tok/tokenizer_config.json"))["eos_token"] == "<|endoftext|>");

  write_document(scratch, "a.jsonl", "{\"text\": \"low\"}\n{\"text\": \"\\u00fc\"}\n");
  const CommandResult written = trainctl_command(scratch.path(), {"data", "tokens", "a.jsonl", "--tokenizer", "tok",
                                                                  "--end-token", "<|endoftext|>", "-o", "x.bin"});
  INFO(written.err);
  REQUIRE(written.exit_code == kExitDone);
  CHECK(written.out == "x.bin: 5 uint16 tokens, llm.c header, from 2 documents of 33 B\n");
  const CommandResult one =
      trainctl_command(scratch.path(), {"data", "tokens", "a.jsonl", "--tokenizer", "tok", "--threads", "1",
                                        "--end-token", "<|endoftext|>", "-o", "y.bin"});
  CHECK(one.exit_code == kExitDone);
  CHECK(file_bytes(scratch, "x.bin") == file_bytes(scratch, "y.bin"));
}

TEST_CASE("data tokens names input that it cannot tokenize") {
  const Scratch scratch;
  REQUIRE(train_small_tokenizer(scratch).exit_code == kExitDone);
  const auto error = [&](const std::vector<std::string>& words) {
    const CommandResult result = trainctl_command(scratch.path(), words);
    CHECK(result.exit_code != kExitDone);
    return result.err;
  };
  write_document(scratch, "bad.jsonl", "{\"text\": \"a\"}\n{\"txt\": 1}\n");
  CHECK(error({"data", "tokens", "bad.jsonl", "--tokenizer", "tok", "-o", "x.bin"})
            .find("bad.jsonl:2: has no text in the field 'text'; name another with --field") != std::string::npos);
  write_document(scratch, "latin.txt", "\xe9t\xe9\n");
  CHECK(error({"data", "tokens", "latin.txt", "--tokenizer", "tok", "-o", "x.bin"})
            .find("latin.txt: byte 0 is not UTF-8") != std::string::npos);
  CHECK(error({"data", "tokens", "a.parquet", "--tokenizer", "tok", "-o", "x.bin"})
            .find("a.parquet") != std::string::npos);
  CHECK(error({"data", "tokens", "book.txt", "--tokenizer", "tok", "--end-token", "<e>", "-o", "x.bin"})
            .find("has no token '<e>'") != std::string::npos);
  CHECK(error({"data", "tokens", "book.txt", "--lines", "-o", "x.bin"}).find("need --tokenizer") != std::string::npos);
  write_document(scratch, "tok/tokenizer.json", R"({"model": {"type": "BPE", "vocab": {}, "merges": []},
                                                    "normalizer": {"type": "Reverse"}})");
  CHECK(error({"data", "tokens", "book.txt", "--tokenizer", "tok", "-o", "x.bin"})
            .find("tokenizer.json.normalizer: the normalizer 'Reverse' is not supported") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(scratch.path() + "/x.bin"));
  CHECK(error({"data", "train-tokenizer", "book.txt", "--vocab", "300", "-o", "tok"}).find("replace it with --force") !=
        std::string::npos);
}
