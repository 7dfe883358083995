// Windows of tokens: sample i is `length` tokens and, as its label, the token that follows each of them.
//
//   tokens   0 1 2 3 4 5 6 7 8 9       length 4:  data 0 1 2 3  4 5 6 7
//                                                label 1 2 3 4  5 6 7 8
//
// A window begins every `stride` tokens; tokens that do not fill a last one are left out. Windows of a set of tokens
// never cross from one file into the next. The bytes of text files are joined to one text, so there they do.
//
// Files are read, not mapped: a disk that fails is then an error that names the file, and not a signal, and a window
// that is not in memory costs its own pages, not the 32 that the system reads around a fault.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/spec/job_spec.h"
#include "engine/train/data/sources/open_files.h"
#include "engine/train/data/token_file.h"

namespace trainctl {

/// The starts of the windows of some consecutive tokens.
struct TokenRun {
  int64_t first_token = 0, first_sample = 0;  ///< numbers in the whole set
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

/// The index for dataset.type tokens and text. Throws SpecError (dataset.path) if a pattern matches no file, if a file
/// is damaged, or if it is shorter than a window.
TokenIndex read_token_index(const DatasetSpec& spec);

/// A token that the network has no row for.
struct StrayToken {
  std::string file;
  int64_t place = 0;  ///< in the file, from 0
  int32_t token = 0;
};

class TokenSet {
 public:
  /// Throws the same errors as read_token_index.
  explicit TokenSet(const DatasetSpec& spec);

  int64_t size() const { return index_.samples; }
  /// Writes a sample's tokens to `data` and the tokens that follow each of them to `label`; either may be null.
  /// `scratch` grows to the size of a window. Threads may share the set. Throws EnvError, with the file, if it cannot
  /// be read.
  void read(int64_t sample, std::vector<uint8_t>& scratch, int32_t* data, int32_t* label) const;
  /// Asks the system to read a sample that is wanted soon, without waiting for it.
  void expect(int64_t sample) const;
  /// "train.bin: token 4,096".
  std::string where(int64_t sample) const;
  /// Returns the first token that is not in [0, below) among the first `most` tokens.
  std::optional<StrayToken> first_stray(int64_t below, int64_t most) const;

 private:
  /// The bytes of a window and the token after it, in one file.
  struct Piece {
    size_t file = 0;
    int64_t first_token = 0;  ///< number in the file
    int64_t tokens = 0;
  };
  int64_t first_token(int64_t sample) const;
  size_t file_of(int64_t token) const;
  /// Calls `use(piece)` for each file that the sample is in.
  template <class F>
  void for_pieces(int64_t sample, F use) const;
  int64_t byte_at(const Piece& piece) const;
  int64_t bytes_of(const Piece& piece) const;

  TokenIndex index_;
  OpenFiles files_;  ///< the files of index_
  int64_t length_, stride_;
};

}  // namespace trainctl
