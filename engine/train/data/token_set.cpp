// Windows of tokens: sample i is `length` tokens and, as its label, the token that follows each of them.
#include "engine/train/data/token_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/train/data/file_patterns.h"
#include "engine/train/data/tables/megatron.h"
#include "engine/train/data/text_bytes.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunkBytes = int64_t{1} << 20;  ///< bytes that first_stray looks at together

std::vector<std::string> paths_of(const TokenIndex& index) {
  std::vector<std::string> paths;
  for (const TokenFile& file : index.files) paths.push_back(file.path);
  return paths;
}

int64_t stride_of(const DatasetSpec& spec) { return spec.stride > 0 ? spec.stride : spec.length; }

[[noreturn]] void no_token_file(const std::string& pattern, const std::string& field) {
  if (is_url(pattern))
    throw SpecError({}, field, fmt::format("no object matches '{}'", shown_url(pattern)),
                    "in a key, * matches no '/', and ** matches any folders");
  std::error_code ignored;
  if (is_glob(pattern))
    throw SpecError({}, field, fmt::format("no file matches '{}'", pattern),
                    "paths are relative to the job file; ** matches any folders");
  if (fs::is_directory(pattern, ignored))
    throw SpecError({}, field, fmt::format("'{}' is a folder", pattern), "to select its files: " + pattern + "/*");
  throw SpecError({}, field, fmt::format("there is no file '{}'", pattern), "paths are relative to the job file");
}

/// The files in the order of the patterns, and sorted within each. A file that matches two patterns is listed once.
std::vector<std::string> files_of(const DatasetSpec& spec) {
  std::vector<std::string> files;
  std::set<std::string> known;
  for (size_t i = 0; i < spec.paths.size(); ++i) {
    const std::vector<std::string> found = files_matching(spec.paths[i]);
    if (found.empty())
      no_token_file(spec.paths[i], spec.paths.size() > 1 ? fmt::format("dataset.path[{}]", i) : "dataset.path");
    for (const std::string& file : found)
      if (known.insert(file).second) files.push_back(file);
  }
  return files;
}

bool has_zeros_alone(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

/// Throws EnvError if all bytes of the file are 0. A file that begins otherwise is not read.
void require_written(const InputFile& file, std::span<const uint8_t> start) {
  constexpr size_t kLeast = 256;  // fewer zeros may be padding
  constexpr int64_t kAtOnce = int64_t{1} << 20;
  if (start.size() < kLeast || !has_zeros_alone(start)) return;
  std::vector<uint8_t> part;
  for (int64_t at = 0; at < file.bytes(); at += kAtOnce) {
    part.resize(static_cast<size_t>(std::min(kAtOnce, file.bytes() - at)));
    file.read(at, part);
    if (!has_zeros_alone(part)) return;
  }
  throw EnvError(file.path() +
                 ": all of its tokens are 0, as in a file that was created but not written; download "
                 "it again");
}

TokenFormat read_format(const std::string& path, const DatasetSpec& spec) {
  const InputFile file(path);
  if (spec.type == "tokens")
    if (const std::optional<MegatronIndex> index = megatron_index_of(path)) return index->format(file.bytes(), path);
  std::vector<uint8_t> start(static_cast<size_t>(std::min(file.bytes(), kTokenHeaderBytes)));
  file.read(0, start);
  if (spec.type == "text") {
    require_text(std::span(start).first(std::min(start.size(), kTextStartBytes)), path);
    return {TokenType::u8, false, file.bytes()};
  }
  require_written(file, start);
  return parse_token_header(start, file.bytes(), spec.token_dtype == "int32" ? TokenType::i32 : TokenType::u16, path);
}

class IndexBuilder {
 public:
  explicit IndexBuilder(const DatasetSpec& spec) : spec_(spec) {}

  TokenIndex build() {
    const bool one_run = spec_.type == "text";
    for (const std::string& path : files_of(spec_)) {
      const TokenFormat format = read_format(path, spec_);
      if (format.count == 0 && one_run) continue;
      index_.files.push_back({path, format, index_.tokens});
      index_.tokens += format.count;
      if (!one_run) add_run(format.count, path, "remove the file from dataset.path, or reduce dataset.length");
    }
    if (one_run) add_run(index_.tokens, "the text of dataset.path", "add files, or reduce dataset.length");
    return std::move(index_);
  }

 private:
  /// Adds a run of the last `tokens` tokens.
  void add_run(int64_t tokens, const std::string& what, const std::string& hint) {
    if (tokens <= spec_.length)
      throw SpecError({}, "dataset.path",
                      fmt::format("{} has {} tokens, but a sample of {} tokens and its label need {}", what,
                                  with_commas(tokens), with_commas(spec_.length), with_commas(spec_.length + 1)),
                      hint);
    index_.runs.push_back({index_.tokens - tokens, index_.samples});
    index_.samples += (tokens - spec_.length - 1) / stride_of(spec_) + 1;
  }

  const DatasetSpec& spec_;
  TokenIndex index_;
};

/// The last entry of `list` whose `first` is at most `at`.
template <class T>
size_t last_from(const std::vector<T>& list, int64_t T::*first, int64_t at) {
  const auto next =
      std::upper_bound(list.begin(), list.end(), at, [&](int64_t value, const T& one) { return value < one.*first; });
  return static_cast<size_t>(next - list.begin()) - 1;
}

/// Turns an EnvError into an error of the job, because the user can mend a broken file by naming other files.
template <class F>
auto of_the_token_job(F&& read) {
  try {
    return read();
  } catch (const EnvError& error) {
    throw SpecError({}, "dataset.path", error.what(), "`trainctl data info FILE` describes a file");
  }
}

}  // namespace

TokenIndex read_token_index(const DatasetSpec& spec) {
  return of_the_token_job([&] { return IndexBuilder(spec).build(); });
}

TokenSet::TokenSet(const DatasetSpec& spec)
    : index_(read_token_index(spec)), files_(paths_of(index_)), length_(spec.length), stride_(stride_of(spec)) {
  of_the_token_job([&] {
    for (size_t f = 0; f < index_.files.size(); ++f) {
      const TokenFormat& format = index_.files[f].format;
      if (files_.get(f)->bytes() != format.header_bytes() + format.count * byte_size(format.type))
        throw EnvError(index_.files[f].path + ": its size has just changed; wait until the file is complete");
    }
  });
}

int64_t TokenSet::first_token(int64_t sample) const {
  const TokenRun& run = index_.runs[last_from(index_.runs, &TokenRun::first_sample, sample)];
  return run.first_token + (sample - run.first_sample) * stride_;
}

size_t TokenSet::file_of(int64_t token) const { return last_from(index_.files, &TokenFile::first_token, token); }

template <class F>
void TokenSet::for_pieces(int64_t sample, F use) const {
  int64_t at = first_token(sample);
  const int64_t end = at + length_ + 1;
  for (size_t f = file_of(at); at < end; ++f) {
    const TokenFile& file = index_.files[f];
    const int64_t count = std::min(end, file.first_token + file.format.count) - at;
    use(Piece{f, at - file.first_token, count});
    at += count;
  }
}

int64_t TokenSet::byte_at(const Piece& piece) const {
  const TokenFormat& format = index_.files[piece.file].format;
  return format.header_bytes() + piece.first_token * byte_size(format.type);
}

int64_t TokenSet::bytes_of(const Piece& piece) const {
  return piece.tokens * byte_size(index_.files[piece.file].format.type);
}

void TokenSet::read(int64_t sample, std::vector<uint8_t>& scratch, int32_t* data, int32_t* label) const {
  TokenType type = TokenType::u8;  // files that a window crosses have one
  scratch.resize(static_cast<size_t>((length_ + 1) * byte_size(TokenType::i64)));
  size_t filled = 0;
  for_pieces(sample, [&](const Piece& piece) {
    type = index_.files[piece.file].format.type;
    const auto bytes = static_cast<size_t>(bytes_of(piece));
    files_.get(piece.file)->read(byte_at(piece), std::span(scratch).subspan(filled, bytes));
    filled += bytes;
  });
  const std::span<const uint8_t> window(scratch.data(), filled);
  if (data != nullptr) copy_tokens(window, type, 0, length_, data);
  if (label != nullptr) copy_tokens(window, type, 1, length_, label);
}

void TokenSet::expect(int64_t sample) const {
  for_pieces(sample, [&](const Piece& piece) { files_.get(piece.file)->expect(byte_at(piece), bytes_of(piece)); });
}

std::string TokenSet::where(int64_t sample) const {
  const int64_t token = first_token(sample);
  const TokenFile& file = index_.files[file_of(token)];
  return fmt::format("{}: token {}", shown_url(file.path), with_commas(token - file.first_token));
}

std::optional<StrayToken> TokenSet::first_stray(int64_t below, int64_t most) const {
  std::vector<uint8_t> chunk;
  for (size_t f = 0; f < index_.files.size() && most > 0; ++f) {
    const TokenFormat& format = index_.files[f].format;
    const int64_t end = std::min(most, format.count), at_once = kChunkBytes / byte_size(format.type);
    for (int64_t first = 0; first < end; first += at_once) {
      const Piece piece{f, first, std::min(at_once, end - first)};
      chunk.resize(static_cast<size_t>(bytes_of(piece)));
      files_.get(f)->read(byte_at(piece), chunk);
      const std::optional<int64_t> place = first_outside(chunk, format.type, below);
      if (!place) continue;
      StrayToken stray{index_.files[f].path, first + *place, 0};
      copy_tokens(chunk, format.type, *place, 1, &stray.token);
      return stray;
    }
    most -= end;
  }
  return {};
}

}  // namespace trainctl
