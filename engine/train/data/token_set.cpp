// See the header.
#include "engine/train/data/token_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/data/file_patterns.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

int64_t stride_of(const DatasetSpec& spec) { return spec.stride > 0 ? spec.stride : spec.length; }

[[noreturn]] void no_file(const std::string& pattern, const std::string& field) {
  std::error_code ignored;
  if (is_glob(pattern))
    throw SpecError({}, field, fmt::format("no file matches '{}'", pattern),
                    "a relative path starts at the job file's folder; ** stands for any folders");
  if (fs::is_directory(pattern, ignored))
    throw SpecError({}, field, fmt::format("'{}' is a folder", pattern), "its files: " + pattern + "/*");
  throw SpecError({}, field, fmt::format("there is no file '{}'", pattern),
                  "a relative path starts at the job file's folder");
}

/// In the order of the patterns, sorted within each; a file that two of them match comes once.
std::vector<std::string> files_of(const DatasetSpec& spec) {
  std::vector<std::string> files;
  std::set<std::string> known;
  for (size_t i = 0; i < spec.paths.size(); ++i) {
    const std::vector<std::string> found = files_matching(spec.paths[i]);
    if (found.empty())
      no_file(spec.paths[i], spec.paths.size() > 1 ? fmt::format("dataset.path[{}]", i) : "dataset.path");
    for (const std::string& file : found)
      if (known.insert(file).second) files.push_back(file);
  }
  return files;
}

TokenFormat read_format(const std::string& path, const DatasetSpec& spec) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const int64_t bytes = file.tellg();
  std::vector<uint8_t> start(static_cast<size_t>(std::clamp<int64_t>(bytes, 0, kTokenHeaderBytes)));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(start.data()), static_cast<std::streamsize>(start.size()));
  if (!file) throw EnvError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  if (spec.type == "text") return {TokenType::u8, false, bytes};
  return parse_token_header(start, bytes, spec.token_dtype == "int32" ? TokenType::i32 : TokenType::u16, path);
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
      if (!one_run) add_run(format.count, path, "leave the file out of dataset.path, or set a smaller dataset.length");
    }
    if (one_run) add_run(index_.tokens, "the text of dataset.path", "more files, or a smaller dataset.length");
    return std::move(index_);
  }

 private:
  /// Of the last `tokens` tokens.
  void add_run(int64_t tokens, const std::string& what, const std::string& hint) {
    if (tokens <= spec_.length)
      throw SpecError({}, "dataset.path",
                      fmt::format("{} has {} tokens, but a sample of {} and its label need {}", what,
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

/// The user can fix what is wrong with a file by other files, so it is an error of the job.
template <class F>
auto of_the_job(F&& read) {
  try {
    return read();
  } catch (const EnvError& error) {
    throw SpecError({}, "dataset.path", error.what(), "trainctl data info FILE says what a file is");
  }
}

}  // namespace

TokenIndex read_token_index(const DatasetSpec& spec) {
  return of_the_job([&] { return IndexBuilder(spec).build(); });
}

TokenSet::TokenSet(const DatasetSpec& spec)
    : index_(read_token_index(spec)), length_(spec.length), stride_(stride_of(spec)) {
  of_the_job([&] {
    for (const TokenFile& file : index_.files) {
      bytes_.emplace_back(file.path);
      const auto expected = file.format.header_bytes() + file.format.count * byte_size(file.format.type);
      if (static_cast<int64_t>(bytes_.back().bytes().size()) != expected)
        throw EnvError(file.path + ": has just changed its size; wait until it is written");
    }
  });
}

void TokenSet::read(int64_t sample, int64_t shift, int32_t* out) const {
  const TokenRun& run = index_.runs[last_from(index_.runs, &TokenRun::first_sample, sample)];
  int64_t at = run.first_token + (sample - run.first_sample) * stride_ + shift;
  const int64_t end = at + length_;
  for (size_t f = last_from(index_.files, &TokenFile::first_token, at); at < end; ++f) {
    const TokenFile& file = index_.files[f];
    const int64_t count = std::min(end, file.first_token + file.format.count) - at;
    copy_tokens(body(f), file.format.type, at - file.first_token, count, out);
    out += count;
    at += count;
  }
}

std::optional<StrayToken> TokenSet::first_stray(int64_t below, int64_t most) const {
  for (size_t f = 0; f < index_.files.size() && most > 0; ++f) {
    const TokenFile& file = index_.files[f];
    const int64_t count = std::min(most, file.format.count);
    const auto tokens = body(f).first(static_cast<size_t>(count * byte_size(file.format.type)));
    most -= count;
    const std::optional<int64_t> place = first_outside(tokens, file.format.type, below);
    if (!place) continue;
    StrayToken stray{file.path, *place, 0};
    copy_tokens(tokens, file.format.type, *place, 1, &stray.token);
    return stray;
  }
  return {};
}

}  // namespace trainctl
