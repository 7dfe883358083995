// Windows of tokens: sample i is `length` tokens and, as its label, the token that follows each of them.
//
//   tokens   0 1 2 3 4 5 6 7 8 9       length 4:  data 0 1 2 3  4 5 6 7
//                                                label 1 2 3 4  5 6 7 8
//
// A window begins every `stride` tokens; tokens that do not fill a last one are left out. Windows of a set of tokens
// never cross from one file into the next. The bytes of text files are joined to one text, so there they do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/data/mapped_file.h"
#include "engine/train/data/token_file.h"

namespace trainctl {

/// Where the windows of some consecutive tokens begin.
struct TokenRun {
  int64_t first_token = 0, first_sample = 0;  ///< of the whole set
};

struct TokenFile {
  std::string path;
  TokenFormat format;
  int64_t first_token = 0;  ///< its place in the whole set
};

/// The files of a set, and their windows, from the first bytes of the files and their lengths.
struct TokenIndex {
  std::vector<TokenFile> files;
  std::vector<TokenRun> runs;
  int64_t tokens = 0, samples = 0;
};

/// For dataset.type tokens and text. SpecError (dataset.path) if a pattern matches no file, a file is damaged, or one
/// is shorter than a window.
TokenIndex read_token_index(const DatasetSpec& spec);

/// A token that the network has no row for.
struct StrayToken {
  std::string file;
  int64_t place = 0;  ///< in the file, from 0
  int32_t token = 0;
};

class TokenSet {
 public:
  /// Throws as read_token_index.
  explicit TokenSet(const DatasetSpec& spec);

  int64_t size() const { return index_.samples; }
  /// The sample's tokens, or with `shift` 1 those that follow. Allocates nothing; threads may share the set.
  void read(int64_t sample, int64_t shift, int32_t* out) const;
  /// The first token that is not in [0, below), of the first `most` tokens.
  std::optional<StrayToken> first_stray(int64_t below, int64_t most) const;

 private:
  std::span<const uint8_t> body(size_t file) const {
    return bytes_[file].bytes().subspan(static_cast<size_t>(index_.files[file].format.header_bytes()));
  }

  TokenIndex index_;
  std::vector<MappedFile> bytes_;  ///< of each file
  int64_t length_, stride_;
};

}  // namespace trainctl
