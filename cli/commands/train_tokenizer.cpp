// trainctl data train-tokenizer: trains a tokenizer on text files and writes it in the format of the Hugging Face
// libraries.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/text/train_bpe.h"
#include "engine/train/data/documents.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

struct TrainTokenizerArguments {
  DocumentOptions documents;
  std::string type = "bpe", pattern = "llama3", output;
  std::vector<std::string> special = {"<|endoftext|>"};
  int64_t vocabulary = 0;
  bool force = false;
};

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  if (!out || !(out << text) || !out.flush()) throw EnvError(path.string() + ": cannot be written");
}

std::string config_text(const TrainTokenizerArguments& options) {
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  if (!options.special.empty()) config["eos_token"] = options.special.front();
  return config.dump(2) + "\n";
}

/// Learns a byte-level BPE vocabulary from the documents, and writes tokenizer.json.
int train_tokenizer(const TrainTokenizerArguments& options) {
  const auto least = static_cast<int64_t>(256 + options.special.size());
  if (options.vocabulary < least)
    throw SpecError({}, "--vocab",
                    fmt::format("{} tokens are too few: 256 bytes and {} special tokens need {}", options.vocabulary,
                                options.special.size(), least));
  const fs::path folder(options.output), file = folder / "tokenizer.json";
  if (!options.force && fs::exists(file))
    throw EnvError(file.string() + " already exists; replace it with --force, or choose another folder with -o");
  BpeTraining training(options.pattern, options.special);
  DocumentReader reader(options.documents);
  constexpr size_t kAtOnce = size_t{8} << 20;
  for (auto documents = reader.read(kAtOnce); !documents.empty(); documents = reader.read(kAtOnce)) {
    for (RawDocument& document : documents) {
      const std::string where = document.where;
      try {
        training.add(text_of(std::move(document), options.documents.field, "--field"));
      } catch (const EnvError& error) {
        throw EnvError(where + ": " + error.what());
      }
    }
  }
  const std::string json = training.train(options.vocabulary);
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) throw EnvError(options.output + ": cannot be created: " + failed.message());
  write_file(file, json);
  write_file(folder / "tokenizer_config.json", config_text(options));
  const auto tokens = static_cast<int64_t>(nlohmann::json::parse(json)["model"]["vocab"].size());
  std::cout << fmt::format("{}: byte-level BPE of {} tokens{}\n", printable(file.string()), with_commas(tokens),
                           tokens < options.vocabulary ? "; the text has no more pairs" : "");
  return kExitDone;
}

}  // namespace

void add_train_tokenizer_command(CLI::App& data, Action& chosen) {
  auto options = std::make_shared<TrainTokenizerArguments>();
  auto* command = data.add_subcommand("train-tokenizer", "Train a byte-level BPE tokenizer on text files");
  command->add_option("FILE", options->documents.files, "Text files, *.jsonl or gzipped ones; - is stdin")->required();
  command->add_option("--type", options->type, "bpe: byte-level BPE")
      ->check(CLI::IsMember({"bpe"}))
      ->capture_default_str();
  command
      ->add_option("--vocab", options->vocabulary, "Size of the vocabulary, including special tokens and the 256 bytes")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->required();
  command->add_option("--pattern", options->pattern, "How text is split into words: gpt2 | llama3 | qwen2")
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen2"}))
      ->capture_default_str();
  command->add_option("--special", options->special, "Special tokens, the first of which ends a text")
      ->capture_default_str();
  command->add_option("--field", options->documents.field, "Field of each line of *.jsonl and *.jsonl.gz")
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "Folder to write")->required();
  command->add_flag("--force", options->force, "Replace an existing tokenizer");
  command->footer(
      R"(The folder gets tokenizer.json and tokenizer_config.json, which `data tokens` and the Hugging Face libraries read.

Examples:
  trainctl data train-tokenizer book.txt --vocab 4096 -o tokenizer
  trainctl data tokens book.txt --tokenizer tokenizer --end-token '<|endoftext|>' -o book.bin)");
  command->callback([&chosen, options] { chosen = [options] { return train_tokenizer(*options); }; });
}

}  // namespace trainctl
