// trainctl data: makes and describes token files. data_set.cpp has its commands for samples.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/commands/data_files.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/train/data/mapped_file.h"
#include "engine/train/data/tables/megatron.h"
#include "engine/train/data/token_file.h"
#include "engine/train/data/token_writer.h"
#include "engine/train/data/tokenize_files.h"

namespace trainctl {
namespace {

struct DataArguments {
  std::vector<std::string> files;
  std::string output;
  std::string format = "llm.c";
  std::string dtype = "uint16";
  TokenizeOptions tokenize;
  bool no_special = false, force = false;
};

/// A file that is open for reading; "-" is stdin.
class Input {
 public:
  explicit Input(const std::string& path) : path_(path), fd_(0) {
    if (path == "-") return;
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) fail();
  }
  ~Input() {
    if (fd_ > 0) close(fd_);
  }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  /// Returns the bytes read; 0 at the end.
  size_t read(std::vector<uint8_t>& to) const {
    ssize_t got = 0;
    do got = ::read(fd_, to.data(), to.size());
    while (got < 0 && errno == EINTR);
    if (got < 0) fail();
    return static_cast<size_t>(got);
  }

 private:
  [[noreturn]] void fail() const {
    throw EnvError((path_ == "-" ? "stdin" : path_) + ": cannot be read: " + std::strerror(errno));
  }

  std::string path_;
  int fd_;
};

int write_tokenized(const DataArguments& options) {
  TokenizeOptions tokenize = options.tokenize;
  tokenize.documents.files = options.files;
  tokenize.output = options.output;
  tokenize.header = options.format == "llm.c";
  tokenize.replace = options.force;
  tokenize.adds_special = !options.no_special;
  if (tokenize.threads == 0) tokenize.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const TokenizeResult result = tokenize_files(tokenize);
  std::cout << fmt::format("{}: {} {} tokens, {}, from {} document{} of {}\n", printable(options.output),
                           with_commas(result.tokens), to_string(result.type),
                           options.format == "llm.c" ? "llm.c header" : "no header", with_commas(result.documents),
                           result.documents == 1 ? "" : "s", format_bytes(result.bytes));
  return kExitDone;
}

int write_tokens(const DataArguments& options) {
  if (std::count(options.files.begin(), options.files.end(), "-") > 1)
    throw SpecError({}, "data tokens", "stdin can be read only once, but '-' is given several times");
  if (!options.tokenize.tokenizer.empty()) return write_tokenized(options);
  if (options.tokenize.documents.lines || !options.tokenize.end_token.empty() || options.no_special)
    throw SpecError({}, "data tokens", "--lines, --end-token and --no-special need --tokenizer",
                    "without it the bytes of the files are the tokens");
  TokenWriter writer(options.output, TokenType::u16, options.format == "llm.c", options.force);
  std::vector<uint8_t> bytes(size_t{1} << 20);
  for (const std::string& file : options.files) {
    const Input input(file);
    while (const size_t count = input.read(bytes)) writer.write_bytes(std::span(bytes).first(count));
  }
  if (writer.count() == 0) throw EnvError("the input is empty; " + options.output + " was not written");
  writer.finish();
  std::cout << printable(options.output) << ": " << with_commas(writer.count()) << " uint16 tokens, "
            << (options.format == "llm.c" ? "llm.c header" : "no header") << "\n";
  return kExitDone;
}

std::string describe(const std::string& path, TokenType without_header) {
  if (const std::optional<MegatronIndex> index = megatron_index_of(path)) return describe_table(index->path);
  const MappedFile file(path);
  const std::span<const uint8_t> bytes = file.bytes();
  const auto size = static_cast<int64_t>(bytes.size());
  const auto start = bytes.first(static_cast<size_t>(std::min(size, kTokenHeaderBytes)));
  const TokenFormat format = parse_token_header(start, size, without_header, path);
  const auto body = bytes.subspan(static_cast<size_t>(format.header_bytes()));
  std::string text = fmt::format("{}: {} {} tokens, {}", printable(path), with_commas(format.count),
                                 to_string(format.type), format.has_header ? "llm.c header" : "no header");
  if (const auto [least, most] = range_of(body, format.type); least <= most)
    text += fmt::format(", from {} to {}", with_commas(least), with_commas(most));
  return text + "\n";
}

int print_info(const DataArguments& options) {
  for (const std::string& file : options.files)
    std::cout << (is_table_path(file) ? describe_table(file)
                                      : describe(file, options.dtype == "int32" ? TokenType::i32 : TokenType::u16));
  return kExitDone;
}

void add_tokens_command(CLI::App& data, const std::shared_ptr<DataArguments>& options, Action& chosen) {
  auto* tokens =
      data.add_subcommand("tokens", "Write texts as token files, with a tokenizer or with one token per byte");
  tokens->add_option("FILE", options->files, "Input files, in order; - is stdin")->required();
  tokens->add_option("-o,--output", options->output, "File to write")->required();
  tokens->add_option("--tokenizer", options->tokenize.tokenizer,
                     "A model's folder, tokenizer.json or a SentencePiece model; without it bytes are tokens");
  tokens
      ->add_option("--field", options->tokenize.documents.field,
                   "Field of each line of JSON Lines and of each row of a table")
      ->capture_default_str();
  tokens->add_flag("--lines", options->tokenize.documents.lines, "Each line of other files is a document");
  tokens->add_option("--end-token", options->tokenize.end_token, "Token after each document, such as <|endoftext|>");
  tokens->add_flag("--no-special", options->no_special,
                   "Omit the special tokens that the tokenizer adds around a text");
  tokens->add_option("--threads", options->tokenize.threads, "Threads; 0: one per core")->check(CLI::Range(0, 1024));
  tokens->add_option("--format", options->format, "llm.c | raw")
      ->check(CLI::IsMember({"llm.c", "raw"}))
      ->capture_default_str();
  tokens->add_flag("--force", options->force, "Replace the output file if it exists");
  tokens->footer(
      R"(The file is written atomically. llm.c: a header of 1,024 bytes, then the tokens; raw: only the tokens, as in nanoGPT.
A job reads both. Tokens are uint16, or int32 if the tokenizer has more than 65,536. A document is a file, a line of
*.jsonl, a row of a table (*.parquet, *.arrow …), or with --lines a line; texts may be compressed by gzip or zstd.

Examples:
  trainctl data tokens book.txt -o book.bin
  trainctl data tokens a.txt b.txt -o both.bin --force
  trainctl data tokens web.jsonl.gz --tokenizer Qwen3-8B --end-token '<|endoftext|>' -o web.bin
  zcat book.txt.gz | trainctl data tokens - -o book.bin --format raw)");
  tokens->callback([&chosen, options] { chosen = [options] { return write_tokens(*options); }; });
}

void add_info_command(CLI::App& data, const std::shared_ptr<DataArguments>& options, Action& chosen) {
  auto* info =
      data.add_subcommand("info", "Describe token files (type and number of tokens) and tables (rows and columns)");
  info->add_option("FILE", options->files, "Token files, tables, and folders of tables")->required();
  info->add_option("--token-dtype", options->dtype, "uint16 | int32")
      ->check(CLI::IsMember({"uint16", "int32"}))
      ->capture_default_str();
  info->footer(R"(Use --token-dtype for files without an llm.c header, which do not record their token type.

Examples:
  trainctl data info data/*.bin
  trainctl data info data/train.parquet)");
  info->callback([&chosen, options] { chosen = [options] { return print_info(*options); }; });
}

}  // namespace

void add_data_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<DataArguments>();
  auto* data = app.add_subcommand("data", "Check, draw and convert samples, and create token files");
  data->require_subcommand(1);
  data->footer(R"(Examples:
  trainctl data check photos
  trainctl data show job.yaml -n 16 -o samples.png
  trainctl data tokens book.txt -o book.bin
  trainctl data info book.bin
  trainctl data convert data.parquet -o data.jsonl
  trainctl data train-tokenizer book.txt --vocab 4096 -o tokenizer

To train on them: dataset: {type: tokens, path: book.bin, length: 128}. Plain text needs no token file:
dataset: {type: text, path: book.txt, length: 128} reads the bytes of a text file as tokens.

trainctl help data tokens describes one of these commands in detail.)");

  add_tokens_command(*data, options, chosen);
  add_info_command(*data, options, chosen);
  add_data_convert_command(*data, chosen);
  add_train_tokenizer_command(*data, chosen);
  add_data_set_commands(*data, chosen);
}

}  // namespace trainctl
